"""Runs one case of `benchmarks.growth` in a separate process.

It is started with a case as JSON, and answers requests with lines of JSON:

    {"first": 1}     ->  seconds of the first step and of its parts, and the program's sizes
    {"steps": 3}     ->  seconds of wall and of processor time of each of three more steps

The clock of the first step starts after the imports, when the data is ready. Its parts:
building the variables; recording and planning (hand-written: tracing); TensorFlow's
tracing and the run.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

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

Marks = list[tuple[float, float]]  # of both clocks
_STEP = np.int32(0)


class Meshed(MeshModel):
    """The model of a case, with Adam."""

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
            c.learning_rate,
            c.beta1,
            c.beta2,
            c.epsilon,
        )
        self.step = 0


def model(mesh: mtf.Mesh, case: Case) -> Model:
    """Returns a case's model."""
    if not case.scanned and case.attention == "full":
        return build(mesh, case.config)
    known = build(mtf.Mesh("", devices="abstract"), case.config)
    return LanguageModel(
        mesh,
        dataclasses.replace(
            known.architecture, scanned=case.scanned, attention=case.attention
        ),
        z_loss=0.0,
    )


class Runner(worker.Runner):
    """A case that takes steps; its first step is measured in parts."""

    def __init__(self, case: Case) -> None:
        self.case, self.config = case, case.config
        self.batches = batches(case.config)
        self.count = 0
        self.start = {}

    def first(self, count: int = 1) -> dict[str, float]:
        """Takes the first step; returns the seconds of its parts, and the numbers of ops."""
        del count
        marks = [_now()]
        parts_of = (self._meshed if self.case.meshed else self._by_hand)(marks)
        durations = zip(
            ("build_cpu", "plan_cpu", "run_cpu"), itertools.pairwise(marks), strict=True
        )
        return {
            "first": marks[-1][0] - marks[0][0],
            "first_cpu": marks[-1][1] - marks[0][1],
            **{key: after[1] - before[1] for key, (before, after) in durations},
            **sizes_of(*parts_of()),
            **({"memory": self._forecast()} if self.case.forecast else {}),
        }

    def _forecast(self) -> float:
        """Returns the forecast of the peak of bytes on one position."""
        specs = {
            name: tf.TensorSpec(x.shape, x.dtype) for name, x in self.batches[0].items()
        }
        return mtf.explain(
            Meshed(self.case, "abstract").recorded(), specs, _STEP
        ).memory.peak

    def _meshed(self, marks: Marks) -> Callable[[], Any]:
        warnings.simplefilter("ignore", mtf.LayoutWarning)
        if (self.case.devices or "").startswith("logical:"):
            mtf.logical_devices(int(str(self.case.devices).partition(":")[2]))
        own = Meshed(self.case, self.case.devices)
        marks.append(_now())
        train = own.recorded()
        program = train.lower(self.batches[0], _STEP)
        marks.append(_now())
        self.step = lambda batch: train(batch, _STEP)
        self.one()
        marks.append(_now())
        return lambda: (program.definition.node_def, program.called_definitions)

    def _by_hand(self, marks: Marks) -> Callable[[], Any]:
        own = (PlainMoE if self.config.model == "moe" else PlainLM)(self.config)
        marks.append(_now())
        self.step = train = own.train_step()
        marks.append(_now())
        self.one()
        marks.append(_now())

        def parts_of() -> tuple[Any, Any]:
            graph = train.get_concrete_function(self.batches[0]).graph.as_graph_def()
            return graph.node, graph.library.function

        return parts_of


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def sizes_of(nodes: Sequence[Any], functions: Sequence[Any]) -> dict[str, int]:
    """Returns the numbers of ops outside of segments, of calls, of segments, and of all ops."""
    calls = [name for name in map(called, nodes) if name]
    return {
        "outer": len(nodes),
        "calls": len(calls),
        "segments": len(set(calls)),
        "traced": len(nodes) + sum(len(f.node_def) for f in functions),
    }


if __name__ == "__main__":
    mtf.configure_process()
    serve(lambda text: Runner(Case.load(text)))
