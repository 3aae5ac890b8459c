"""Times one device's ops of a configuration, at the local sizes of the layouts that a search over
many devices finds.

    hardware = measure_local_steps(hardware, num_devices=256, mesh_devices="spmd:cuda:1", count=8)

A layout shards the dimensions of a model, so its devices compute with smaller sizes. Each of
these is timed with a few blocks and one microbatch, which take less memory and time than the
whole step and have the same sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gin
import numpy as np

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.training import searched_step
from transformer.training.training_run import Run

_BLOCKS = 2


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

    Raises:
      MeshtfError, RuntimeError: no local size could be measured.
    """
    report(f"ops of one of {num_devices} devices: measured, over predicted")
    steps: dict[frozenset[tuple[str, float]], Any] = {}
    result = mtf.search(
        searched_step.build,
        *searched_step.arguments(),
        devices=num_devices,
        hardware=hardware,
        memory=memory,
        choices={
            "recompute": (False, True),
            "microbatches": searched_step.all_microbatches(),
        },
    )
    batch_size = Run().batch_size
    failure: Exception | None = None
    for layout in result.distinct_sizes(count):
        microbatches = int(layout.choices.get("microbatches", 1))
        try:
            step = _measure(hardware, layout, mesh_devices, batch_size // microbatches)
        except (mtf.MeshtfError, RuntimeError) as error:  # as of devices without memory
            failure = error
            reason = str(error).partition("\n")[0]
            settings = layout.mesh_settings
            report(f"  failed  {settings['axes']} {settings['layout']}: {reason}")
            continue
        sizes = "; ".join(f"{name}:{size:,}" for name, size in step.sizes.items())
        report(f"  {step.factor:6.2f}  {sizes}")
        steps.setdefault(frozenset(step.sizes.items()), step)
    if failure is not None and not steps:
        raise failure
    return dataclasses.replace(hardware, local_steps=tuple(steps.values()))


def _measure(
    hardware: Any, layout: Any, mesh_devices: str, batch_size: int
) -> mtf.calibration.MeasuredLocalStep:
    """Returns the measured step of one device under a layout.

    Args:
      hardware: the profile.
      layout: the layout, as `distinct_sizes` gives it.
      mesh_devices: the devices that are here.
      batch_size: the examples of a microbatch, on all devices.
    """
    blocks = Architecture().blocks
    few_blocks = min(blocks, _BLOCKS * max(Architecture().moe_every, 1))
    mesh = mtf.Mesh(devices="abstract", **layout.mesh_settings)
    with gin.unlock_config():
        gin.bind_parameter("Architecture.recompute", layout.choices["recompute"])
        gin.bind_parameter("Architecture.blocks", few_blocks)
        try:
            run = Run(mesh=mesh, batch_size=batch_size, microbatches=1)
            step = run.trainer.training_step
        finally:
            gin.bind_parameter("Architecture.blocks", blocks)
    return mtf.calibration.measure_local_step(
        step, run.features(), np.int32(0), devices=mesh_devices, hardware=hardware
    )
