"""Checks that every op and a small training compute correct values on the devices of this
machine.

    # As the command: python -m meshtf selfcheck --quick --ops=einsum
    exit_code = selfcheck(choose(["einsum"]), quick=True)

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
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from meshtf.errors import near_misses
from meshtf.graph import Op
from meshtf.mesh import Mesh
from meshtf.testing import small_training
from meshtf.testing.conformance.eager_suite import check_op
from meshtf.testing.conformance.exported_suite import check_live
from meshtf.testing.conformance.recorded_suite import check_program
from meshtf.testing.conformance.report import Report
from meshtf.testing.conformance.samples import label, registered_ops
from meshtf.testing.hardware import (
    check_placement,
    describe,
    describe_live,
    device_kinds,
)
from meshtf.testing.progress import Progress, duration_text

Check: TypeAlias = Callable[[], Report]
# The axes of the meshes: of eager ops, of ops in a mtf.function, of eager ops in a quick
# check, and of live meshes (run by jax), of which the largest that fits is taken.
EAGER_MESHES = ("x:2;y:2", "x:4")
RECORDED_MESHES = ("x:2;y:2",)
QUICK_EAGER_MESHES = ("x:2",)
LIVE_MESHES = ("", "x:2", "x:2;y:2")
_MAX_SHOWN = 5  # the count of failures that are printed for one row
_COLUMNS = ("eager", "refused", "recorded", "left out", "failures")
_LIVE_COLUMNS = ("recorded", "left out", "failures")
_NAME_WIDTH = 32  # of the longest label of an op
# Training takes about as long as this many samples of ops.
_TRAINING_SAMPLES = 30


class Row(NamedTuple):
    """The results of one check: a row of the printed table.

    Attributes:
      name: the label of an op, "placement" or "training".
      eager: the report of eager calls.
      recorded: the report of calls in a mtf.function.
    """

    name: str
    eager: Report
    recorded: Report

    @property
    def failures(self) -> list[str]:
        """All failures. If nothing was compared, that is a failure."""
        failures = self.eager.failures + self.recorded.failures
        if not failures and not self.cases:
            return [f"{self.name}: nothing was compared"]
        return failures

    @property
    def cases(self) -> int:
        """The count of comparisons."""
        return self.eager.cases + self.recorded.cases

    def text(self, columns: Sequence[str] = _COLUMNS) -> str:
        """Returns the name, and a count for each column."""
        counts = {
            "eager": self.eager.cases,
            "refused": self.eager.refused,
            "recorded": self.recorded.cases,
            "left out": self.eager.left_out + self.recorded.left_out,
            "failures": len(self.failures),
        }
        aligned = "".join(f"{counts[column]:>10,}" for column in columns)
        return f"{self.name:<{_NAME_WIDTH}}{aligned}"


def choose(names: Sequence[str]) -> list[type[Op]]:
    """Returns the ops with samples that have one of the names; without names, all ops
    with samples.

    Args:
      names: names of modules or ops, or both: "gather", "Gather" or "gather.Gather".

    Raises:
      ValueError: there is no op for one of the names.
    """
    ops = [op for op in registered_ops() if op.conformance_samples]
    if not names:
        return ops
    names_of_ops = {}
    for op in ops:
        full_name = label(op).lower()
        names_of_ops[op] = {full_name, *full_name.split(".")}
    known_names = set().union(*names_of_ops.values())
    for name in names:
        if name.lower() not in known_names:
            close = near_misses(name.lower(), known_names)
            modules = ", ".join(sorted({label(op).split(".")[0] for op in ops}))
            raise ValueError(
                f"There is no op {name!r}."
                + (f" Did you mean {close}?" if close else "")
                + f"\nModules of ops: {modules}."
            )
    requested_names = {name.lower() for name in names}
    return [op for op in ops if names_of_ops[op] & requested_names]


def selfcheck(
    ops: Sequence[type[Op]], quick: bool = False, seed: int = 0, live: str = ""
) -> int:
    """Checks ops and training on all kinds of devices, and prints a report.

    Args:
      ops: the classes of the ops to check.
      quick: whether to check ops only eagerly and on one mesh, and training under fewer
        layouts.
      seed: the seed of the random values and layouts.
      live: the devices of live meshes to check instead, such as "spmd:cuda"; "": the
        devices that TensorFlow lists.

    Returns:
      The exit code of a program: 1 if there is a failure, else 0.
    """
    start = time.monotonic()
    print(
        f"meshtf {_version()}, TensorFlow {tf.__version__}, Python "
        f"{platform.python_version()}, {platform.platform()}; seed {seed}"
    )
    if live:
        rows = check_live_devices(live, ops, quick=quick, seed=seed)
        _print_failures(live, rows)
        _print_totals({live: rows}, [], time.monotonic() - start)
        return 1 if any(row.failures for row in rows) else 0
    kinds = device_kinds()
    for kind, devices in kinds.items():
        print(f"{kind}  {describe(kind, devices)}", flush=True)
    rows_by_kind = {}
    for kind, devices in kinds.items():
        if devices:
            rows_by_kind[kind] = check_kind(kind, devices, ops, quick=quick, seed=seed)
    for kind, rows in rows_by_kind.items():
        _print_failures(kind, rows)
    absent_kinds = [kind for kind, devices in kinds.items() if not devices]
    _print_totals(rows_by_kind, absent_kinds, time.monotonic() - start)
    all_passed = not any(row.failures for rows in rows_by_kind.values() for row in rows)
    return 0 if all_passed else 1


def _print_totals(
    rows_by_kind: dict[str, list[Row]], absent_kinds: list[str], seconds: float
) -> None:
    """Prints the last line of the report.

    Args:
      rows_by_kind: the rows of each kind of device.
      absent_kinds: the kinds of which there is no device.
      seconds: the duration of all checks.
    """
    all_rows = [row for rows in rows_by_kind.values() for row in rows]
    num_failures = sum(len(row.failures) for row in all_rows)
    print(
        f"\n{'FAILED' if num_failures else 'Passed'} on {', '.join(rows_by_kind)}: "
        f"{sum(row.cases for row in all_rows):,} cases, "
        f"{sum(row.eager.refused for row in all_rows):,} illegal layouts refused, "
        f"{num_failures:,} failures, {duration_text(seconds)}. "
        f"Not tried: {', '.join(absent_kinds) or 'none'}."
    )


def check_kind(
    kind: str,
    devices: Sequence[str],
    ops: Sequence[type[Op]],
    quick: bool,
    seed: int,
) -> list[Row]:
    """Checks ops and training on the devices of one kind, prints a row for each, and
    returns the rows.

    Args:
      kind: the kind of the devices, such as "CPU".
      devices: the names of the devices.
      ops: the classes of the ops to check.
      quick: whether to check less, as in `selfcheck`.
      seed: the seed of the random values and layouts.
    """
    eager_meshes = QUICK_EAGER_MESHES if quick else EAGER_MESHES
    recorded_meshes = () if quick else RECORDED_MESHES
    layouts = small_training.QUICK_LAYOUTS if quick else small_training.LAYOUTS
    print(
        f"\n{kind}: {len(ops)} ops; eager on meshes {', '.join(eager_meshes)}; "
        f"recorded on {', '.join(recorded_meshes) or 'none'}; training under "
        f"{len(layouts)} layouts\n"
    )
    _print_titles()
    num_samples = sum(len(op.conformance_samples) for op in ops)
    progress = Progress(num_samples + _TRAINING_SAMPLES)
    rows: list[Row] = []
    num_checks = len(ops) + 2  # with placement and training

    def check(
        name: str, check_eager: Check | None, check_recorded: Check | None
    ) -> None:
        """Runs the eager and the recorded check, and prints their row; None: no check."""
        progress.begin(f"{len(rows)}/{num_checks} done, {name}")
        row = Row(name, _run_check(name, check_eager), _run_check(name, check_recorded))
        progress.clear()
        print(row.text(), flush=True)
        rows.append(row)

    check("placement", partial(check_placement, devices), check_recorded=None)
    for op in ops:
        check_eager = partial(
            check_op, op, seed, eager_meshes, devices=devices, recorded=False
        )
        check_recorded = None
        if recorded_meshes:
            check_recorded = partial(
                check_program, op, seed, recorded_meshes, devices=devices
            )
        check(label(op), check_eager, check_recorded)
        progress.done(len(op.conformance_samples))
    check_training = partial(small_training.check_training, seed, layouts, devices)
    check("training", check_eager=None, check_recorded=check_training)
    return rows


def check_live_devices(
    devices: str, ops: Sequence[type[Op]], quick: bool, seed: int
) -> list[Row]:
    """Checks ops and training on live meshes, whose programs jax compiles and runs; prints a
    row for each, and returns the rows.

    Args:
      devices: the devices of the meshes, such as "spmd:cuda".
      ops: the classes of the ops to check.
      quick: whether meshes have at most two positions.
      seed: the seed of the random values and layouts.
    """
    count, description = describe_live(devices)
    print(f"{devices}  {count} ({description})", flush=True)
    max_positions = 2 if quick else count
    fitting_meshes = [axes for axes in LIVE_MESHES if Mesh(axes).size <= max_positions]
    largest_axes = fitting_meshes[-1]
    layouts = [
        layout
        for layout in small_training.LAYOUTS
        if Mesh(layout.axes).size <= Mesh(largest_axes).size
    ]
    if not layouts:
        layouts = [small_training.MeshLayout(axes="", layout="")]
    print(
        f"\n{devices}: {len(ops)} ops in programs on the mesh {largest_axes or 'of one'}; "
        f"training under {len(layouts)} layouts\n"
    )
    _print_titles(_LIVE_COLUMNS)
    checks: dict[str, Check] = {}
    for op in ops:
        checks[label(op)] = partial(
            check_live, op, seed, [largest_axes], devices=devices
        )
    checks["training"] = partial(small_training.check_training, seed, layouts, devices)
    progress = Progress(len(checks))
    rows: list[Row] = []
    for name, check in checks.items():
        progress.begin(f"{len(rows)}/{len(checks)} done, {name}")
        no_eager_calls = Report(name, seed)
        row = Row(name, eager=no_eager_calls, recorded=_run_check(name, check))
        progress.clear()
        print(row.text(_LIVE_COLUMNS), flush=True)
        rows.append(row)
        progress.done(1)
    return rows


def _print_titles(columns: Sequence[str] = _COLUMNS) -> None:
    """Prints the titles of the columns of `Row.text`."""
    titles = "".join(f"{column:>10}" for column in columns)
    print(f"{'':<{_NAME_WIDTH}}{titles}")


def _run_check(name: str, check: Check | None) -> Report:
    """Returns the report of a check, empty if there is no check in this mode. An exception
    is a failure.
    """
    if check is None:
        return Report(name, seed=0)
    try:
        return check()
    except Exception as error:  # a failure; the remaining ops are checked anyway
        failure = f"{name}: {type(error).__name__}: {str(error)[:600]}"
        return Report(name, seed=0, failures=[failure])


def _print_failures(kind: str, rows: Sequence[Row]) -> None:
    """Prints the first failures of each row."""
    for row in rows:
        for failure in row.failures[:_MAX_SHOWN]:
            print(f"\n{kind}, {row.name}: {failure}")
        if len(row.failures) > _MAX_SHOWN:
            print(f"\n{kind}, {row.name}: and {len(row.failures) - _MAX_SHOWN} more")


def _version() -> str:
    """Returns the version of the installed package."""
    try:
        return metadata.version("meshtf")
    except metadata.PackageNotFoundError:
        return "(not installed)"
