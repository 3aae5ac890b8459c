"""The predicted step of GPT as a pipeline of stages with data and tensor parallelism.

    steps = StepTimes(runs, GptPrograms())
    steps.seconds(Constants.of(as_hardware("a100")))       # one for each run

The seconds of a layer, of the embedding and of the head are those of forecasts
(`gpt_programs`). The schedule 1F1B, `meshtf.pipeline.simulate`, says how they add up: each run
has a critical path of forward and backward passes and sends. After the last microbatch
gradients are reduced, without overlap, and the optimizer runs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.regret.published_steps.gpt_programs import (
    GptPrograms,
    MegatronDurations,
    Seconds,
)
from benchmarks.regret.published_steps.published import Run
from meshtf.forecast.time.durations import Sizes
from meshtf.hardware import CollectiveTimes, Hardware
from meshtf.pipeline.schedule import Schedule, Task, interleaved
from meshtf.pipeline.simulator import simulate

_VOCAB = 50_257  # of GPT-2, which vTrain's configuration has
_VOCAB_MULTIPLE = 128  # for each tensor-parallel device; Megatron pads to it
_HALF = 2.0  # bytes of weights, gradients and activations
_OPTIMIZER_BYTES = (
    28.0  # Adam reads a gradient, and reads and writes three float32 values
)

_schedule = functools.cache(interleaved)  # one chunk: 1F1B


@dataclasses.dataclass(frozen=True)
class Constants:
    """What a prediction depends on besides the run.

    Attributes:
      hardware: the profile.
      gradient_share: the fraction of a link's bandwidth that the reduction of gradients
        reaches.
      microbatch_seconds: the seconds of a stage for each microbatch besides its ops.
      step_seconds: the seconds of a step besides its microbatches.
    """

    hardware: Hardware
    gradient_share: float = 1.0
    microbatch_seconds: float = 0.0
    step_seconds: float = 0.0


class Path(NamedTuple):
    """The critical path of a step: how often it has what. Each entry is a number, or an array
    with an entry for each run.

    Attributes:
      forward, backward: passes of a stage.
      embed_forward, embed_backward: those of the stage with the embedding.
      head_forward, head_backward: those of the stage with the head.
      sends: sends between stages.
    """

    forward: Any
    backward: Any
    embed_forward: Any
    embed_backward: Any
    head_forward: Any
    head_backward: Any
    sends: Any


class Work(NamedTuple):
    """The seconds of what the critical paths of runs have: an entry for each run."""

    stage: Seconds
    embed: Seconds
    head: Seconds
    send: Any

    def along(self, path: Path) -> Any:
        """Returns the seconds of a path."""
        return (
            path.forward * self.stage.forward
            + path.backward * self.stage.backward
            + path.embed_forward * self.embed.forward
            + path.embed_backward * self.embed.backward
            + path.head_forward * self.head.forward
            + path.head_backward * self.head.backward
            + path.sends * self.send
        )


class StepTimes:
    """Predicts the steps of runs.

    Args:
      runs: the runs.
      programs: the recorded pieces of GPT.
      chunks: the count of groups of layers of each stage, in an interleaved schedule.
    """

    def __init__(
        self, runs: Sequence[Run], programs: GptPrograms, chunks: int = 1
    ) -> None:
        self.runs = runs
        self._programs = programs
        self._chunks = chunks
        columns = {name: _column(runs, name) for name in Run._fields[1:-1]}
        self._degrees = columns
        for name in ("hidden", "heads", "layers", "length"):
            columns[name] = np.array([getattr(run.job, name) for run in runs])
        # Runs of equal local sizes share the time of their layers.
        keys = ("micro_batch", "hidden", "heads", "length", "tensor")
        sizes, self._kind_of_run = np.unique(
            np.stack([columns[key] for key in keys]), axis=1, return_inverse=True
        )
        self._kind_of_run = self._kind_of_run.reshape(-1)
        self._sizes = _sizes(programs.sizes, **dict(zip(keys, sizes)))
        self._paths: Path | None = None
        self._recomputes = np.array([run.job.recomputes for run in runs])

    def seconds(
        self, constants: Constants, factors: Any = 1.0, same_paths: bool = False
    ) -> np.ndarray:
        """Returns the predicted seconds of each run.

        Args:
          constants: the profile, and the constants of the runs.
          factors: what the seconds of a layer are multiplied with, for each run.
          same_paths: whether the critical paths are those of the last call.
        """
        work = self._work(constants, factors)
        if self._paths is None or not same_paths:
            self._paths = self._critical_paths(work)
        return work.along(self._paths) + self._after_microbatches(constants)

    def layer_share(self, constants: Constants, factors: Any = 1.0) -> np.ndarray:
        """Returns the fraction of each predicted step that layers take."""
        with_layers = self.seconds(constants, factors)
        without = self.seconds(constants, 0.0, same_paths=True)
        return 1.0 - without / with_layers

    def _work(self, constants: Constants, factors: Any) -> Work:
        """Returns the seconds of the passes of each run."""
        hardware = dataclasses.replace(constants.hardware, overlaps=False)
        durations = MegatronDurations(hardware, self._programs.mesh, self._sizes)
        programs = self._programs
        layer, embed, head = (
            self._by_run(piece.seconds(durations))
            for piece in (programs.layer, programs.embed, programs.head)
        )
        degrees = self._degrees
        layers = degrees["layers"] / degrees["pipeline"] * factors
        forward = layers * layer.forward
        backward = layers * (layer.backward + self._recomputes * layer.forward)
        sent = _HALF * degrees["micro_batch"] * degrees["length"] * degrees["hidden"]
        collectives = self._collectives(hardware)
        send = collectives.seconds("send", ("stage",), sent)
        stage = Seconds(forward + constants.microbatch_seconds, backward)
        return Work(stage, embed, head, send)

    def _by_run(self, seconds: Seconds) -> Seconds:
        """Returns the seconds of each run for those of each kind of runs."""
        count = int(self._kind_of_run.max()) + 1
        forward, backward = (
            np.broadcast_to(values, (count,))[self._kind_of_run] for values in seconds
        )
        return Seconds(forward, backward)

    def _collectives(self, hardware: Hardware) -> CollectiveTimes:
        """Returns the times of collectives. As in Megatron, tensor-parallel devices are
        neighbours, and stages are farthest from each other.
        """
        degrees = self._degrees
        axes = {
            "stage": degrees["pipeline"],
            "data": degrees["data"],
            "model": degrees["tensor"],
        }
        return CollectiveTimes(hardware, axes)

    def _after_microbatches(self, constants: Constants) -> np.ndarray:
        """Returns the seconds between the last microbatch and the end of the step."""
        degrees = self._degrees
        hardware = constants.hardware
        hidden, tensor = degrees["hidden"], degrees["tensor"]
        vocab = _padded_vocab(tensor)
        table = vocab * hidden
        layers = (
            degrees["layers"] / degrees["pipeline"] * (12 * hidden**2 + 13 * hidden)
        )
        parameters = (layers + table + degrees["length"] * hidden) / tensor
        collectives = self._collectives(hardware)
        data = degrees["data"]
        received = 2 * (data - 1) / data * _HALF * parameters
        reduction = collectives.seconds(
            "all_reduce", ("data",), received / constants.gradient_share
        )
        # The embedding and the head share a table: two stages add up its gradients.
        tied = collectives.seconds("send", ("stage",), _HALF * table / tensor)
        optimizer = _OPTIMIZER_BYTES * parameters / hardware.memory_bandwidth
        return reduction + tied + optimizer + constants.step_seconds

    def _critical_paths(self, work: Work) -> Path:
        """Returns the critical path of each run."""
        paths = [self._critical_path(i, work) for i in range(len(self.runs))]
        return Path(*np.array(paths, dtype=float).T)

    def _critical_path(self, i: int, work: Work) -> Path:
        """Returns the critical path of run i."""
        run = self.runs[i]
        stages = run.pipeline
        if stages == 1:
            count = run.microbatches
            return Path(count, count, count, count, count, count, 0)
        chunks = self._chunks
        costs = []
        for kind in range(2):
            cost = [float(work.stage[kind][i]) / chunks] * (stages * chunks)
            cost[0] += float(work.embed[kind][i])
            cost[-1] += float(work.head[kind][i])
            costs.append(cost)
        schedule = _schedule(stages, run.microbatches, chunks)
        return critical_path(schedule, *costs, send=float(work.send[i]))


def critical_path(
    schedule: Schedule,
    forward: Sequence[float],
    backward: Sequence[float],
    send: float,
) -> Path:
    """Returns the critical path of a schedule: from the last task back to the task that each
    waited for. The arguments are those of `meshtf.pipeline.simulate`.
    """
    timeline = simulate(schedule, forward, backward, send=send)
    ends = {span.task: span.end for span in timeline.spans}
    previous: dict[Task, Task] = {}
    for tasks in schedule.tasks:
        previous.update(zip(tasks[1:], tasks))
    chunks = schedule.stages * schedule.chunks
    counts = {"forward": [0] * chunks, "backward": [0] * chunks}
    sends = 0
    task: Task | None = max(ends, key=ends.__getitem__)
    while task is not None:
        counts[task.kind][schedule.model_chunk(task)] += 1
        source = schedule.before(task)
        neighbour = previous.get(task)
        is_sent = source is not None and source.stage != task.stage
        source_end = -1.0 if source is None else ends[source] + send * is_sent
        neighbour_end = -1.0 if neighbour is None else ends[neighbour]
        if neighbour_end >= source_end:
            task = neighbour
        else:
            task = source
            sends += is_sent
    return Path(
        sum(counts["forward"]) / schedule.chunks,
        sum(counts["backward"]) / schedule.chunks,
        counts["forward"][0],
        counts["backward"][0],
        counts["forward"][-1],
        counts["backward"][-1],
        sends,
    )


def _column(runs: Sequence[Run], name: str) -> np.ndarray:
    """Returns an attribute of each run."""
    return np.array([getattr(run, name) for run in runs])


def _padded_vocab(tensor: Any) -> Any:
    """Returns the size of the vocabulary, padded for a tensor-parallel degree."""
    multiple = _VOCAB_MULTIPLE * tensor
    return -(-_VOCAB // multiple) * multiple


def _sizes(
    planned: Mapping[str, int],
    micro_batch: Any,
    hidden: Any,
    heads: Any,
    length: Any,
    tensor: Any,
) -> Sizes:
    """Returns the sizes for which programs are timed, in place of those that they are planned
    for. The others are arrays with an entry for each kind of runs.
    """
    sizes = {
        "batch": micro_batch,
        "length": length,
        "kv_length": length,
        "positions": length,
        "d_model": hidden,
        "d_ff": 4 * hidden,
        "heads": heads,
        "d_kv": hidden // heads,
        "vocab": _padded_vocab(tensor),
    }
    dims = {(name, planned[name]): size for name, size in sizes.items()}
    return Sizes({"model": tensor}, dims)
