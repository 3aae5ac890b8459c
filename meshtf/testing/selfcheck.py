"""Whether every op and a small training give the right numbers on the devices of this
machine.

    python -m meshtf selfcheck                      # some minutes on two cores
    python -m meshtf selfcheck --quick              # a minute or less
    python -m meshtf selfcheck --ops=einsum,softmax
    python -m meshtf selfcheck --logical=8          # the CPU as eight devices

On every kind of device that is here (CPU, GPU, TPU) the positions of small meshes take
the devices in turn. Every op runs under the layouts of these meshes and is compared
with one device of the same kind and with TensorFlow's gradient tape; then a block of a
Transformer is trained for three steps. The report goes to stdout, progress to stderr.
Exit code: 0 all passed, 1 something failed, 2 wrong flags.
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
    "A mesh of two positions only, and no recorded programs but the training.",
)
_OPS = flags.DEFINE_list(
    "ops",
    [],
    "Ops to check, such as einsum,softmax: module, class, or both. Default: all.",
)
_LOGICAL = flags.DEFINE_integer(
    "logical", 0, "Splits the CPU into so many logical devices.", lower_bound=0
)
_SEED = flags.DEFINE_integer(
    "seed", 0, "Of all numbers, and of the layouts that are drawn."
)

EAGER = ("x:2;y:2", "x:4")  # the meshes of ops that run at once
RECORDED = ("x:2;y:2",)  # those of ops in a mtf.function
QUICK_EAGER = ("x:2",)
_SHOWN = 5  # failures of one row


class Row(NamedTuple):
    """What was found of one op, or of one other thing that was checked."""

    name: str
    eager: Report
    recorded: Report

    @property
    def failures(self) -> list[str]:
        """What is wrong; also that there was nothing to compare."""
        found = self.eager.failures + self.recorded.failures
        none = [] if self.cases else [f"{self.name}: nothing was compared"]
        return found or none

    @property
    def cases(self) -> int:
        """How many comparisons there were."""
        return self.eager.cases + self.recorded.cases

    def __str__(self) -> str:
        numbers = (
            self.eager.cases,
            self.eager.refused,
            self.recorded.cases,
            self.eager.left_out + self.recorded.left_out,
            len(self.failures),
        )
        return f"{self.name:<24}" + "".join(f"{number:>10,}" for number in numbers)


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
    tf.config.experimental.enable_tensor_float_32_execution(
        False
    )  # else 1e-3 is off, rightly
    try:
        return selfcheck(ops, _QUICK.value, _SEED.value)
    except KeyboardInterrupt:
        print("\nInterrupted: what is not reported was not checked.", file=sys.stderr)
        return 130


def choose(names: Sequence[str]) -> list[type[Op]]:
    """Returns the ops with samples that names stand for; without names, all of them.

    Raises:
      ValueError: a name is no op's.
    """
    every = [op for op in registered_ops() if op.samples]
    spellings = {op: {label(op).lower(), *label(op).lower().split(".")} for op in every}
    for name in names:
        known = set().union(*spellings.values())
        if name.lower() not in known:
            close = near_misses(name.lower(), known)
            modules = ", ".join(sorted({label(op).split(".")[0] for op in every}))
            raise ValueError(
                f"There is no op {name!r}."
                + (f" Did you mean {close}?" if close else "")
                + f"\nModules of ops: {modules}."
            )
    return [
        op
        for op in every
        if not names or spellings[op] & {name.lower() for name in names}
    ]


def selfcheck(ops: Sequence[type[Op]], quick: bool = False, seed: int = 0) -> int:
    """Checks ops and training on all kinds of devices, prints a report, returns the
    exit code.
    """
    start, kinds = time.monotonic(), device_kinds()
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
    for kind, found in rows.items():
        _print_failures(kind, found)
    every = [row for found in rows.values() for row in found]
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
    kind: str, devices: Sequence[str], ops: Sequence[type[Op]], quick: bool, seed: int
) -> list[Row]:
    """Checks ops and training on the devices of one kind, prints a row for each,
    returns them.
    """
    eager, recorded = (QUICK_EAGER, ()) if quick else (EAGER, RECORDED)
    layouts = (
        small_training.LAYOUTS[: small_training.QUICK]
        if quick
        else small_training.LAYOUTS
    )
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
    progress = Progress(size + 30)  # training takes as long as 30 samples, about
    rows: list[Row] = []

    def check(
        name: str, first: Callable[[], Report], second: Callable[[], Report]
    ) -> None:
        progress.begin(f"{len(rows)}/{len(ops) + 2} done, {name}")
        row = Row(name, _guarded(name, first), _guarded(name, second))
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
        partial(small_training.check_training, seed, layouts, devices),
    )
    return rows


def _nothing() -> Report:
    # Stands where something is not checked in one of the two ways.
    return Report("", 0)


def _guarded(name: str, check: Callable[[], Report]) -> Report:
    try:
        return check()
    except (
        Exception
    ) as error:  # a finding about this op; the others are checked all the same
        return Report(
            name, 0, failures=[f"{name}: {type(error).__name__}: {str(error)[:600]}"]
        )


def _print_failures(kind: str, rows: Sequence[Row]) -> None:
    for row in rows:
        for failure in row.failures[:_SHOWN]:
            print(f"\n{kind}, {row.name}: {failure}")
        if len(row.failures) > _SHOWN:
            print(f"\n{kind}, {row.name}: and {len(row.failures) - _SHOWN} more")


def _version() -> str:
    try:
        return metadata.version("meshtf")
    except metadata.PackageNotFoundError:
        return "(not installed)"
