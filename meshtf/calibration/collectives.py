"""Measures collectives: latency and bandwidth of each kind, by size of the group.

    measure_collectives("spmd:cpu:8", 8, print)
    # {"all_reduce": {"devices": [2, 4, 8], "latency": [...], "bandwidth": [...]}, ...}

All groups of a mesh communicate at once, as in a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.calibration.repeated_work import RepeatedWork
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.ops.control.layout_region import layout, relayout
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.ops.windows.shift import roll
from meshtf.partition.cost import bytes_per_byte

_FLOAT = 4  # bytes of a float32
SIZES = (2**8, 2**17)  # elements of a device before a collective
_FASTEST = 1e13  # bytes per second: the limit if the times of both sizes are equal
# Rates of a kind: "devices", "latency" in seconds, "bandwidth" in bytes per second.
Rates = Mapping[str, list[float]]


def measure_collectives(
    devices: str | None,
    num_devices: int,
    report: Callable[[str], None],
    sizes: tuple[int, int] = SIZES,
) -> dict[str, Rates]:
    """Returns the rates of each kind of collective.

    Args:
      devices: the devices, as `Mesh` takes them.
      num_devices: their count, a power of 2.
      report: is called with a line for each kind and size of a group.
      sizes: the elements of a device for which latency and bandwidth are measured.
    """
    result: dict[str, Any] = {}
    group = num_devices
    groups = []
    while group > 1:
        groups.append(group)
        group //= 2
    alone = Mesh({"outer": num_devices, "inner": 1}, "outer:outer", devices=devices)
    passes = [_work(alone, _no_collective, elements).seconds() for elements in sizes]
    for group in groups:
        mesh = Mesh(
            {"outer": num_devices // group, "inner": group},
            layout="outer:outer; inner:inner",
            devices=devices,
        )
        for kind, (latency, bandwidth) in _of_group(mesh, passes, sizes).items():
            rates = result.setdefault(
                kind, {"devices": [], "latency": [], "bandwidth": []}
            )
            rates["devices"].insert(0, group)
            rates["latency"].insert(0, latency)
            rates["bandwidth"].insert(0, bandwidth)
            report(
                f"  {kind:18} of {group}  {latency * 1e6:9.1f} us "
                f"{bandwidth / 1e9:8.2f} GB/s"
            )
    return result


def _of_group(
    mesh: Mesh, passes: Sequence[float], sizes: tuple[int, int]
) -> dict[str, tuple[float, float]]:
    """Returns (latency, bandwidth) of each kind along the axis "inner".

    Args:
      mesh: the mesh.
      passes: for each of `sizes`, the seconds of the same work without a collective.
      sizes: the elements of a device.
    """
    size = mesh.axes["inner"]
    seconds: dict[str, list[float]] = {}
    for elements, baseline in zip(sizes, passes):
        for kind, (body, count) in _BODIES.items():
            excess = _work(mesh, body, elements).seconds() - baseline
            seconds.setdefault(kind, []).append(max(excess, 0.0) / count)
    # The gather after a reduce_scatter is of shards of one group's share.
    rates = {}
    for kind in ("all_gather", "all_reduce", "all_to_all", "collective_permute"):
        rates[kind] = _fit(kind, seconds[kind], sizes, size)
    latency, bandwidth = rates["all_gather"]
    scatter = []
    for value, elements in zip(seconds["reduce_scatter"], sizes):
        received = _FLOAT * elements / size * float(bytes_per_byte("all_gather", size))
        scatter.append(value - latency - received / bandwidth)
    rates["reduce_scatter"] = _fit("reduce_scatter", scatter, sizes, size)
    return rates


def _fit(
    kind: str, seconds: list[float], sizes: tuple[int, int], group: int
) -> tuple[float, float]:
    """Returns (latency, bytes received per second) from the times of two sizes."""
    fewer, many = sizes
    short, long = seconds
    received = _FLOAT * (many - fewer) * float(bytes_per_byte(kind, group))
    bandwidth = received / max(long - short, received / _FASTEST)
    return max(short, 0.0), bandwidth


def _work(
    mesh: Mesh, body: Callable[[Tensor], Tensor], elements: int
) -> RepeatedWork:
    """Returns the repeated work of a collective of so many elements of each device."""
    shape = (*mesh.axes.values(), elements)
    array = np.ones(shape, "float32")
    return RepeatedWork(mesh, body, {"x": (array, "outer;inner;elements")})


def _no_collective(x: Tensor) -> Tensor:
    return x * 0.5 + 0.0625


def _all_reduce(x: Tensor) -> Tensor:
    return x * 0.5 + reduce_sum(x, "inner") * 0.0625


def _all_gather(x: Tensor) -> Tensor:
    with layout("inner:"):
        gathered = relayout(x)
    return relayout(gathered * 0.5)


def _all_to_all(x: Tensor) -> Tensor:
    with layout("inner:; elements:inner"):
        y = relayout(x) * 0.5
    return relayout(y)


def _reduce_scatter(x: Tensor) -> Tensor:
    with layout("elements:inner"):
        shards = relayout(reduce_sum(x, "inner"))
    return x * 0.5 + shards * 0.0625


def _permute(x: Tensor) -> Tensor:
    return roll(x, "inner", 1) * 0.5


# Kind -> (the work, how many collectives of this kind it has).
_BODIES: Mapping[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "all_reduce": (_all_reduce, 1),
    "all_gather": (_all_gather, 1),
    "all_to_all": (_all_to_all, 2),
    "reduce_scatter": (_reduce_scatter, 1),  # and an all_gather of its result
    "collective_permute": (_permute, 1),
}
