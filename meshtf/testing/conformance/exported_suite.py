"""The exported suite: the programs of the recorded suite as one StableHLO module for each
layout, run by jax's CPU devices.

What `check_program` runs as a `mtf.function` is exported instead: all replicas run the same
module, and communicate by XLA's collectives.

    check_export(Lookup).require()     # needs jax: pip install -e '.[test]'

In a `mtf.function`, random values must be equal bit by bit. In an exported module this holds
for integers, booleans and everything that is computed without a logarithm, a cosine or the
like: XLA rounds these differently from TensorFlow, and also differently for shards that do
not fill its vectors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from meshtf.function.function import export
from meshtf.graph import Op, Sample, ShardedValue, Tensor
from meshtf.graph.tensor import tensor_of_value
from meshtf.runtime.spmd.module.module_runner import Runner
from meshtf.testing.conformance.recorded_suite import check_program
from meshtf.testing.conformance.reference import Expected, expected
from meshtf.testing.conformance.report import Report

# Groups along two axes, and windows that reach over several shards.
MESHES = ("x:2;y:2", "x:4")
RANDOM_TOLERANCE = 2e-6  # of random floats: TensorFlow and XLA differ in the last bits


def check_export(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
) -> Report:
    """Runs all samples of an op as one exported module for each layout and returns a
    report.

    Args:
      op_class: an op with samples.
      seed: of the random values and of the choice of layouts.
      meshes: axes and sizes of each mesh.
      fail_fast: whether to stop at the first failure.
    """
    return check_program(
        op_class, seed, meshes, fail_fast, run=run_exported, reference=_expected
    )


def check_live(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: str = "spmd:cpu",
) -> Report:
    """Runs all samples of an op in one `mtf.function` on a live mesh for each layout and
    returns a report.

    Args:
      op_class: an op with samples.
      seed: of the random values and of the choice of layouts.
      meshes: axes and sizes of each mesh.
      fail_fast: whether to stop at the first failure.
      devices: those of the meshes: "spmd", "spmd:cpu", "spmd:cuda" or "spmd:tpu".
    """
    return check_program(
        op_class, seed, meshes, fail_fast, devices, reference=_expected
    )


def run_exported(
    program: Callable[..., list[Tensor]], inputs: Sequence[Tensor]
) -> list[Tensor]:
    """Exports a program of tensors, runs the module on one CPU device for each replica,
    and returns its results, sharded as the module returns them.
    """
    exported = export(program, *inputs)
    arguments = [
        list(map(np.asarray, x.sharded_value.values))
        for x in inputs
        if x.sharded_value is not None
    ]
    run = Runner(exported, quick=True)
    results = run(*arguments)
    tensors = []
    for port, shards in zip(exported.results, results, strict=True):
        value = ShardedValue(port.placement, list(map(tf.constant, shards)))
        tensors.append(tensor_of_value(port.spec, value, exported.mesh))
    return tensors


def _expected(
    op_class: type[Op],
    sample: Sample,
    seed: int,
    devices: str | Sequence[str],
) -> Expected:
    return dataclasses.replace(
        expected(op_class, sample, seed, devices), random_tolerance=RANDOM_TOLERANCE
    )
