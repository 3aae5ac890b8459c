"""Follows one first step through the library, and counts how often each folder of it calls
another, and how often the way comes back to a file that it left before.

    python -m benchmarks.tour                           # a training step of two layers, live
    python -m benchmarks.tour --tour_devices=logical:8  # placed by TensorFlow

A *stay* is a run of calls in one file; it is a *return* if the file had a stay before.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from absl import flags

import meshtf as mtf
from transformer.cli.program import run_main

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "tour_devices", "spmd:cpu:8", 'The devices: "spmd:cpu:8", "logical:8", ...'
)
flags.DEFINE_integer("tour_rows", 15, "How many pairs of folders are printed.")
ROOT = Path(mtf.__file__).parent


class Tour(NamedTuple):
    """The ways of a trace.

    Attributes:
      files: the files of the stays, in order.
      calls: {(folder of the caller, folder of the function that it calls): calls}.
      functions: {the same: the different pairs of a caller and a function that it calls}.
    """

    files: list[Path]
    calls: collections.Counter[tuple[str, str]]
    functions: dict[tuple[str, str], set[tuple[Any, Any]]]

    def returns_between(self, *folders: str) -> int:
        """Returns how often the way comes back to a file, of the stays in these folders."""
        known: set[Path] = set()
        returns = 0
        stays = [file for file in self.files if folder_of(file) in folders]
        for previous, file in zip([None, *stays], stays):
            returns += file in known and file != previous
            known.add(file)
        return returns


def folder_of(file: Path) -> str:
    """Returns the folder of the library that a file is in: "partition"."""
    return file.relative_to(ROOT).parts[0]


@contextlib.contextmanager
def traced() -> Iterator[Tour]:
    """Yields a tour, which has the calls of the context after its end."""
    tour = Tour([], collections.Counter(), collections.defaultdict(set))

    def record(frame: FrameType, event: str, _argument: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event != "call" or ROOT not in file.parents:
            return
        if not tour.files or tour.files[-1] != file:
            tour.files.append(file)
        caller = frame.f_back and frame.f_back.f_code
        if caller and ROOT in Path(caller.co_filename).parents:
            pair = folder_of(Path(caller.co_filename)), folder_of(file)
            if pair[0] != pair[1]:
                tour.calls[pair] += 1
                tour.functions[pair].add((caller, frame.f_code))

    sys.setprofile(record)
    try:
        yield tour
    finally:
        sys.setprofile(None)


def training_step(devices: str) -> Callable[[], Any]:
    """Returns a function that runs one step of two layers on a mesh of eight positions."""
    mesh = mtf.Mesh(
        "data:4;model:2",
        "batch:data;d_ff:model",
        variable_layout="d_model:data",
        devices=devices,
    )
    normal = mtf.layers.initializers.normal(0.1)
    w = mtf.Variable(mesh, "d_model:16;d_ff:32", normal, "w")
    v = mtf.Variable(mesh, "d_ff:32;d_model:16", normal, "v")

    @mtf.function(mesh=mesh, x="batch;d_model")
    def step(x: Any) -> Any:
        h = mtf.relu(mtf.einsum([x, w], "batch;d_ff"))
        loss = mtf.reduce_mean(mtf.square(mtf.einsum([h, v], "batch;d_model") - x))
        for variable, gradient in zip((w, v), mtf.gradients([loss], [w, v])):
            variable.assign(variable - 0.1 * gradient)
        return loss

    array = np.ones((16, 16), "float32")
    return lambda: float(step(array))


def main(argv: list[str]) -> None:
    """Traces the first step, and prints the counts."""
    del argv
    mtf.configure_process()
    step = training_step(FLAGS.tour_devices)
    with traced() as tour:
        step()
    between = tour.returns_between("partition", "mesh")
    print(f"{sum(tour.calls.values()):,} calls from one folder to another")
    print(f"{between:,} returns to files of partition and mesh")
    print("   calls   pairs of functions")
    for pair, count in tour.calls.most_common(FLAGS.tour_rows):
        print(f"{count:8,} {len(tour.functions[pair]):8,}  {' -> '.join(pair)}")


if __name__ == "__main__":
    run_main(main)
