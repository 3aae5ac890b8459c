"""Times one device's ops of a configuration, at the local sizes of the layouts that a search over
many devices finds.

    hardware = measure_local_steps(hardware, num_devices=256, mesh_devices="spmd:cuda:1", count=8)

A layout shards the dimensions of a model, so its devices compute with smaller sizes. Each of
these is timed with a few blocks and one microbatch, which take less memory and time than the
whole step and have the same sizes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import gin
import numpy as np

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.training import searched_step
from transformer.training.training_run import Run

_BLOCKS = 2
_SEARCHES = 3  # measured steps change which layouts are the best


def measure_local_steps(
    hardware: Any,
    num_devices: int,
    mesh_devices: str,
    count: int,
    memory: float | str | None = None,
    report: Callable[[str], None] = print,
) -> Any:
    """Returns a profile with measured local steps of the configuration, whose settings are bound.

    Args:
      hardware: the measured rates.
      num_devices: the number of devices that a search is for.
      mesh_devices: the devices that are here, with their count: "spmd:cuda:1".
      count: how many local sizes are measured, at most.
      memory: the bytes of one device, into which layouts must fit; None: those of the profile.
      report: is called with each line of progress.
    """
    report(f"ops of one of {num_devices} devices: measured, over predicted")
    measured: dict[Any, Any] = {}
    batch_size = Run().batch_size
    for _ in range(_SEARCHES):
        best = mtf.search(
            searched_step.build,
            *searched_step.arguments(),
            devices=num_devices,
            hardware=hardware,
            memory=memory,
            choices={
                "recompute": (False, True),
                "microbatches": searched_step.all_microbatches(),
            },
        ).best
        for candidate in best:
            microbatches = int(candidate.choices.get("microbatches", 1))
            key = _shards(candidate, microbatches)
            if key in measured or len(measured) >= count:
                continue
            step = _measure(
                hardware, candidate, mesh_devices, batch_size // microbatches
            )
            measured[key] = step
            sizes = "; ".join(f"{name}:{size:,}" for name, size in step.sizes.items())
            report(f"  {step.factor:6.2f}  {sizes}")
            steps = tuple(measured.values())
            hardware = dataclasses.replace(hardware, local_steps=steps)
    return hardware


def _shards(candidate: Any, microbatches: int) -> frozenset[tuple[str, int]]:
    """Returns into how many sections a layout and microbatches divide each dimension."""
    mesh = mtf.Mesh(candidate.axes, candidate.layout, devices="abstract")
    counts = {"batch": microbatches}
    for name, axes in mesh.layout.items():
        shards = math.prod(mesh.axes[axis] for axis in axes)
        counts[name] = counts.get(name, 1) * shards
    return frozenset(counts.items())


def _measure(
    hardware: Any, candidate: Any, mesh_devices: str, batch_size: int
) -> mtf.calibration.MeasuredLocalStep:
    """Returns the measured step of one device under a layout.

    Args:
      hardware: the profile.
      candidate: the layout.
      mesh_devices: the devices that are here.
      batch_size: the examples of a microbatch, on all devices.
    """
    blocks = Architecture().blocks
    few_blocks = min(blocks, _BLOCKS * max(Architecture().moe_every, 1))
    mesh = mtf.Mesh(devices="abstract", **candidate.mesh_settings)
    with gin.unlock_config():
        gin.bind_parameter("Architecture.recompute", candidate.choices["recompute"])
        gin.bind_parameter("Architecture.blocks", few_blocks)
        try:
            run = Run(mesh=mesh, batch_size=batch_size, microbatches=1)
            step = run.trainer.training_step
        finally:
            gin.bind_parameter("Architecture.blocks", blocks)
    return mtf.calibration.measure_local_step(
        step, run.features(), np.int32(0), devices=mesh_devices, hardware=hardware
    )
