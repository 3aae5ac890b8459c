"""The exported suite: the programs of the recorded suite, each exported as a StableHLO
module and run on CPU devices of jax.

    check_export(Lookup).require()     # needs jax: pip install -e '.[test]'

All replicas run the same module, and communicate by XLA's collectives.

Random values of a `mtf.function` must equal those of one device bit by bit. In an exported
module, random floats that are computed with functions such as log and cos may differ by
`RANDOM_TOLERANCE`: XLA rounds these functions differently from TensorFlow, and differently
for shards whose size is no multiple of the vector width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from meshtf.function.without_running import export
from meshtf.graph import Op, Sample, ShardedValue, Tensor
from meshtf.graph.tensor import tensor_of_value
from meshtf.runtime.spmd.live.jax_host import cpu_mesh
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.module_call import QUICK, ModuleCall
from meshtf.runtime.spmd.live.stacked_layout import StackedLayout
from meshtf.testing.conformance.recorded_suite import Program, check_program
from meshtf.testing.conformance.reference import ReferenceCase, reference_case
from meshtf.testing.conformance.report import Report

# With two axes collectives have groups along each of them; with four positions along one
# axis, windows reach over several shards.
MESHES = ("x:2;y:2", "x:4")
# The absolute and relative tolerance of random floats: TensorFlow and XLA differ in the last
# bits.
RANDOM_TOLERANCE = 2e-6


def check_export(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
) -> Report:
    """Runs all samples of an op in one exported module for each layout, and returns a
    report.

    Args:
      op_class: the class of an op with samples.
      seed: the seed of the random values and of the choice of layouts.
      meshes: the axes of each mesh, such as "x:2;y:2".
      fail_fast: whether to stop at the first failure.
    """
    return check_program(
        op_class,
        seed=seed,
        meshes=meshes,
        fail_fast=fail_fast,
        run=run_exported,
        reference=_tolerant_case,
    )


def check_live(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: str = "spmd:cpu",
) -> Report:
    """Runs all samples of an op in one `mtf.function` on a live mesh (one whose programs
    jax compiles and runs) for each layout, and returns a report.

    Args:
      op_class: the class of an op with samples.
      seed: the seed of the random values and of the choice of layouts.
      meshes: the axes of each mesh, such as "x:2;y:2".
      fail_fast: whether to stop at the first failure.
      devices: the devices of the meshes: "spmd", "spmd:cpu", "spmd:cuda" or "spmd:tpu".
    """
    return check_program(
        op_class,
        seed=seed,
        meshes=meshes,
        fail_fast=fail_fast,
        devices=devices,
        reference=_tolerant_case,
    )


def run_exported(program: Program, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Exports a program of tensors, runs the module with one CPU device for each replica,
    and returns the results, with the placements in which the module returns them.
    """
    exported = export(program, *inputs)
    devices = cpu_mesh(exported.mesh.size, "replica")
    # A port: the shape, data type and placement of an input or result of the module.
    input_layouts, result_layouts = (
        [
            StackedLayout.of(port.spec, port.placement, exported.mesh, devices)
            for port in ports
        ]
        for ports in (exported.inputs, exported.results)
    )
    call = ModuleCall(
        "exported",
        exported.module,
        input_layouts,
        result_layouts,
        devices,
        options=QUICK,
    )
    arrays = []
    for x, layout in zip(inputs, input_layouts, strict=True):
        assert x.sharded_value is not None
        shards = np.stack([np.asarray(shard) for shard in x.sharded_value.values])
        arrays.append(load_jax().device_put(shards, layout.sharding))
    tensors = []
    for port, stacked in zip(exported.results, call(arrays), strict=True):
        shards = np.array(stacked)
        value = ShardedValue(port.placement, [tf.constant(shard) for shard in shards])
        tensors.append(tensor_of_value(port.spec, value, exported.mesh))
    return tensors


def _tolerant_case(
    op_class: type[Op],
    sample: Sample,
    seed: int,
    devices: str | Sequence[str],
) -> ReferenceCase:
    """Returns the expected results of a sample, with `RANDOM_TOLERANCE`."""
    case = reference_case(op_class, sample, seed, devices)
    return dataclasses.replace(case, random_tolerance=RANDOM_TOLERANCE)
