"""Amounts as text, with units.

>>> bytes_text(1536), flops_text(2.5e9), bytes_text(0), seconds_text(0.0042)
('1.50 KiB', '2.50 GFLOP', '0', '4.20 ms')
"""

from __future__ import annotations

from collections.abc import Sequence

_LEAST_SECONDS = 1e-12  # less is an error of rounding


def bytes_text(amount: float) -> str:
    """Returns bytes with a binary unit."""
    return _with_unit(amount, base=1024, units=("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def flops_text(amount: float) -> str:
    """Returns floating-point operations with a decimal unit."""
    units = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
    return _with_unit(amount, base=1000, units=units)


def _with_unit(amount: float, base: int, units: Sequence[str]) -> str:
    """Returns an amount with three significant digits in the unit that fits."""
    if not amount:
        return "0"
    for unit in units:
        digits = 0 if unit == units[0] else _decimals(amount)
        if round(amount, digits) < base or unit == units[-1]:
            return f"{amount:.{digits}f} {unit}"
        amount /= base
    return ""


def _decimals(amount: float) -> int:
    """Returns the number of decimals that shows three digits of an amount."""
    if amount < 9.995:
        return 2
    return 1 if amount < 99.95 else 0


def seconds_text(amount: float) -> str:
    """Returns a time in seconds with a decimal unit."""
    if amount < _LEAST_SECONDS:
        return "0"
    # A unit is used for times below the limit, which is 1,000 of the unit.
    for limit, unit in ((1e-6, "ns"), (1e-3, "us"), (1.0, "ms")):
        if amount < limit:
            scaled = amount / limit * 1000
            return f"{scaled:.{_decimals(scaled)}f} {unit}"
    return f"{amount:.{_decimals(amount)}f} s"


def devices_text(count: int) -> str:
    """Returns a number of devices as text, such as "1 device" or "1,024 devices"."""
    return f"{count:,} device" if count == 1 else f"{count:,} devices"
