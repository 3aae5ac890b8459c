"""Runs a pipeline in a separate process.

It is started by `benchmarks.pipeline` with a case as JSON. Its answers are lines of JSON:
first the costs of its start, then one for each line of standard input:

    {"steps": 3}       ->  loss, and seconds of wall and of processor time, of three more steps
    {"timeline": 1}    ->  when each call ran in one step, by TensorFlow's profiler
"""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import meshtf as mtf
from benchmarks.harness.case_server import serve
from meshtf.runtime.placed.program.function_calls import BRANCH_OPS, CALL_OPS

BLOCKS = 8
ROWS = 128
D_MODEL = 256
D_FF = 1024
_CALL = re.compile(r"call/(forward|backward)\.(\d+)\.(\d+)/")


@dataclasses.dataclass(frozen=True)
class Case:
    """The numbers of stages, of microbatches (of ROWS examples), and of chunks on each stage."""

    stages: int
    microbatches: int
    schedule: str = "1f1b"
    chunks: int = 1

    @property
    def name(self) -> str:
        return f"{self.stages} stages, {self.microbatches} microbatches"

    def dump(self) -> str:
        """Returns it as JSON."""
        return json.dumps(dataclasses.asdict(self))


class Block(mtf.Module):
    """A pre-norm residual feed-forward layer."""

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


def make(case: Case) -> Any:
    """Returns a training step, a function of x and labels `[batch, d_model]`."""
    several = case.stages > 1
    mesh = mtf.Mesh(
        f"stage:{case.stages}" if several else "",
        seed=1,
        devices=f"separate:{case.stages}" if several else None,
    )
    pipe = mtf.pipeline.GPipe(
        [Block(mesh, f"block_{k}") for k in range(BLOCKS)],
        case.stages,
        case.microbatches,
        case.schedule,
        case.chunks,
    )
    variables = pipe.trainable_variables
    optimizer = mtf.optimizers.SGD(variables, 0.01)

    @mtf.function(
        mesh=mesh,
        x="batch;d_model",
        labels="batch;d_model",
    )
    def step(x: mtf.Tensor, labels: mtf.Tensor) -> mtf.Tensor:
        loss = pipe.loss(
            lambda y, labels: mtf.reduce_mean(mtf.square(y - labels)), x, labels
        )
        optimizer.apply_gradients(
            mtf.gradients([loss], variables), variables, mtf.zeros(mesh, "", "int32")
        )
        return loss

    return step


class Runner:
    """A case that has been built, and how it is made to step."""

    def __init__(self, case: Case):
        rng = np.random.default_rng(0)
        self.batch = [
            tf.constant(
                rng.normal(size=[ROWS * case.microbatches, D_MODEL]), tf.float32
            )
            for _ in range(2)
        ]
        self.case = case
        start = time.perf_counter()
        processor = time.process_time()
        self.step = make(case)
        float(self.step(*self.batch))
        self.start = {
            "first": time.perf_counter() - start,
            "first_cpu": time.process_time() - processor,
        }

    def steps(self, count: int) -> dict[str, list[float]]:
        """Takes steps and returns what each of them took."""
        results: dict[str, list[float]] = {"loss": [], "wall": [], "cpu": []}
        for _ in range(count):
            start = time.perf_counter()
            processor = time.process_time()
            results["loss"].append(float(self.step(*self.batch)))
            results["wall"].append(time.perf_counter() - start)
            results["cpu"].append(time.process_time() - processor)
        return results

    def timeline(self, count: int) -> list[tuple[str, int, int, float, float]]:
        """Returns the calls of a step: what, chunk, microbatch, start and end in
        milliseconds.
        """
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
        calls: dict[tuple[str, int, int], list[float]] = {}
        for (phase, chunk, microbatch), at in _calls(space):
            calls.setdefault((phase, chunk, microbatch), []).append(at)
        return [(*call, min(times), max(times)) for call, times in calls.items()]


def _calls(space: Any) -> Iterator[tuple[tuple[str, int, int], float]]:
    """Yields a call and a time at which something of it started or ended."""
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                kind = plane.event_metadata[event.metadata_id].name
                if not kind.startswith(
                    "ExecutorState::ProcessAsync"
                ):  # its start and its end
                    continue
                stats = {
                    plane.stat_metadata[s.metadata_id].name: plane.stat_metadata[
                        s.ref_value
                    ].name
                    for s in event.stats
                }
                call = _CALL.match(stats.get("name", ""))
                if call and stats.get("kernel_type") in (*BRANCH_OPS, *CALL_OPS):
                    phase, chunk, microbatch = call.groups()
                    yield (
                        (phase, int(chunk), int(microbatch)),
                        (line.timestamp_ns / 1e6 + event.offset_ps / 1e9),
                    )


def start(text: str) -> Runner:
    """Returns the runner of a case, on as many threads as it has stages."""
    case = Case(**json.loads(text))
    tf.config.threading.set_inter_op_parallelism_threads(case.stages)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    mtf.configure_process()
    mtf.logical_devices(case.stages)
    return Runner(case)


if __name__ == "__main__":
    serve(start)
