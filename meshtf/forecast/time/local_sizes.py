"""Durations of a program, with measured steps of the profile at the program's local sizes.

durations = durations_of(program, hardware)
local_sizes(program, durations)          # {"batch": 4, "d_model": 4096, "d_ff": 1376, ...}
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtf.forecast.time.durations import Durations, Sizes
from meshtf.graph import factor_of
from meshtf.hardware import Hardware
from meshtf.hardware.local_steps import factor_at
from meshtf.partition import Program, walk


def durations_of(
    program: Program, hardware: Hardware, sizes: Sizes | None = None
) -> Durations:
    """Returns the durations of the steps of a program.

    Args:
      program: the program.
      hardware: the profile.
      sizes: the sizes for which it is timed; None: those that it was planned for.
    """
    durations = Durations(hardware, program.mesh, sizes)
    if not hardware.local_steps:
        return durations
    factor = factor_at(hardware.local_steps, local_sizes(program, durations))
    return Durations(hardware, program.mesh, sizes, local_factor=factor)


def local_sizes(program: Program, durations: Durations) -> dict[str, Any]:
    """Returns the sizes on one device of all dimensions that matmuls of a program have; the
    largest, if ops have several. Numbers, or arrays for many meshes.
    """
    result: dict[str, Any] = {}
    for step, _ in walk(program):
        compute = step.computation
        if compute is None or durations.matmul_shape(compute) is None:
            continue
        sizes = durations.local_factor_sizes(compute)
        for x in compute.node.inputs:
            for name in x.shape.names:
                size = sizes.get(factor_of(compute.node.op, name), 1)
                result[name] = np.maximum(result.get(name, 1), size)
    return result
