"""The eager suite: every sample under every layout, with replicated, sharded and partial
inputs.

    report = check_sample(Lookup, 0)
    print(report)       # models.Lookup: 310 cases, 120 refused, 0 left out, 0 failures (seed 0)

An illegal layout must raise LayoutError; it counts as refused, not as a case.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from meshtf.errors import LayoutError, LayoutWarning
from meshtf.graph import Op, Tensor, apply_all
from meshtf.mesh import Mesh
from meshtf.testing.conformance.compare import difference
from meshtf.testing.conformance.layouts import (
    Rules,
    all_layouts,
    is_legal,
    mesh_on,
    pick,
    spell,
)
from meshtf.testing.conformance.partial_sums import (
    as_partial,
    can_be_partial,
    variants_of,
)
from meshtf.testing.conformance.reference import Expected, expected
from meshtf.testing.conformance.report import Report, report_for
from meshtf.testing.conformance.samples import MESHES, generator, label

# The maximum numbers of layouts of one sample on one mesh.
MAX_LEGAL = 100
MAX_ILLEGAL = 300


def check_op(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: Sequence[str] = (),
) -> Report:
    """Runs all samples of an op eagerly and returns a report.

    Args:
      op_class: an op with samples.
      seed: of the random values, and of the layouts drawn if there are too many.
      meshes: axes and sizes of each mesh.
      fail_fast: whether to stop at the first failure.
      devices: names of devices that meshes use round-robin; empty: all of this machine.
    """
    report = report_for(label(op_class), len(op_class.samples), seed)
    for i in range(len(op_class.samples)):
        report.add(check_sample(op_class, i, seed, meshes, fail_fast, devices))
        if fail_fast and report.failures:
            break
    return report


def check_sample(
    op_class: type[Op],
    index: int,
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: Sequence[str] = (),
) -> Report:
    """Runs one sample of an op eagerly and returns a report; arguments as of `check_op`."""
    report = Report(label(op_class), seed)
    sample = op_class.samples[index]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # unusual layouts are intended
        try:
            case = expected(op_class, sample, seed, devices)
        except Exception as error:
            report.failures.append(
                f"{op_class.__name__} {sample} on one device: {type(error).__name__}: "
                f"{str(error)[:600]}"
            )
            return report
        report.failures += [
            f"{case.op} {sample.inputs} on one device: {p}" for p in case.problems
        ]
        for axes, rules in _layouts(case, report, meshes):
            if fail_fast and report.failures:
                break
            _check_layout(case, mesh_on(axes, spell(rules), devices), report)
    return report


def _layouts(
    case: Expected, report: Report, meshes: Sequence[str]
) -> Iterator[tuple[str, Rules]]:
    """Yields axes and layouts to check, legal and illegal, and counts those left out."""
    rng = generator(report.seed, "layouts", report.op)
    for axes in meshes:
        sizes = Mesh(axes).axes
        every = all_layouts(case.dims, list(sizes))
        legal = [rules for rules in every if is_legal(case.shapes, sizes, rules)]
        illegal = [rules for rules in every if not is_legal(case.shapes, sizes, rules)]
        report.left_out += max(0, len(legal) - MAX_LEGAL)
        report.left_out += max(0, len(illegal) - MAX_ILLEGAL)
        for rules in pick(legal, MAX_LEGAL, rng) + pick(illegal, MAX_ILLEGAL, rng):
            yield axes, rules


def _check_layout(case: Expected, mesh: Mesh, report: Report) -> None:
    """Adds the results of a sample under one layout to the report."""
    shapes = [shape for _, shape in case.arrays]
    where = f"{case.op} {shapes} on {mesh}, layout {mesh.layout}"
    rules = {dim: axes[0] for dim, axes in mesh.layout.items()}
    if not is_legal(case.shapes, mesh.axes, rules):
        _check_refused(case, mesh, where, report)
        return
    try:
        xs = case.inputs(mesh)
        for variant in variants_of(xs):
            report.cases += 1
            inputs = variant.of(xs)
            ys = apply_all(case.op, *inputs, mesh=mesh)
            problem = _check_outputs(case, ys, case.tolerance)
            if not problem:
                dys = case.cotangents_on(mesh)
                problem = _check_gradients(case, ys, inputs, dys)
            if problem:
                report.failures.append(f"{where} {variant.description}: {problem}")
        _check_partial_cotangents(case, xs, mesh, where, report)
    except Exception as error:  # a failure; the next layout is checked anyway
        report.failures.append(f"{where}: {type(error).__name__}: {str(error)[:600]}")


def _check_refused(
    case: Expected,
    mesh: Mesh,
    where: str,
    report: Report,
) -> None:
    """Checks that an illegal layout raises LayoutError."""
    try:
        apply_all(case.op, *case.inputs(mesh), mesh=mesh)
    except LayoutError:
        report.refused += 1
    except Exception as error:
        report.failures.append(
            f"{where}: is illegal, but raised {type(error).__name__}: {error}"
        )
    else:
        report.failures.append(f"{where}: is illegal, but was not refused")


def _check_outputs(case: Expected, ys: Sequence[Tensor], tolerance: float) -> str:
    """Returns how outputs differ from the expected ones, or ""."""
    for k, (y, (array, shape)) in enumerate(zip(ys, case.outputs, strict=True)):
        problem = difference(y, shape, array, tolerance)
        if problem:
            return f"output {k}: {problem}"
    return ""


def _check_gradients(
    case: Expected,
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    dys: Sequence[Tensor | None],
) -> str:
    """Returns how gradients differ from those of one device, or ""."""
    if case.gradients is None:
        return ""
    dxs = case.backward(ys, xs, dys)
    for i, (dx, expected_dx) in enumerate(zip(dxs, case.gradients, strict=True)):
        if (dx is None) != (expected_dx is None):
            existing = "none" if dx is None else "one"
            return f"gradient {i}: {existing}, unlike on one device"
        if dx is None:
            continue
        _, shape = case.arrays[i]
        if problem := difference(
            dx,
            shape,
            expected_dx,
            case.rounding,
        ):
            return f"gradient {i}: {problem}"
    return ""


def _check_partial_cotangents(
    case: Expected,
    xs: Sequence[Tensor],
    mesh: Mesh,
    where: str,
    report: Report,
) -> None:
    """Checks gradients for cotangents that are unequal partial sums."""
    if case.gradients is None:
        return
    for axis in mesh.axes:
        dys = case.cotangents_on(mesh)
        any_partial = False
        for k, dy in enumerate(dys):
            if dy is not None and can_be_partial(dy, axis):
                dys[k] = as_partial(dy, axis)
                any_partial = True
        if any_partial:
            report.cases += 1
            ys = apply_all(case.op, *xs, mesh=mesh)
            problem = _check_gradients(case, ys, xs, dys)
            if problem:
                report.failures.append(
                    f"{where} cotangents partial on {axis}: {problem}"
                )
