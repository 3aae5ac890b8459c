"""Checks that every op and a small training compute correct values on the devices of this
machine.

    code = selfcheck(choose(["einsum"]), quick=True)      # as `python -m meshtf selfcheck`

For every kind of device that is present (CPU, GPU, TPU), small meshes use the devices of
that kind round-robin. Every op runs under the layouts of these meshes and is compared with
one device of the same kind and with TensorFlow's gradient tape; then a block of a
Transformer is trained for three steps.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import NamedTuple

import tensorflow as tf

from meshtf.errors import near_misses
from meshtf.graph import Op
from meshtf.testing import small_training
from meshtf.testing.conformance.eager_suite import check_op
from meshtf.testing.conformance.recorded_suite import check_program
from meshtf.testing.conformance.report import Report
from meshtf.testing.conformance.samples import label, registered_ops
from meshtf.testing.hardware import check_placement, describe, device_kinds
from meshtf.testing.progress import Progress, spell_seconds

EAGER = ("x:2;y:2", "x:4")  # meshes of eager ops
RECORDED = ("x:2;y:2",)  # meshes of ops in a mtf.function
QUICK_EAGER = ("x:2",)
_MAX_SHOWN = 5  # failures of one row


class Row(NamedTuple):
    """The results of one op, or of another check: a row of the report."""

    name: str
    eager: Report
    recorded: Report

    @property
    def failures(self) -> list[str]:
        """All failures; it is one if nothing was compared."""
        failures = self.eager.failures + self.recorded.failures
        if not failures and not self.cases:
            return [f"{self.name}: nothing was compared"]
        return failures

    @property
    def cases(self) -> int:
        """The number of comparisons."""
        return self.eager.cases + self.recorded.cases

    def __str__(self) -> str:
        counts = (
            self.eager.cases,
            self.eager.refused,
            self.recorded.cases,
            self.eager.left_out + self.recorded.left_out,
            len(self.failures),
        )
        return f"{self.name:<24}" + "".join(f"{count:>10,}" for count in counts)


def choose(names: Sequence[str]) -> list[type[Op]]:
    """Returns the ops with samples that have these names; without names, all of them.

    Raises:
      ValueError: no op has a name.
    """
    every = [op for op in registered_ops() if op.samples]
    names_of_ops = {}
    for op in every:
        full_name = label(op).lower()
        names_of_ops[op] = {full_name, *full_name.split(".")}
    for name in names:
        known = set().union(*names_of_ops.values())
        if name.lower() not in known:
            close = near_misses(name.lower(), known)
            modules = ", ".join(sorted({label(op).split(".")[0] for op in every}))
            raise ValueError(
                f"There is no op {name!r}."
                + (f" Did you mean {close}?" if close else "")
                + f"\nModules of ops: {modules}."
            )
    requested = {name.lower() for name in names}
    return [op for op in every if not names or names_of_ops[op] & requested]


def selfcheck(ops: Sequence[type[Op]], quick: bool = False, seed: int = 0) -> int:
    """Checks ops and training on all kinds of devices, prints a report, and returns the
    exit code.
    """
    start = time.monotonic()
    kinds = device_kinds()
    print(
        f"meshtf {_version()}, TensorFlow {tf.__version__}, Python "
        f"{platform.python_version()}, {platform.platform()}; seed {seed}"
    )
    for kind, devices in kinds.items():
        print(f"{kind}  {describe(kind, devices)}", flush=True)
    rows = {
        kind: check_kind(kind, devices, ops, quick, seed)
        for kind, devices in kinds.items()
        if devices
    }
    every = []
    for kind, rows_of_kind in rows.items():
        _print_failures(kind, rows_of_kind)
        every += rows_of_kind
    failures = sum(len(row.failures) for row in every)
    absent = [kind for kind, devices in kinds.items() if not devices]
    print(
        f"\n{'FAILED' if failures else 'Passed'} on {', '.join(rows)}: "
        f"{sum(row.cases for row in every):,} cases, "
        f"{sum(row.eager.refused for row in every):,} illegal layouts refused, "
        f"{failures:,} failures, {spell_seconds(time.monotonic() - start)}. "
        f"Not tried: {', '.join(absent) or 'none'}."
    )
    return 1 if failures else 0


def check_kind(
    kind: str,
    devices: Sequence[str],
    ops: Sequence[type[Op]],
    quick: bool,
    seed: int,
) -> list[Row]:
    """Checks ops and training on the devices of one kind, prints a row for each, and
    returns the rows.
    """
    eager = QUICK_EAGER if quick else EAGER
    recorded = () if quick else RECORDED
    layouts = small_training.QUICK_LAYOUTS if quick else small_training.LAYOUTS
    print(
        f"\n{kind}: {len(ops)} ops; eager on meshes {', '.join(eager)}; recorded on "
        f"{', '.join(recorded) or 'none'}; training under {len(layouts)} layouts\n"
    )
    print(
        f"{'':<24}"
        + "".join(
            f"{column:>10}"
            for column in ("eager", "refused", "recorded", "left out", "failures")
        )
    )
    size = sum(len(op.samples) for op in ops)
    progress = Progress(size + 30)  # training takes about as long as 30 samples
    rows: list[Row] = []

    def check(
        name: str,
        check_eager: Callable[[], Report],
        check_recorded: Callable[[], Report],
    ) -> None:
        progress.begin(f"{len(rows)}/{len(ops) + 2} done, {name}")
        row = Row(name, _guarded(name, check_eager), _guarded(name, check_recorded))
        progress.clear()
        print(row, flush=True)
        rows.append(row)

    check("placement", partial(check_placement, devices), _nothing)
    for op in ops:
        check(
            label(op),
            partial(check_op, op, seed, eager, devices=devices),
            partial(check_program, op, seed, recorded, devices=devices)
            if recorded
            else _nothing,
        )
        progress.done(len(op.samples))
    check(
        "training",
        _nothing,
        partial(
            small_training.check_training,
            seed,
            layouts,
            devices,
        ),
    )
    return rows


def _nothing() -> Report:
    """Returns an empty report: for checks that exist in only one of the two modes."""
    return Report("", 0)


def _guarded(name: str, check: Callable[[], Report]) -> Report:
    """Returns the report of a check; an exception becomes a failure."""
    try:
        return check()
    except Exception as error:  # of this op; other ops are checked anyway
        failure = f"{name}: {type(error).__name__}: {str(error)[:600]}"
        return Report(name, 0, failures=[failure])


def _print_failures(kind: str, rows: Sequence[Row]) -> None:
    for row in rows:
        for failure in row.failures[:_MAX_SHOWN]:
            print(f"\n{kind}, {row.name}: {failure}")
        if len(row.failures) > _MAX_SHOWN:
            print(f"\n{kind}, {row.name}: and {len(row.failures) - _MAX_SHOWN} more")


def _version() -> str:
    try:
        return metadata.version("meshtf")
    except metadata.PackageNotFoundError:
        return "(not installed)"
