"""Measures all rates of the present machine, as a profile of hardware.

calibrate("spmd:cpu:8").save("my_machine.json")
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from meshtf.calibration.collectives import SIZES, measure_collectives
from meshtf.calibration.elementwise import measure_elementwise
from meshtf.calibration.matmuls import TABLE, measure_matmuls
from meshtf.function.function import function
from meshtf.graph import Tensor
from meshtf.hardware import Hardware, Link
from meshtf.mesh import Mesh
from meshtf.runtime.storage.asarray import asarray
from meshtf.version import __version__

_BFLOAT16 = TABLE[4:6]
_CALLS = 10


def calibrate(
    devices: str | None = None,
    positions: int = 8,
    name: str = "this machine",
    matmuls: Sequence[tuple[int, int, int, int]] = TABLE,
    bfloat16: Sequence[tuple[int, int, int, int]] = _BFLOAT16,
    sizes: tuple[int, int] = SIZES,
    report: Callable[[str], None] = print,
) -> Hardware:
    """Returns a profile of the present machine, while all devices of a mesh work at once.

    Args:
      devices: the devices, as `Mesh` takes them: "spmd:cpu:8", "logical:8", None.
      positions: the positions of the mesh if `devices` has no count.
      name: the name of the profile.
      matmuls: (batch, m, n, k) of the float32 matmuls that are measured.
      bfloat16: those that are measured in bfloat16; none: that dtype has the rate of float32.
      sizes: the elements of a device before a collective: few for the latency, and many.
      report: is called with each line of progress.
    """
    count = num_positions(devices, positions)
    mesh = Mesh({"position": count}, "position:position", devices=devices)
    begin = time.monotonic()
    report(f"{count} positions on {devices or 'one device'}, all at work at once")
    call_seconds = _call_seconds(mesh)
    report(f"  call of a function {call_seconds * 1e3:8.2f} ms")
    op_seconds, bandwidth = measure_elementwise(mesh, report)
    report("matmuls in float32, of one device")
    measured = list(measure_matmuls(mesh, matmuls, "float32", report))
    if bfloat16:
        report("matmuls in bfloat16")
        measured += measure_matmuls(mesh, bfloat16, "bfloat16", report)
    peaks: dict[str, float] = {}
    for matmul in measured:
        flops = 2.0 * matmul.batch * matmul.m * matmul.n * matmul.k
        rate = flops / matmul.seconds
        peaks[matmul.dtype] = max(rate, peaks.get(matmul.dtype, 0.0))
    report("collectives: latency, bytes that a device receives in a second")
    rates = measure_collectives(
        devices,
        count,
        report=report,
        sizes=sizes,
    )
    report(f"measured in {time.monotonic() - begin:.0f} s")
    return Hardware(
        name=name,
        matmul_flops=peaks,
        memory_bandwidth=bandwidth,
        links=(_link(rates),),
        memory=_memory(devices, count),
        op_seconds=op_seconds,
        call_seconds=call_seconds,
        fuses=mesh.live,
        overlaps=not _on_cpus(devices),
        shares_equal_work=devices is None,
        matmuls=tuple(measured),
        sources={"all values": _source()},
    )


def num_positions(devices: str | None, positions: int) -> int:
    """Returns the count at the end of `devices`, such as "spmd:cpu:8"; otherwise
    `positions`.
    """
    count = (devices or "").rpartition(":")[2]
    return int(count) if count.isdigit() else positions


def _source() -> str:
    """Returns where measured values are from."""
    today = datetime.date.today().isoformat()
    return f"measured on {today} with meshtf {__version__}"


def _on_cpus(devices: str | None) -> bool:
    """Returns whether positions compute on CPUs; devices without a name are taken for some."""
    return not any(kind in (devices or "").lower() for kind in ("gpu", "cuda", "tpu"))


def _memory(devices: str | None, count: int) -> float | None:
    """Returns the bytes of memory of one device; None: unknown. CPU devices share it."""
    if not _on_cpus(devices):
        return None
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / count


def _link(rates: dict) -> Link:
    """Returns the link between all devices; without collectives its rates do not count."""
    if "all_reduce" not in rates:
        return Link("all devices", None, bandwidth=1e12, latency=0.0)
    reduction = rates["all_reduce"]
    return Link(
        "all devices",
        None,
        bandwidth=reduction["bandwidth"][-1],
        latency=reduction["latency"][-1],
        collectives=rates,
    )


def _call_seconds(mesh: Mesh) -> float:
    """Returns the seconds of a call of a function that computes nearly nothing."""

    @function(mesh=mesh, x="position")
    def increment(x: Tensor) -> Tensor:
        """Returns x + 1, [position]."""
        return x + 1.0

    x = asarray(mesh, np.zeros(mesh.size, "float32"), [("position", mesh.size)])
    seconds = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        increment(x).numpy()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
