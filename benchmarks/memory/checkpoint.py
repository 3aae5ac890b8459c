"""Checkpoints against tf.train.Checkpoint: throughput, and how long a training loop waits.

    python -m benchmarks.memory.checkpoint                       # two minutes on an idle machine
    python -m benchmarks.memory.checkpoint --megabytes=2048 --rounds=9 --json=results.json

All cases run in turn in one process, on equal data and the same disk. A ratio is the
throughput over that of tf.train.Checkpoint, the median over rounds; above 1 is faster. All
cases write to the page cache, since none calls fsync. The stall is the
time that the loop waits in an asynchronous `save`. The benchmark also measures how much
longer steps take while a checkpoint is written in the background.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer.cli.program import run_main

_MEGABYTES = flags.DEFINE_integer(
    "megabytes", 512, "The size of a checkpoint in MiB.", lower_bound=8
)
_TENSORS = flags.DEFINE_integer(
    "tensors", 16, "The number of variables in a checkpoint.", lower_bound=1
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 5, "How often each case is measured.", lower_bound=1
)
_FOLDER = flags.DEFINE_string(
    "folder",
    None,
    "A folder on the disk that is measured; default: the system's folder for temporary "
    "files.",
)
_JSON = flags.DEFINE_string(
    "json", None, "A file for all numbers.", allow_override=True
)

# Arguments of `mtf.Mesh`.
LAYOUTS = {
    "one device": {"axes": ""},
    "fsdp of 8": {
        "axes": "data:8",
        "variable_layout": "d:data",
        "devices": "logical:8",
    },
}


class Case(NamedTuple):
    """A way to save and restore a checkpoint.

    Attributes:
      save: the function that saves a checkpoint in a folder, given its path.
      restore: the function that restores that checkpoint.
    """

    save: Callable[[str], Any]
    restore: Callable[[str], Any]


def main(argv: Sequence[str]) -> None:
    """Measures, prints tables, and writes JSON."""
    mtf.logical_devices(8)
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        case_seconds = measure_cases(Path(folder))
        stall_seconds = measure_stall(Path(folder))
    print(_report(case_seconds, stall_seconds))
    if _JSON.value:
        Path(_JSON.value).write_text(
            json.dumps({"throughput": case_seconds, "stall": stall_seconds}, indent=2)
        )


def measure_cases(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Returns the seconds of saving and restoring in each round: by case, then "save" or
    "restore".
    """
    # The variables are float32 [num_rows, 1024]. Eight positions (the virtual devices of the
    # mesh) shard the rows, so their number is a multiple of 8.
    bytes_per_row = 4 * 1024
    num_rows = _MEGABYTES.value * 2**20 // (bytes_per_row * _TENSORS.value) // 8 * 8
    array = np.random.default_rng(0).normal(size=(num_rows, 1024)).astype("float32")
    cases = {"tf.train.Checkpoint": _tensorflow_case(array)}
    for name, mesh_arguments in LAYOUTS.items():
        cases[f"meshtf, {name}"] = _meshtf_case(array, mesh_arguments)
    results: dict[str, dict[str, list[float]]] = {
        name: {"save": [], "restore": []} for name in cases
    }
    for round_index in range(_ROUNDS.value + 1):
        for name, case in cases.items():
            path = str(folder / "checkpoint")
            save_seconds = _seconds(functools.partial(case.save, path))
            restore_seconds = _seconds(functools.partial(case.restore, path))
            shutil.rmtree(path)
            if round_index > 0:  # the first round warms up
                results[name]["save"].append(save_seconds)
                results[name]["restore"].append(restore_seconds)
    return results


class TrainingLoop(NamedTuple):
    """A model that takes training steps.

    Attributes:
      step: the function that takes a step, and waits until it is done.
      variables: the variables of the model and of its optimizer, by name.
    """

    step: Callable[[], Any]
    variables: dict[str, mtf.Variable]


def make_training_loop() -> TrainingLoop:
    """Returns a loop whose variables have --megabytes."""
    mesh = mtf.Mesh("data:2", layout="batch:data")
    # Four float32 matrices [size, size], and two moments of Adam for each of them.
    size = int((_MEGABYTES.value * 2**20 / (4 * 4 * 3)) ** 0.5) // 8 * 8
    initializer = mtf.layers.initializers.normal(0.01)
    weights = [
        mtf.Variable(mesh, f"d:{size}; e:{size}", initializer, name=f"w{k}")
        for k in range(4)
    ]
    adam = mtf.optimizers.Adam(weights)

    @mtf.function(x="batch; d", step="")
    def train_step(x: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
        """Updates all variables for x[batch, d], and returns the loss, a scalar."""
        h = x
        for weight in weights:
            h = mtf.rename(mtf.tanh(mtf.einsum([h, weight], "batch; e")), "e", "d")
        loss = mtf.reduce_mean(mtf.square(h))
        adam.apply_gradients(mtf.gradients([loss], weights), weights, step)
        return loss

    x = np.ones((64, size), "float32")
    return TrainingLoop(
        step=lambda: float(train_step(x, np.int32(0))),
        variables={v.name: v for v in (*weights, *adam.variables)},
    )


def measure_stall(folder: Path) -> dict[str, list[float]]:
    """Returns seconds in each round, by name:

    "save": the time of a synchronous save;
    "stall": the time of the call that starts an asynchronous save;
    "steps": the total extra time of the steps taken during the asynchronous save;
    "step": the time of one step while nothing is saved.
    """
    loop = make_training_loop()

    def save() -> None:
        """Saves a checkpoint synchronously."""
        mtf.checkpoints.save(str(folder / "run"), step=1, variables=loop.variables)

    def take_steps(count: int) -> None:
        for _ in range(count):
            loop.step()

    saver = mtf.checkpoints.Saver(str(folder / "background"), keep=1, asynchronous=True)
    results: dict[str, list[float]] = {"save": [], "stall": [], "steps": [], "step": []}
    for round_index in range(_ROUNDS.value + 1):
        save_seconds = _seconds(save)
        stall_seconds = _seconds(
            functools.partial(saver.save, step=round_index, variables=loop.variables)
        )
        start = time.perf_counter()
        num_steps = 0
        while saver.busy:
            take_steps(1)
            num_steps += 1
        seconds_during_save = time.perf_counter() - start
        saver.finish()
        # The same number of steps, while nothing is saved.
        seconds_without_save = _seconds(functools.partial(take_steps, num_steps))
        if round_index > 0:  # the first round warms up
            results["save"].append(save_seconds)
            results["stall"].append(stall_seconds)
            results["steps"].append(seconds_during_save - seconds_without_save)
            results["step"].append(seconds_without_save / max(num_steps, 1))
    return results


def _tensorflow_case(array: np.ndarray) -> Case:
    """Returns the case of tf.train.Checkpoint, with variables equal to an array."""
    variables = {f"v{k}": tf.Variable(array) for k in range(_TENSORS.value)}
    checkpoint = tf.train.Checkpoint(**variables)
    return Case(
        save=lambda path: checkpoint.write(f"{path}/c"),
        restore=lambda path: checkpoint.read(f"{path}/c").assert_consumed(),
    )


def _meshtf_case(array: np.ndarray, mesh_arguments: dict[str, Any]) -> Case:
    """Returns the case of meshtf on a mesh, with variables equal to an array."""
    mesh = mtf.Mesh(**mesh_arguments)
    variables = {
        f"v{k}": mtf.Variable(
            mesh,
            f"d:{len(array)}; e:1024",
            initializer=lambda mesh, shape, name: mtf.asarray(mesh, array, shape),
            name=f"v{k}",
        )
        for k in range(_TENSORS.value)
    }
    return Case(
        save=lambda path: mtf.checkpoints.save(path, step=1, variables=variables),
        restore=lambda path: mtf.checkpoints.restore(
            f"{path}/step_00000001", variables
        ),
    )


def _seconds(function: Callable[[], Any]) -> float:
    """Returns the wall time of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _report(
    case_seconds: dict[str, dict[str, list[float]]],
    stall_seconds: dict[str, list[float]],
) -> str:
    """Returns a table of throughput, and a sentence about the stall.

    Args:
      case_seconds: the result of `measure_cases`.
      stall_seconds: the result of `measure_stall`.
    """
    megabytes = _MEGABYTES.value * 2**20 / 1e6
    baseline = case_seconds["tf.train.Checkpoint"]
    lines = [
        f"{_MEGABYTES.value:,} MiB in {_TENSORS.value} tensors, medians of "
        f"{_ROUNDS.value} rounds",
        "ratio: throughput over that of tf.train.Checkpoint; above 1 is faster",
        f"{'':24}{'save':>12}{'ratio':>8}{'restore':>12}{'ratio':>8}",
    ]
    for name, seconds in case_seconds.items():
        columns = ""
        for operation in ("save", "restore"):
            rate = megabytes / statistics.median(seconds[operation])
            # The seconds of the baseline over those of the case: a ratio of throughputs.
            ratio = _median_ratio(baseline[operation], seconds[operation])
            columns += f"{rate:>7.0f} MB/s{ratio:>8.2f}"
        lines.append(f"{name:24}{columns}")
    medians = {key: statistics.median(times) for key, times in stall_seconds.items()}
    stall_fraction = _median_ratio(stall_seconds["stall"], stall_seconds["save"])
    steps_fraction = _median_ratio(stall_seconds["steps"], stall_seconds["save"])
    lines += [
        "",
        f"a synchronous save takes {medians['save']:.2f} s; with an asynchronous save the "
        f"loop waits {medians['stall'] * 1e3:.1f} ms, {stall_fraction:.1%} of a "
        f"synchronous save, and steps of {medians['step']:.2f} s take "
        f"{medians['steps']:.2f} s longer in total, {steps_fraction:.0%} of a synchronous "
        "save",
    ]
    return "\n".join(lines)


def _median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Returns the median over rounds of the ratio of two measurements of each round."""
    ratios = [
        numerator / denominator
        for numerator, denominator in zip(numerators, denominators, strict=True)
    ]
    return statistics.median(ratios)


if __name__ == "__main__":
    run_main(main)
