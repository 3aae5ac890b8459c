"""The recorded suite once more, as one StableHLO module for each layout, run by PJRT's
CPU devices.

What `check_program` runs as a `mtf.function` is exported here: every replica runs one
and the same module, and XLA's collectives are all that joins them.

    check_export(Lookup).require()     # needs jaxlib: pip install -e '.[test]'

Every bit of random numbers counts in a `mtf.function`. Here integers, truth values and
what is made without a logarithm, a cosine or the like come out bit by bit as well;
those XLA rounds in its own way, and in another on slices that do not fill its vectors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from meshtf.function.function import export
from meshtf.graph import Op, Sample, ShardedValue, Tensor
from meshtf.graph.tensor import tensor_of_value
from meshtf.runtime.spmd.pjrt_client import Runner
from meshtf.testing.conformance.recorded_suite import check_program
from meshtf.testing.conformance.reference import Expected, expected
from meshtf.testing.conformance.report import Report

MESHES = (
    "x:2;y:2",
    "x:4",
)  # groups of two kinds, and windows that hop over several slices
SLACK = 2e-6  # in random floats: TensorFlow and XLA differ in their last bits


def check_export(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
) -> Report:
    """Runs all samples of an op as one exported module for each layout and returns what
    was found.

    Args:
      op_class: an op with samples.
      seed: of the numbers and of the choice of layouts.
      meshes: axes and sizes of each mesh.
      fail_fast: whether to stop at the first failure.
    """
    return check_program(
        op_class, seed, meshes, fail_fast, run=run_exported, reference=_expected
    )


def run_exported(
    program: Callable[..., list[Tensor]], inputs: Sequence[Tensor]
) -> list[Tensor]:
    """Exports a program of tensors, runs the module on one CPU device for each replica,
    and returns its results as they lie there."""
    made = export(program, *inputs)
    arguments = [
        list(map(np.asarray, x.sharded_value.values))
        for x in inputs
        if x.sharded_value is not None
    ]
    found = Runner(made.module, made.mesh.size, quick=True)(*arguments)
    tensors = []
    for port, values in zip(made.results, found, strict=True):
        held = ShardedValue(port.placement, list(map(tf.constant, values)))
        tensors.append(tensor_of_value(port.spec, held, made.mesh))
    return tensors


def _expected(
    op_class: type[Op], sample: Sample, seed: int, devices: Sequence[str]
) -> Expected:
    return dataclasses.replace(expected(op_class, sample, seed, devices), slack=SLACK)
