"""Chooses which mesh axes stay within a host: the ones with the most communication.

    keep_within_hosts(workers=2)      # binds gin's Mesh.within_host, for example to ("model",)

Communication within a host is faster than between hosts. The bytes moved along each axis
come from the forecast of a training step (`mtf.explain`), which needs no devices. A
configuration that binds `Mesh.devices` or `Mesh.within_host` itself is not changed.
"""

from __future__ import annotations

import math

import gin

import meshtf as mtf
from transformer.training.training_run import Run


def keep_within_hosts(workers: int) -> None:
    """Binds gin's `Mesh.within_host` to the axes with the most communication that fit
    into one worker.

    Args:
      workers: the count of workers, each on a host.
    """
    bindings = gin.get_bindings("Mesh")
    has_devices = bindings.get("devices") is not None
    if workers == 1 or has_devices or "within_host" in bindings:
        return
    with gin.unlock_config():
        # An abstract mesh has no devices: the run makes a forecast, and cannot train.
        gin.bind_parameter("Mesh.devices", "abstract")
        try:
            run = Run()
            axes = axes_within_host(run.explain(), run.model.mesh, workers)
        finally:
            gin.bind_parameter("Mesh.devices", None)  # the default: real devices
        if axes:
            gin.bind_parameter("Mesh.within_host", axes)


def axes_within_host(
    forecast: mtf.Forecast, mesh: mtf.Mesh, workers: int
) -> tuple[str, ...]:
    """Returns the axes to keep within a worker, by decreasing bytes moved.

    A mesh position is one coordinate of each axis; each worker has the same count of them.
    An axis is selected if the product of its size and the sizes of the axes selected before
    it divides this count.

    Args:
      forecast: the forecast of a step.
      mesh: the mesh of the step.
      workers: the count of workers.
    """
    positions_per_worker, remainder = divmod(mesh.size, workers)
    if remainder:
        return ()
    bytes_moved = {axis: forecast.bytes_moved(axis=axis) for axis in mesh.axes}
    selected: list[str] = []
    for axis in sorted(mesh.axes, key=lambda name: -bytes_moved[name]):
        size = math.prod(mesh.axes[name] for name in (*selected, axis))
        if bytes_moved[axis] and positions_per_worker % size == 0:
            selected.append(axis)
    return tuple(selected)
