"""Which axes of a mesh stay within a host: those along which most bytes move.

    keep_within_hosts(workers=2)      # gin's Mesh gets within_host = ("model",), say

What moves is read off the plan of a step (`mtf.explain`), before anything lies
anywhere. A configuration that says where positions lie, by `Mesh.devices` or
`Mesh.within_host`, is left alone.
"""

from __future__ import annotations

import math

import gin

import meshtf as mtf
from transformer.training.training_run import Run


def keep_within_hosts(workers: int) -> None:
    """Lets gin's mesh keep its chattiest axes within a worker, as many of them as fit
    there.
    """
    said = gin.get_bindings("Mesh")
    if workers == 1 or said.get("devices") is not None or "within_host" in said:
        return
    with gin.unlock_config():
        gin.bind_parameter("Mesh.devices", "abstract")
        try:
            run = Run()
            axes = chattiest(run.explain(), run.model.mesh, workers)
        finally:
            gin.bind_parameter("Mesh.devices", None)
        if axes:
            gin.bind_parameter("Mesh.within_host", axes)


def chattiest(forecast: mtf.Forecast, mesh: mtf.Mesh, workers: int) -> tuple[str, ...]:
    """Returns axes, the chattiest first, whose positions together fit into a worker."""
    here, rest = divmod(mesh.size, workers)
    loud = [
        axis
        for axis in sorted(mesh.axes, key=lambda a: -forecast.bytes_moved(axis=a))
        if forecast.bytes_moved(axis=axis)
    ]
    found: list[str] = []
    for axis in loud:
        if not rest and here % math.prod([mesh.axes[a] for a in (*found, axis)]) == 0:
            found.append(axis)
    return tuple(found)
