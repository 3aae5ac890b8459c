"""Runs one case of `benchmarks.growth` in a separate process.

It is started with a case as JSON, and answers requests with lines of JSON:

    {"first": 1}     ->  seconds of the first step and of its parts, and the program's sizes
    {"steps": 3}     ->  seconds of wall and of processor time of each of three more steps

The clock of the first step starts after the imports, when the data is ready. The step is
timed in three parts: building the variables; recording and planning (hand-written: making
the function); TensorFlow's tracing and the run.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import meshtf as mtf
from benchmarks.growth.cases import Case
from benchmarks.harness.case_server import serve
from benchmarks.step.cases import worker
from benchmarks.step.cases.feeds import batches
from benchmarks.step.cases.meshtf_model import MeshModel, build
from benchmarks.step.plain_tf.language_model import PlainLM
from benchmarks.step.plain_tf.moe import PlainMoE
from meshtf.runtime.placed.program.function_calls import called
from transformer.models.base import Model
from transformer.models.language_model import LanguageModel


class Clock(NamedTuple):
    """A reading of both clocks, in seconds."""

    wall: float
    processor: float


class GraphOps(NamedTuple):
    """The ops of a TensorFlow graph: NodeDefs, and the FunctionDefs that they may call."""

    nodes: Sequence[Any]
    functions: Sequence[Any]


_STEP = np.int32(0)


class MeshedModel(MeshModel):
    """The model of a case in meshtf, with Adam.

    Args:
      case: the case.
      devices: the devices of the mesh.
    """

    def __init__(self, case: Case, devices: str | None) -> None:
        c = case.config
        self.mesh = mtf.Mesh(
            case.axes,
            layout=case.layout,
            devices=devices,
            seed=0,
        )
        self.model = model(self.mesh, case)
        self.optimizer = mtf.optimizers.Adam(
            self.model.trainable_variables,
            learning_rate=c.learning_rate,
            beta_1=c.beta1,
            beta_2=c.beta2,
            epsilon=c.epsilon,
        )
        self.step = 0


def model(mesh: mtf.Mesh, case: Case) -> Model:
    """Returns the model of a case on a mesh."""
    if not case.scanned and case.attention == "full":
        return build(mesh, case.config)
    architecture = build(mtf.Mesh("", devices="abstract"), case.config).architecture
    architecture = dataclasses.replace(
        architecture, scanned=case.scanned, attention=case.attention
    )
    return LanguageModel(mesh, architecture, z_loss=0.0)


class Runner(worker.Runner):
    """A case that takes steps; its first step is measured in parts."""

    def __init__(self, case: Case) -> None:
        self.case, self.config = case, case.config
        self.batches = batches(case.config)
        self.count = 0
        self.start = {}

    def first(self, count: int = 1) -> dict[str, float]:
        """Takes the first step; returns its seconds and those of its parts, the numbers of
        ops, and the forecast of memory if the case wants it.
        """
        del count
        start = _now()
        run_first_step = self._meshed if self.case.meshed else self._hand_written
        built, planned, graph_ops = run_first_step()
        end = _now()
        costs = {
            "first": end.wall - start.wall,
            "first_cpu": end.processor - start.processor,
            "build_cpu": built.processor - start.processor,
            "plan_cpu": planned.processor - built.processor,
            "run_cpu": end.processor - planned.processor,
            **sizes_of(graph_ops()),
        }
        if self.case.forecast:
            costs["memory"] = self._forecast()
        return costs

    def _forecast(self) -> float:
        """Returns the forecast of the peak of bytes on one position."""
        specs = {
            name: tf.TensorSpec(x.shape, x.dtype) for name, x in self.batches[0].items()
        }
        step = MeshedModel(self.case, "abstract").recorded()
        return mtf.explain(step, specs, _STEP).memory.peak

    def _meshed(self) -> tuple[Clock, Clock, Callable[[], GraphOps]]:
        """Takes the first step in meshtf. Returns the time when the model was built, the
        time when the step was planned, and a function that returns the ops of the step.
        """
        warnings.simplefilter("ignore", mtf.LayoutWarning)
        if (self.case.devices or "").startswith("logical:"):
            mtf.logical_devices(int(str(self.case.devices).partition(":")[2]))
        model = MeshedModel(self.case, self.case.devices)
        built = _now()
        train = model.recorded()
        program = train.lower(self.batches[0], _STEP)
        planned = _now()
        self.step = lambda batch: train(batch, _STEP)
        self.take_step()

        def graph_ops() -> GraphOps:
            return GraphOps(program.definition.node_def, program.called_definitions)

        return built, planned, graph_ops

    def _hand_written(self) -> tuple[Clock, Clock, Callable[[], GraphOps]]:
        """Takes the first step in plain TensorFlow; returns the same as `_meshed`."""
        plain_model = PlainMoE if self.config.model == "moe" else PlainLM
        model = plain_model(self.config)
        built = _now()
        self.step = train = model.train_step()
        planned = _now()
        self.take_step()

        def graph_ops() -> GraphOps:
            graph = train.get_concrete_function(self.batches[0]).graph.as_graph_def()
            return GraphOps(graph.node, graph.library.function)

        return built, planned, graph_ops


def _now() -> Clock:
    return Clock(wall=time.perf_counter(), processor=time.process_time())


def sizes_of(ops: GraphOps) -> dict[str, int]:
    """Returns the numbers of ops outside of segments, of calls, of segments, and of all ops."""
    calls = [name for name in map(called, ops.nodes) if name]
    return {
        "outer": len(ops.nodes),
        "calls": len(calls),
        "segments": len(set(calls)),
        "traced": len(ops.nodes) + sum(len(f.node_def) for f in ops.functions),
    }


if __name__ == "__main__":
    mtf.configure_process()
    serve(lambda text: Runner(Case.load(text)))
