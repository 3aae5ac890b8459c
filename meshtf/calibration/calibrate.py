"""Measures all rates of the present machine, as a profile of hardware.

calibrate("spmd:cpu:8").save("my_machine.json")
"""

from __future__ import annotations

import datetime
import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.calibration.adjust import scale
from meshtf.calibration.clock import Clock, clock_of, on_cpus
from meshtf.calibration.collectives import SIZES, Rates, measure_collectives
from meshtf.calibration.elementwise import measure_elementwise
from meshtf.calibration.matmuls import TABLE, measure_matmuls
from meshtf.calibration.op_times import COLUMNS, ROWS, measure_ops
from meshtf.calibration.repeated_work import ROUNDS
from meshtf.calibration.small_step import SIZES as SIZES_OF_STEP
from meshtf.calibration.small_step import measure_steps
from meshtf.function.function import function
from meshtf.graph import Tensor
from meshtf.hardware import Hardware, Link, MeasuredMatmul
from meshtf.mesh import Mesh
from meshtf.runtime.spmd.live.jax_host import live_memory, platform_of
from meshtf.runtime.variable import Variable
from meshtf.version import __version__

_BFLOAT16 = TABLE[3:5]
_CALLS = 10
_VARIABLES = 2, 34


def calibrate(
    devices: str | None = None,
    positions: int = 8,
    name: str = "this machine",
    matmuls: Sequence[tuple[int, int, int, int]] = TABLE,
    bfloat16: Sequence[tuple[int, int, int, int]] = _BFLOAT16,
    sizes: tuple[int, int] = SIZES,
    rows: Sequence[int] = ROWS,
    rounds: int = ROUNDS,
    step_sizes: Mapping[str, int] = SIZES_OF_STEP,
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
      rows: of the tensors [rows, 128] on which softmax, norms and so on are measured.
      rounds: how often each work is timed.
      step_sizes: the sizes of the perceptron whose training steps are timed.
      report: is called with each line of progress.
    """
    count = num_positions(devices, positions)
    mesh = Mesh({"position": count}, "position:position", devices=devices)
    begin = time.monotonic()
    clock = clock_of(devices, count)
    report(
        f"{count} positions on {devices or 'one device'}, all at work at once; "
        f"{clock.name} clock"
    )
    call_seconds, array_seconds = _call_seconds(mesh, clock._replace(cores=1), report)
    op_seconds, bandwidth = measure_elementwise(mesh, report, rounds, clock)
    report("ops that take longer than to read and write memory")
    element_seconds = measure_ops(mesh, report, rows, rounds, clock)
    measured: list[MeasuredMatmul] = []
    for dtype, shapes in (("float32", matmuls), ("bfloat16", bfloat16)):
        report(f"{len(shapes)} shapes of matmuls in {dtype}, of one device")
        if shapes:
            measured += measure_matmuls(mesh, shapes, dtype, report, rounds, clock)
    report("collectives: latency, bytes that a device receives in a second")
    rates = measure_collectives(devices, count, report, sizes, rounds, clock)
    hardware = Hardware(
        name=name,
        matmul_flops=_peaks(measured),
        memory_bandwidth=bandwidth,
        links=(_link(rates),),
        memory=_memory(devices, mesh),
        op_seconds=op_seconds,
        call_seconds=call_seconds,
        array_seconds=array_seconds,
        element_counts=tuple(count * COLUMNS for count in rows),
        element_seconds=element_seconds,
        fuses=mesh.live,
        overlaps=not on_cpus(devices),
        platform=platform_of(mesh) if mesh.live else "",
        shares_equal_work=devices is None,
        matmuls=tuple(measured),
        sources={"all values": _source(clock)},
    )
    report("training steps of a small perceptron")
    steps = measure_steps(hardware, devices, count, clock, step_sizes)
    hardware = scale(hardware, steps)
    factor = hardware.work_factor("all")
    report(f"  all work takes {factor:.2f} times as long as alone in a loop")
    report(f"measured in {time.monotonic() - begin:.0f} s")
    return hardware


def num_positions(devices: str | None, positions: int) -> int:
    """Returns the count at the end of `devices`, such as "spmd:cpu:8"; otherwise
    `positions`.
    """
    count = (devices or "").rpartition(":")[2]
    return int(count) if count.isdigit() else positions


def _peaks(matmuls: Sequence[MeasuredMatmul]) -> dict[str, float]:
    """Returns the largest FLOPs per second of measured matmuls, by dtype."""
    peaks: dict[str, float] = {}
    for matmul in matmuls:
        peak = peaks.get(matmul.dtype, 0.0)
        peaks[matmul.dtype] = max(peak, matmul.flops_per_second)
    return peaks


def _source(clock: Clock) -> str:
    """Returns where measured values are from."""
    today = datetime.date.today().isoformat()
    return f"measured on {today} with meshtf {__version__}, {clock.name} clock"


def _memory(devices: str | None, mesh: Mesh) -> float | None:
    """Returns the bytes of memory of one device; None: unknown. CPU devices share it, and of
    other devices jax says how much it may take.
    """
    if not on_cpus(devices):
        return live_memory(mesh) if mesh.live else None
    count = mesh.size
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / count


def _link(rates: Mapping[str, Rates]) -> Link:
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


def _call_seconds(
    mesh: Mesh, clock: Clock, report: Callable[[str], None]
) -> tuple[float, float]:
    """Returns the seconds of a call of a function that computes nearly nothing, and the
    further ones for each variable that it reads and writes.
    """
    calls = [_increment(mesh, count) for count in _VARIABLES]
    times = np.array(
        [[_seconds_of(call, clock) for call in calls] for _ in range(_CALLS)]
    )
    few, many = times.min(axis=0)
    min_count, max_count = _VARIABLES
    array_seconds = max(float(many - few), 0.0) / (max_count - min_count)
    call_seconds = max(float(few) - min_count * array_seconds, 0.0)
    report(
        f"  call of a function {call_seconds * 1e3:6.2f} ms, and {array_seconds * 1e6:.0f} "
        "us for each variable"
    )
    return call_seconds, array_seconds


def _increment(mesh: Mesh, count: int) -> Callable[[], Any]:
    """Returns a function that adds 1 to so many variables, and returns 1, a scalar as a loss."""
    shape = [("position", mesh.size)]
    variables = [Variable(mesh, shape, "zeros", name=f"v{i}") for i in range(count)]

    @function(mesh=mesh, x="")
    def increment(x: Tensor) -> Tensor:
        """Adds x, a scalar, to all variables."""
        for variable in variables:
            variable.assign(variable + x)
        return x

    call = functools.partial(increment, np.float32(1))
    call()
    return call


def _seconds_of(call: Callable[[], Any], clock: Clock) -> float:
    """Returns the seconds of a call, with the result read."""
    start = clock.now()
    call().numpy()
    return clock.now() - start
