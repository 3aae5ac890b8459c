"""Checkpoints against tf.train.Checkpoint: throughput, and how long a training loop waits.

    python -m benchmarks.memory.checkpoint                       # two minutes on a quiet machine
    python -m benchmarks.memory.checkpoint --megabytes=2048 --rounds=9 --json=results.json

All cases run in turn in one process, on equal data and the same disk; ratios are medians
over rounds. All of them write to the page cache, since none calls fsync. The stall is the
time that the loop waits in an asynchronous `save`. The benchmark also measures how much
longer steps take while a checkpoint is written in the background.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # before TensorFlow is imported
import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer.cli.program import run_main

_MEGABYTES = flags.DEFINE_integer("megabytes", 512, "What is saved.", lower_bound=8)
_TENSORS = flags.DEFINE_integer(
    "tensors", 16, "How many tensors it is in.", lower_bound=1
)
_ROUNDS = flags.DEFINE_integer(
    "rounds", 5, "How often each case is measured.", lower_bound=1
)
_FOLDER = flags.DEFINE_string(
    "folder", None, "On the disk that is measured; default: /tmp or so."
)
_JSON = flags.DEFINE_string(
    "json", None, "A file for all numbers.", allow_override=True
)

LAYOUTS = {
    "one device": {"axes": ""},
    "fsdp of 8": {
        "axes": "data:8",
        "variable_layout": "d:data",
        "devices": "logical:8",
    },
}


def main(argv: Sequence[str]) -> None:
    """Measures, prints tables, and writes JSON."""
    mtf.logical_devices(8)
    with tempfile.TemporaryDirectory(dir=_FOLDER.value) as folder:
        rates = throughput(Path(folder))
        stalls = stall(Path(folder))
    print(_told(rates, stalls))
    if _JSON.value:
        Path(_JSON.value).write_text(
            json.dumps({"throughput": rates, "stall": stalls}, indent=2)
        )


def throughput(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Returns the seconds of saving and restoring in each round, by case."""
    rows = _MEGABYTES.value * 2**20 // (4 * 1024 * _TENSORS.value) // 8 * 8
    array = np.random.default_rng(0).normal(size=(rows, 1024)).astype("float32")
    cases = {"tf.train.Checkpoint": _plain(array)} | {
        f"meshtf, {name}": _ours(array, mesh) for name, mesh in LAYOUTS.items()
    }
    results: dict[str, dict[str, list[float]]] = {
        name: {"save": [], "restore": []} for name in cases
    }
    for round_index in range(_ROUNDS.value + 1):
        for name, (save, restore) in cases.items():
            path = folder / "checkpoint"
            times = {
                "save": _seconds(lambda s=save, t=path: s(str(t))),
                "restore": _seconds(lambda r=restore, t=path: r(str(t))),
            }
            shutil.rmtree(path)
            for operation, seconds in times.items():
                if round_index:  # the first one warms up
                    results[name][operation].append(seconds)
    return results


def stall(folder: Path) -> dict[str, list[float]]:
    """Returns the seconds, in each round, of a synchronous save, of waiting in an asynchronous
    save, by which all steps during that save took longer, and of one step.
    """
    mesh = mtf.Mesh("data:2", "batch:data")
    size = (
        int((_MEGABYTES.value * 2**20 / (4 * 4 * 3)) ** 0.5) // 8 * 8
    )  # Adam keeps two more
    draw = mtf.layers.initializers.normal(0.01)
    w = [
        mtf.Variable(
            mesh,
            f"d:{size}; e:{size}",
            draw,
            f"w{k}",
        )
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
    one = lambda: float(step(x, np.int32(0)))  # noqa: E731
    state = {v.name: v for v in (*w, *adam.variables)}
    saver = mtf.checkpoints.Saver(str(folder / "background"), keep=1, asynchronous=True)
    results: dict[str, list[float]] = {"save": [], "stall": [], "steps": [], "step": []}
    for round_index in range(_ROUNDS.value + 1):
        saved = _seconds(lambda: mtf.checkpoints.save(str(folder / "run"), 1, state))
        waited = _seconds(lambda k=round_index: saver.save(k, state))
        began = time.perf_counter()
        num_steps = 0
        while saver.busy:
            one()
            num_steps += 1
        during = time.perf_counter() - began
        saver.finish()
        steps_only = _seconds(lambda n=num_steps: [one() for _ in range(n)])
        if round_index:
            for name, seconds in (
                ("save", saved),
                ("stall", waited),
                ("steps", during - steps_only),
                ("step", steps_only / max(num_steps, 1)),
            ):
                results[name].append(seconds)
    return results


Case = tuple[Callable[[str], Any], Callable[[str], Any]]


def _plain(array: np.ndarray) -> Case:
    variables = {f"v{k}": tf.Variable(array) for k in range(_TENSORS.value)}
    checkpoint = tf.train.Checkpoint(**variables)
    return (
        lambda path: checkpoint.write(f"{path}/c"),
        lambda path: checkpoint.read(f"{path}/c").assert_consumed(),
    )


def _ours(array: np.ndarray, mesh: dict[str, Any]) -> Case:
    on = mtf.Mesh(**mesh)
    variables = {
        f"v{k}": mtf.Variable(
            on,
            f"d:{len(array)}; e:1024",
            lambda mesh, shape, _: mtf.asarray(mesh, array, shape),
            f"v{k}",
        )
        for k in range(_TENSORS.value)
    }
    return (
        lambda path: mtf.checkpoints.save(path, 1, variables),
        lambda path: mtf.checkpoints.restore(f"{path}/step_00000001", variables),
    )


def _seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _told(
    rates: dict[str, dict[str, list[float]]], stalls: dict[str, list[float]]
) -> str:
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
                p / s for p, s in zip(plain[operation], times[operation])
            )
            columns += (
                f"{size / statistics.median(times[operation]):>7.0f} MB/s{ratio:>8.2f}"
            )
        lines.append(f"{name:24}{columns}")
    save, waits, steps = (
        statistics.median(stalls[n]) for n in ("save", "stall", "steps")
    )
    shares = [
        statistics.median(x / y for x, y in zip(stalls[n], stalls["save"]))
        for n in ("stall", "steps")
    ]
    lines += [
        "",
        f"saving takes {save:.2f} s; in the background the loop waits {waits * 1e3:.1f} "
        f"ms, {shares[0]:.1%} of it, and steps of "
        f"{statistics.median(stalls['step']):.2f} s take {steps:.2f} s longer in all, "
        f"{shares[1]:.0%} of it",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    run_main(main)
