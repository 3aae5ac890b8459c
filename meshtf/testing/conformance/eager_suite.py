"""The eager suite: every sample under every layout, with whole and partial inputs.

    report = check_sample(Lookup, 0)
    print(report)       # models.Lookup: 310 cases, 120 refused, 0 left out, 0 failures (seed 0)

An illegal layout must be refused with a LayoutError; it counts as refused, never as
passed.
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
from meshtf.testing.conformance.partial_sums import as_partial, can_be_partial, variants
from meshtf.testing.conformance.reference import Expected, expected
from meshtf.testing.conformance.report import Report, report_for
from meshtf.testing.conformance.samples import MESHES, generator, label

LEGAL, ILLEGAL = 100, 300  # layouts of one sample on one mesh, at most


def check_op(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: Sequence[str] = (),
) -> Report:
    """Runs all samples of an op eagerly and returns what was found.

    Args:
      op_class: an op with samples.
      seed: of the numbers and of the layouts drawn where there are too many.
      meshes: axes and sizes of each mesh.
      fail_fast: whether to stop at the first failure.
      devices: names that positions take in turn; without any, what there is.
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
    """Runs one sample of an op eagerly and returns what was found; arguments as of
    `check_op`.
    """
    report = Report(label(op_class), seed)
    sample = op_class.samples[index]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", LayoutWarning
        )  # odd layouts are what is tried here
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
            _try_layout(case, mesh_on(axes, spell(rules), devices), report)
    return report


def _layouts(
    case: Expected, report: Report, meshes: Sequence[str]
) -> Iterator[tuple[str, Rules]]:
    """Returns all layouts to try, legal or not, and counts those left out."""
    rng = generator(report.seed, "layouts", report.op)
    for axes in meshes:
        sizes = Mesh(axes).axes
        every = all_layouts(case.dims, list(sizes))
        legal = [rules for rules in every if is_legal(case.shapes, sizes, rules)]
        illegal = [rules for rules in every if not is_legal(case.shapes, sizes, rules)]
        report.left_out += max(0, len(legal) - LEGAL) + max(0, len(illegal) - ILLEGAL)
        yield from (
            (axes, rules)
            for rules in pick(legal, LEGAL, rng) + pick(illegal, ILLEGAL, rng)
        )


def _try_layout(case: Expected, mesh: Mesh, report: Report) -> None:
    where = f"{case.op} {[shape for _, shape in case.arrays]} on {mesh!r}, layout {mesh.layout}"
    rules = {dim: axes[0] for dim, axes in mesh.layout.items()}
    if not is_legal(case.shapes, mesh.axes, rules):
        _must_refuse(case, mesh, where, report)
        return
    try:
        xs = case.inputs(mesh)
        for variant in variants(xs):
            report.cases += 1
            inputs = variant.of(xs)
            ys = apply_all(case.op, *inputs, mesh=mesh)
            problem = _forward(case, ys, case.tolerance)
            problem = problem or _backward(case, ys, inputs, case.cotangents_on(mesh))
            if problem:
                report.failures.append(f"{where} {variant.how}: {problem}")
        _partial_cotangents(case, xs, mesh, where, report)
    except (
        Exception
    ) as error:  # whatever comes is a finding, and the next layout is tried
        report.failures.append(f"{where}: {type(error).__name__}: {str(error)[:600]}")


def _must_refuse(case: Expected, mesh: Mesh, where: str, report: Report) -> None:
    try:
        apply_all(case.op, *case.inputs(mesh), mesh=mesh)
    except LayoutError:
        report.refused += 1
    except Exception as error:
        report.failures.append(
            f"{where}: is illegal, but came {type(error).__name__}: {error}"
        )
    else:
        report.failures.append(f"{where}: is illegal, but was not refused")


def _forward(case: Expected, ys: Sequence[Tensor], tolerance: float) -> str:
    for k, (y, (array, shape)) in enumerate(zip(ys, case.outputs, strict=True)):
        problem = difference(y, shape, array, tolerance)
        if problem:
            return f"output {k}: {problem}"
    return ""


def _backward(
    case: Expected,
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    dys: Sequence[Tensor | None],
) -> str:
    if case.gradients is None:
        return ""
    for i, (dx, want) in enumerate(
        zip(case.backward(ys, xs, dys), case.gradients, strict=True)
    ):
        if (dx is None) != (want is None):
            return (
                f"gradient {i}: {'none' if dx is None else 'one'}, unlike on one device"
            )
        problem = (
            "" if dx is None else difference(dx, case.arrays[i][1], want, case.rounding)
        )
        if problem:
            return f"gradient {i}: {problem}"
    return ""


def _partial_cotangents(
    case: Expected, xs: Sequence[Tensor], mesh: Mesh, where: str, report: Report
) -> None:
    """Gradients again, with cotangents that are unequal partial sums."""
    if case.gradients is None:
        return
    for axis in mesh.axes:
        dys = case.cotangents_on(mesh)
        able = [
            k for k, dy in enumerate(dys) if dy is not None and can_be_partial(dy, axis)
        ]
        if able:
            report.cases += 1
            partial = [
                dy if dy is None or k not in able else as_partial(dy, axis)
                for k, dy in enumerate(dys)
            ]
            problem = _backward(case, apply_all(case.op, *xs, mesh=mesh), xs, partial)
            if problem:
                report.failures.append(
                    f"{where} cotangents partial on {axis}: {problem}"
                )
