"""Measures collectives: latency and bandwidth of each kind, by size of the group.

    measure_collectives("spmd:cpu:8", 8, print)
    # {"all_reduce": {"devices": [2, 4, 8], "latency": [...], "bandwidth": [...]}, ...}

All groups of a mesh communicate at once, as in a training step. There a collective also takes
longer to start than in a loop without other work: devices come to it at different times. So
latencies are scaled by what a matmul before the collective adds to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshtf.calibration.clock import WALL, Clock
from meshtf.calibration.repeated_work import ROUNDS, RepeatedWork, measure
from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.ops.control.layout_region import layout, relayout
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.reductions.reduce import reduce_max, reduce_sum
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.windows.shift import roll
from meshtf.partition.cost import bytes_per_byte

_FLOAT = 4  # bytes of a float32
SIZES = (2**8, 2**17)  # elements of a device before a collective
_MATMUL = 160  # rows and columns of the matmul before a collective
_KINDS_AMONG_MATMULS = ("all_gather", "all_reduce")
_RUN_SECONDS = 0.03  # longer than usual: the difference of two long times is measured
_FASTEST = 1e13  # bytes per second: the limit if the times of both sizes are equal
# Rates of a kind: "devices", "latency" in seconds, "bandwidth" in bytes per second.
Rates = Mapping[str, list[float]]


class _Key(NamedTuple):
    """What a work consists of.

    Attributes:
      group: the size of the groups that communicate.
      kind: the kind of collective, or "nothing".
      elements: the elements of a device before it.
      has_matmul: whether there is a matmul before it.
    """

    group: int
    kind: str
    elements: int
    has_matmul: bool = False


def measure_collectives(
    devices: str | None,
    num_devices: int,
    report: Callable[[str], None],
    sizes: tuple[int, int] = SIZES,
    rounds: int = ROUNDS,
    clock: Clock = WALL,
) -> dict[str, Rates]:
    """Returns the rates of each kind of collective.

    Args:
      devices: the devices, as `Mesh` takes them.
      num_devices: their count, a power of 2.
      report: is called with a line for each kind and size of a group.
      sizes: the elements of a device for which latency and bandwidth are measured.
      rounds: how often each work is timed.
      clock: the clock.
    """
    groups: list[int] = []
    group = num_devices
    while group > 1:
        groups.insert(0, group)
        group //= 2
    if not groups:
        return {}
    # In groups of 1, without collectives.
    keys = [_Key(1, "nothing", elements) for elements in sizes]
    for group in groups:
        keys += [_Key(group, kind, elements) for kind in BODIES for elements in sizes]
    fewest = sizes[0]
    few = [_Key(num_devices, kind, fewest) for kind in _KINDS_AMONG_MATMULS]
    few.append(_Key(1, "nothing", fewest))
    keys += [key._replace(has_matmul=True) for key in few]
    works = [_work(devices, num_devices, key, clock) for key in keys]
    seconds = dict(zip(keys, measure(works, rounds)))
    delay = _delay_among_matmuls(seconds, few)
    result: dict[str, Any] = {}
    for group in groups:
        times: dict[str, list[float]] = {}
        for kind, elements in itertools.product(BODIES, sizes):
            excess = (
                seconds[_Key(group, kind, elements)]
                - seconds[_Key(1, "nothing", elements)]
            )
            times.setdefault(kind, []).append(max(excess, 0.0) / COUNTS.get(kind, 1))
        for kind, seconds_of_sizes in times.items():
            latency, bandwidth = _fit(kind, seconds_of_sizes, sizes, group)
            latency *= delay
            rates = result.setdefault(
                kind, {"devices": [], "latency": [], "bandwidth": []}
            )
            rates["devices"].append(group)
            rates["latency"].append(latency)
            rates["bandwidth"].append(bandwidth)
            report(
                f"  {kind:18} of {group}  {latency * 1e6:9.1f} us "
                f"{bandwidth / 1e9:8.2f} GB/s"
            )
    report(f"  latencies are {delay:.1f} times those without matmuls in between")
    return result


def _delay_among_matmuls(seconds: Mapping[_Key, float], few: Sequence[_Key]) -> float:
    """Returns how much longer small collectives take after matmuls than without them, at
    least 1.

    Args:
      seconds: the measured times of all works.
      few: the works of these collectives without matmuls, then that without a collective.
    """
    *small, nothing = few
    after_matmuls, without = (
        sum(seconds[key._replace(has_matmul=x)] for key in small)
        - len(small) * seconds[nothing._replace(has_matmul=x)]
        for x in (True, False)
    )
    return max(after_matmuls / without, 1.0) if without > 0 else 1.0


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
    devices: str | None, num_devices: int, key: _Key, clock: Clock
) -> RepeatedWork:
    """Returns the repeated work of a key."""
    outer, inner = num_devices // key.group, key.group
    mesh = Mesh(
        {"outer": outer, "inner": inner},
        layout="outer:outer; inner:inner",
        devices=devices,
    )
    array = np.ones((outer, inner, inner, max(key.elements // inner, 1)), "float32")
    inputs = {"x": (array, "outer;inner;block;elements")}
    body = BODIES.get(key.kind, _no_collective)
    if not key.has_matmul:
        return RepeatedWork(mesh, body, inputs, clock)
    # So small that x stays near 1.
    matrix = np.full((outer, inner, _MATMUL, _MATMUL), _MATMUL**-2.0, "float32")
    inputs["left"] = matrix, "outer;inner;m;k"
    inputs["right"] = matrix, "outer;inner;k;n"
    return RepeatedWork(mesh, _after_matmul(body), inputs, clock, _RUN_SECONDS)


def _after_matmul(body: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """Returns the work of a body after a matmul, neither of which can start earlier than it
    does.
    """

    def run(x: Tensor, left: Tensor, right: Tensor) -> Tensor:
        scale = reduce_max(x, ["block", "elements"])
        product = einsum([left * scale, right], "outer;inner;m;n")
        return body(x + reduce_max(product, ["m", "n"]))

    return run


def _no_collective(x: Tensor) -> Tensor:
    return x * 0.5 + 0.0625


def _all_reduce(x: Tensor) -> Tensor:
    return x * 0.5 + reduce_sum(x, "inner") * 0.0625


def _all_gather(x: Tensor) -> Tensor:
    with layout("inner:"):
        gathered = relayout(x)
    return relayout(gathered * 0.5)


def _all_to_all(x: Tensor) -> Tensor:
    with layout("inner:; block:inner"):
        y = relayout(x) * 0.5
    return relayout(y)


def _reduce_scatter(x: Tensor) -> Tensor:
    with layout("inner:; block:inner"):
        shards = relayout(reduce_sum(x, "inner"))
    # Each device repeats its own block, so that nothing is gathered.
    return x * 0.5 + rename(shards, "block", "inner") * 0.0625


def _permute(x: Tensor) -> Tensor:
    return roll(x, "inner", 1) * 0.5


# The work of each kind.
BODIES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_to_all": _all_to_all,
    "reduce_scatter": _reduce_scatter,
    "collective_permute": _permute,
}
COUNTS = {"all_to_all": 2}  # how many collectives the work has, if not one
