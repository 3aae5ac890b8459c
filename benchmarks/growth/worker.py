"""Runs one case of `benchmarks.growth` in a separate process.

It is started with a case as JSON, and answers requests with lines of JSON:

    {"first": 1}     ->  seconds of the first step and of its phases, and the program's sizes
    {"steps": 3}     ->  seconds of wall and of processor time of each of three more steps

The clock of the first step starts after the imports, when the data is ready. The step is
timed in three phases: building the variables; recording and planning (hand-written: making
the function); TensorFlow's tracing and the run. A program of meshtf consists of ops, and of
calls of segments: functions that run on one device between two collectives.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import meshtf as mtf
from benchmarks.growth.cases import Case
from benchmarks.harness.case_server import serve
from benchmarks.harness.clocks import Seconds, now
from benchmarks.step.cases import worker
from benchmarks.step.cases.feeds import batches
from benchmarks.step.cases.meshtf_model import MeshModel, build
from benchmarks.step.plain_tf.language_model import PlainLM
from benchmarks.step.plain_tf.moe import PlainMoE
from meshtf.runtime.placed.program.function_calls import called
from transformer.models.base import Model
from transformer.models.language_model import LanguageModel


class GraphOps(NamedTuple):
    """The ops of a TensorFlow graph.

    Attributes:
      nodes: the NodeDefs of the graph.
      functions: the FunctionDefs that the nodes may call.
    """

    nodes: Sequence[Any]
    functions: Sequence[Any]


class FirstStep(NamedTuple):
    """The first step of a case, which has been taken.

    Attributes:
      built: a reading of the clocks, from when the variables existed.
      planned: a reading of the clocks, from when the step was planned.
      graph_ops: the function that returns the ops of the step.
    """

    built: Seconds
    planned: Seconds
    graph_ops: Callable[[], GraphOps]


_STEP_INDEX = np.int32(
    0
)  # the argument of a training step; the same for all steps here


class GrowthModel(MeshModel):
    """The model of a case in meshtf, with Adam.

    Args:
      case: the case.
      devices: the devices of the mesh.
    """

    def __init__(self, case: Case, devices: str | None) -> None:
        config = case.config
        self.mesh = mtf.Mesh(
            case.axes,
            layout=case.layout,
            devices=devices,
            seed=0,
        )
        self.model = build_model(self.mesh, case)
        self.optimizer = mtf.optimizers.Adam(
            self.model.trainable_variables,
            learning_rate=config.learning_rate,
            beta_1=config.beta1,
            beta_2=config.beta2,
            epsilon=config.epsilon,
        )
        self.step = 0


def build_model(mesh: mtf.Mesh, case: Case) -> Model:
    """Returns the model of a case on a mesh."""
    if not case.scanned and case.attention == "full":
        return build(mesh, case.config)
    # The same architecture, except for two fields that a `Config` does not have.
    architecture = build(mtf.Mesh("", devices="abstract"), case.config).architecture
    architecture = dataclasses.replace(
        architecture, scanned=case.scanned, attention=case.attention
    )
    return LanguageModel(mesh, architecture, z_loss=0.0)


class Runner(worker.Runner):
    """A case that takes steps; the phases of its first step are measured.

    Attributes:
      start_costs: the first answer of the worker; empty, since the first step is measured
        when it is requested.
    """

    def __init__(self, case: Case) -> None:
        # Without the base class, whose __init__ measures the first step.
        self.case = case
        self.config = case.config
        self.batches = batches(case.config)
        self.steps_done = 0
        self.start_costs = {}

    def first(self, count: int = 1) -> dict[str, float]:
        """Takes the first step; returns its seconds and those of its phases, the numbers of
        ops, and the forecast of memory if the case has one.

        Args:
          count: not used: a request has an argument.
        """
        del count
        start = now()
        if self.case.meshed:
            first_step = self._take_meshtf_step()
        else:
            first_step = self._take_plain_step()
        end = now()
        built = first_step.built
        planned = first_step.planned
        costs = {
            "first": end.since(start).wall,
            "first_cpu": end.since(start).processor,
            "build_cpu": built.since(start).processor,
            "plan_cpu": planned.since(built).processor,
            "run_cpu": end.since(planned).processor,
            **sizes_of(first_step.graph_ops()),
        }
        if self.case.forecast:
            costs["memory"] = self._forecast()
        return costs

    def _forecast(self) -> float:
        """Returns the forecast of the peak of bytes on one position."""
        specs = {
            name: tf.TensorSpec(x.shape, x.dtype) for name, x in self.batches[0].items()
        }
        step = GrowthModel(self.case, devices="abstract").make_train_function()
        return mtf.explain(step, specs, _STEP_INDEX).memory.peak

    def _take_meshtf_step(self) -> FirstStep:
        """Takes the first step in meshtf."""
        warnings.simplefilter("ignore", mtf.LayoutWarning)
        kind, _, count = (self.case.devices or "").partition(":")
        if kind == "logical":
            mtf.logical_devices(int(count))
        model = GrowthModel(self.case, self.case.devices)
        built = now()
        train = model.make_train_function()
        program = train.lower(self.batches[0], _STEP_INDEX)  # records and plans
        planned = now()
        self.step = lambda batch: train(batch, _STEP_INDEX)
        self.take_step()

        def graph_ops() -> GraphOps:
            """Returns the ops of the program, and the functions that it calls."""
            return GraphOps(
                nodes=program.definition.node_def,
                functions=program.called_definitions,
            )

        return FirstStep(built, planned, graph_ops)

    def _take_plain_step(self) -> FirstStep:
        """Takes the first step in plain TensorFlow."""
        plain_model = PlainMoE if self.config.model == "moe" else PlainLM
        model = plain_model(self.config)
        built = now()
        train = model.train_step()
        self.step = train
        planned = now()
        self.take_step()

        def graph_ops() -> GraphOps:
            """Returns the ops of the tf.function, and the functions that it calls."""
            graph = train.get_concrete_function(self.batches[0]).graph.as_graph_def()
            return GraphOps(nodes=graph.node, functions=graph.library.function)

        return FirstStep(built, planned, graph_ops)


def sizes_of(ops: GraphOps) -> dict[str, int]:
    """Returns the number of ops outside of segments ("outer"), of calls of segments, of
    segments, and of all ops ("traced").
    """
    # `called` returns the name of the function that a node calls, or "".
    called_names = [name for name in map(called, ops.nodes) if name]
    return {
        "outer": len(ops.nodes),
        "calls": len(called_names),
        "segments": len(set(called_names)),
        "traced": len(ops.nodes)
        + sum(len(function.node_def) for function in ops.functions),
    }


if __name__ == "__main__":
    mtf.configure_process()
    serve(lambda text: Runner(Case.load(text)))
