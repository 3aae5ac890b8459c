"""Checks that every op and a small training compute correct values on the devices of this
machine.

    python -m meshtf selfcheck                      # some minutes on two cores
    python -m meshtf selfcheck --quick              # a minute or less
    python -m meshtf selfcheck --ops=einsum,softmax
    python -m meshtf selfcheck --logical=8          # the CPU as eight devices

For every kind of device that is present (CPU, GPU, TPU), small meshes use the devices of
that kind round-robin. Every op runs under the layouts of these meshes and is compared with
one device of the same kind and with TensorFlow's gradient tape; then a block of a
Transformer is trained for three steps. The report goes to stdout, progress to stderr.
Exit code: 0 all passed, 1 a check failed, 2 wrong flags.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from typing import NamedTuple

import tensorflow as tf
from absl import flags, logging

from meshtf.errors import MeshError, near_misses
from meshtf.graph import Op
from meshtf.runtime.devices.resolve import logical_devices
from meshtf.testing import small_training
from meshtf.testing.conformance.eager_suite import check_op
from meshtf.testing.conformance.recorded_suite import check_program
from meshtf.testing.conformance.report import Report
from meshtf.testing.conformance.samples import label, registered_ops
from meshtf.testing.hardware import check_placement, describe, device_kinds
from meshtf.testing.progress import Progress, spell_seconds

_QUICK = flags.DEFINE_bool(
    "quick",
    False,
    "Only a mesh of two positions, and no recorded programs except the training.",
)
_OPS = flags.DEFINE_list(
    "ops",
    [],
    "Ops to check, such as einsum,softmax: module, class, or both. Default: all.",
)
_LOGICAL = flags.DEFINE_integer(
    "logical",
    0,
    "The number of logical devices that the CPU is split into.",
    lower_bound=0,
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Of all random values, and of the layouts that are drawn."
)

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


def main(argv: Sequence[str]) -> int:
    """Reads the flags, checks, and returns the exit code."""
    logging.set_verbosity(logging.WARNING)
    try:
        if len(argv) > 1:
            raise ValueError(
                f"{argv[1]!r} is not a flag: all settings are flags, such as --quick."
            )
        ops = choose(_OPS.value)
        if _LOGICAL.value:
            logical_devices(_LOGICAL.value)
    except (ValueError, MeshError) as error:
        print(error, file=sys.stderr)
        return 2
    # With TensorFloat-32, results correctly differ by 1e-3.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        return selfcheck(ops, _QUICK.value, _SEED.value)
    except KeyboardInterrupt:
        print("\nInterrupted: what is not reported was not checked.", file=sys.stderr)
        return 130


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
