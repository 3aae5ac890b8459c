"""Runs a pipeline in a separate process.

It is started by `benchmarks.pipeline` with a case as JSON. Its answers are lines of JSON:
first the costs of its start, then one for each request, a line of standard input that names
a method of `Runner` and has its argument. A call runs a chunk
(a sequence of layers that a stage runs without a break) on a microbatch, forward or
backward:

    {"steps": 3}       ->  loss, and seconds of wall and of processor time, of three more steps
    {"timeline": 1}    ->  the start and the end of each call in one step, by TensorFlow's
                           profiler
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import meshtf as mtf
from benchmarks.harness.case_server import serve
from benchmarks.harness.clocks import now
from meshtf.runtime.placed.program.function_calls import BRANCH_OPS, CALL_OPS

BLOCKS = 8
MICROBATCH_SIZE = 128
D_MODEL = 256
D_FF = 1024
# The names of ops that call a chunk: phase, chunk and microbatch.
_CALL = re.compile(r"call/(forward|backward)\.(\d+)\.(\d+)/")


@dataclasses.dataclass(frozen=True)
class Case:
    """A pipeline.

    Attributes:
      stages: the number of stages.
      microbatches: the number of microbatches, each of MICROBATCH_SIZE examples.
      schedule: the schedule of the pipeline, such as "gpipe" or "1f1b".
      chunks: the number of chunks on each stage.
    """

    stages: int
    microbatches: int
    schedule: str = "1f1b"
    chunks: int = 1

    @property
    def name(self) -> str:
        """The name of the case in errors."""
        return f"{self.stages} stages, {self.microbatches} microbatches"

    def dump(self) -> str:
        """Returns the case as JSON."""
        return json.dumps(dataclasses.asdict(self))


class Block(mtf.Module):
    """A pre-norm residual feed-forward layer: x[batch, d_model] -> [batch, d_model]."""

    def __init__(self, mesh: mtf.Mesh, name: str):
        super().__init__(name)
        with self.scope():
            self.norm = mtf.layers.LayerNorm(mesh, f"d_model:{D_MODEL}", name="norm")
            self.ff = mtf.layers.FeedForward(
                mesh,
                f"d_model:{D_MODEL}",
                f"d_ff:{D_FF}",
                name="ff",
            )

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        return x + self.ff(self.norm(x))


def make_step(case: Case) -> Any:
    """Returns a training step, a function of x and labels `[batch, d_model]`."""
    has_stages = case.stages > 1
    mesh = mtf.Mesh(
        f"stage:{case.stages}" if has_stages else "",
        seed=1,
        devices=f"separate:{case.stages}" if has_stages else None,
    )
    pipe = mtf.pipeline.GPipe(
        [Block(mesh, f"block_{k}") for k in range(BLOCKS)],
        stages=case.stages,
        microbatches=case.microbatches,
        schedule=case.schedule,
        chunks=case.chunks,
    )
    variables = pipe.trainable_variables
    optimizer = mtf.optimizers.SGD(variables, learning_rate=0.01)

    @mtf.function(
        mesh=mesh,
        x="batch;d_model",
        labels="batch;d_model",
    )
    def step(x: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor:
        """Updates the variables, and returns the loss, a scalar."""
        loss = pipe.loss(
            lambda y, labels: mtf.reduce_mean(mtf.square(y - labels)), x, labels
        )
        gradients = mtf.gradients([loss], variables)
        step_index = mtf.zeros(mesh, "", "int32")  # plain SGD does not depend on it
        optimizer.apply_gradients(gradients, variables, step_index)
        return loss

    return step


class Call(NamedTuple):
    """A call of a chunk on a microbatch.

    Attributes:
      phase: "forward" or "backward".
      chunk: the index of the chunk, among those of all stages.
      microbatch: the index of the microbatch.
    """

    phase: str
    chunk: int
    microbatch: int


class TimedCall(NamedTuple):
    """A `Call` with its start and its end in milliseconds."""

    phase: str
    chunk: int
    microbatch: int
    start: float
    end: float


class Runner:
    """Builds a case, takes its first step, and answers requests: see the module.

    Attributes:
      start_costs: the seconds of building the case and its first step: "first", and
        "first_cpu" of processor time.
    """

    def __init__(self, case: Case):
        rng = np.random.default_rng(0)
        shape = [MICROBATCH_SIZE * case.microbatches, D_MODEL]
        x = tf.constant(rng.normal(size=shape), tf.float32)
        labels = tf.constant(rng.normal(size=shape), tf.float32)
        self.batch = [x, labels]
        self.case = case
        start = now()
        self.step = make_step(case)
        float(self.step(*self.batch))  # waits until the step is done
        seconds = now().since(start)
        self.start_costs = {"first": seconds.wall, "first_cpu": seconds.processor}

    def steps(self, count: int) -> dict[str, list[float]]:
        """Takes steps, and returns their losses ("loss"), and their seconds of wall time
        ("wall") and of processor time ("cpu").
        """
        results: dict[str, list[float]] = {"loss": [], "wall": [], "cpu": []}
        for _ in range(count):
            start = now()
            results["loss"].append(float(self.step(*self.batch)))
            seconds = now().since(start)
            results["wall"].append(seconds.wall)
            results["cpu"].append(seconds.processor)
        return results

    def timeline(self, count: int) -> list[TimedCall]:
        """Takes `count` steps, and returns their calls of chunks on microbatches."""
        with tempfile.TemporaryDirectory() as folder:
            options = tf.profiler.experimental.ProfilerOptions(
                host_tracer_level=2, python_tracer_level=0
            )
            tf.profiler.experimental.start(folder, options)
            for _ in range(count):
                self.step(*self.batch)
            tf.profiler.experimental.stop()
            (path,) = Path(folder).rglob("*.xplane.pb")
            space = xplane_pb2.XSpace.FromString(path.read_bytes())
        # The times at which each call starts and ends.
        times_of_calls: dict[Call, list[float]] = {}
        for call, milliseconds in _events_of_calls(space):
            times_of_calls.setdefault(call, []).append(milliseconds)
        return [
            TimedCall(*call, start=min(times), end=max(times))
            for call, times in times_of_calls.items()
        ]


def _events_of_calls(space: Any) -> Iterator[tuple[Call, float]]:
    """Yields for each event of a call, its start and its end, the call and the time in
    milliseconds.
    """
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                # An asynchronous op has an event at its start and another one at its end.
                event_name = plane.event_metadata[event.metadata_id].name
                if not event_name.startswith("ExecutorState::ProcessAsync"):
                    continue
                stats = {}
                for stat in event.stats:
                    key = plane.stat_metadata[stat.metadata_id].name
                    stats[key] = plane.stat_metadata[stat.ref_value].name
                match = _CALL.match(stats.get("name", ""))
                if match and stats.get("kernel_type") in (*BRANCH_OPS, *CALL_OPS):
                    phase, chunk, microbatch = match.groups()
                    call = Call(phase, int(chunk), int(microbatch))
                    yield call, line.timestamp_ns / 1e6 + event.offset_ps / 1e9


def start_runner(text: str) -> Runner:
    """Returns the runner of a case, given as JSON, on as many threads as it has stages."""
    case = Case(**json.loads(text))
    tf.config.threading.set_inter_op_parallelism_threads(case.stages)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    mtf.configure_process()
    mtf.logical_devices(case.stages)
    return Runner(case)


if __name__ == "__main__":
    serve(start_runner)
