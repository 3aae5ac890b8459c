"""Checkpoints against tf.train.Checkpoint: throughput, and how long a training loop waits.

    python -m benchmarks.memory.checkpoint                       # two minutes on an idle machine
    python -m benchmarks.memory.checkpoint --megabytes=2048 --rounds=9 --json=results.json

All cases run in turn in one process, on equal data and the same disk; ratios are medians
over rounds. All of them write to the page cache, since none calls fsync. The stall is the
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
    """A way to save and restore a checkpoint: functions of the path of a folder."""

    save: Callable[[str], Any]
    restore: Callable[[str], Any]


def main(argv: Sequence[str]) -> None:
    """Measures, prints tables, and writes JSON."""
    mtf.logical_devices(8)
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        rates = throughput(Path(folder))
        stalls = stall(Path(folder))
    print(_report(rates, stalls))
    if _JSON.value:
        Path(_JSON.value).write_text(
            json.dumps({"throughput": rates, "stall": stalls}, indent=2)
        )


def throughput(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Returns the seconds of saving and restoring in each round, by case."""
    # The variables are float32 [d, 1024]; eight positions shard d.
    d = _MEGABYTES.value * 2**20 // (4 * 1024 * _TENSORS.value) // 8 * 8
    array = np.random.default_rng(0).normal(size=(d, 1024)).astype("float32")
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


def stall(folder: Path) -> dict[str, list[float]]:
    """Returns seconds in each round: of a synchronous save ("save"), of waiting in an
    asynchronous save ("stall"), by which all steps during the asynchronous save took longer
    ("steps"), and of one step ("step").
    """
    mesh = mtf.Mesh("data:2", "batch:data")
    # Four float32 matrices [size, size], and two moments of Adam for each of them.
    size = int((_MEGABYTES.value * 2**20 / (4 * 4 * 3)) ** 0.5) // 8 * 8
    initializer = mtf.layers.initializers.normal(0.01)
    w = [
        mtf.Variable(mesh, f"d:{size}; e:{size}", initializer, name=f"w{k}")
        for k in range(4)
    ]
    adam = mtf.optimizers.Adam(w)

    @mtf.function(x="batch; d", step="")
    def step(x: mtf.Tensor, step: mtf.Tensor) -> mtf.Tensor:
        h = x
        for v in w:
            h = mtf.rename(mtf.tanh(mtf.einsum([h, v], "batch; e")), "e", "d")
        loss = mtf.reduce_mean(mtf.square(h))
        adam.apply_gradients(mtf.gradients([loss], w), w, step)
        return loss

    x = np.ones((64, size), "float32")

    def run_steps(count: int) -> None:
        for _ in range(count):
            float(step(x, np.int32(0)))

    state = {v.name: v for v in (*w, *adam.variables)}
    saver = mtf.checkpoints.Saver(str(folder / "background"), keep=1, asynchronous=True)
    results: dict[str, list[float]] = {"save": [], "stall": [], "steps": [], "step": []}
    for round_index in range(_ROUNDS.value + 1):
        save_seconds = _seconds(
            lambda: mtf.checkpoints.save(str(folder / "run"), 1, state)
        )
        stall_seconds = _seconds(functools.partial(saver.save, round_index, state))
        start = time.perf_counter()
        num_steps = 0
        while saver.busy:
            run_steps(1)
            num_steps += 1
        seconds_during_save = time.perf_counter() - start
        saver.finish()
        # As many steps, while nothing is saved.
        seconds_without_save = _seconds(functools.partial(run_steps, num_steps))
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
            lambda mesh, shape, name: mtf.asarray(mesh, array, shape),
            name=f"v{k}",
        )
        for k in range(_TENSORS.value)
    }
    return Case(
        save=lambda path: mtf.checkpoints.save(path, 1, variables),
        restore=lambda path: mtf.checkpoints.restore(
            f"{path}/step_00000001", variables
        ),
    )


def _seconds(work: Callable[[], Any]) -> float:
    """Returns the wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _report(
    rates: dict[str, dict[str, list[float]]], stalls: dict[str, list[float]]
) -> str:
    """Returns a table of throughput, and a sentence about the stall.

    Args:
      rates: the result of `throughput`.
      stalls: the result of `stall`.
    """
    size = _MEGABYTES.value * 2**20 / 1e6
    plain = next(iter(rates.values()))
    lines = [
        f"{_MEGABYTES.value:,} MiB in {_TENSORS.value} tensors, medians of "
        f"{_ROUNDS.value}",
        f"{'':24}{'save':>12}{'ratio':>8}{'restore':>12}{'ratio':>8}",
    ]
    for name, times in rates.items():
        columns = ""
        for operation in ("save", "restore"):
            ratio = statistics.median(
                plain_seconds / seconds
                for plain_seconds, seconds in zip(plain[operation], times[operation])
            )
            columns += (
                f"{size / statistics.median(times[operation]):>7.0f} MB/s{ratio:>8.2f}"
            )
        lines.append(f"{name:24}{columns}")
    seconds = {name: statistics.median(times) for name, times in stalls.items()}
    stall_share, steps_share = (
        statistics.median(x / y for x, y in zip(stalls[name], stalls["save"]))
        for name in ("stall", "steps")
    )
    lines += [
        "",
        f"saving takes {seconds['save']:.2f} s; in the background the loop waits "
        f"{seconds['stall'] * 1e3:.1f} ms, {stall_share:.1%} of it, and steps of "
        f"{seconds['step']:.2f} s take {seconds['steps']:.2f} s longer in all, "
        f"{steps_share:.0%} of it",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run_main(main)
