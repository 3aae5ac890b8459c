"""The eager suite: runs every sample of an op eagerly under every layout, with replicated,
sharded and partial inputs. A partial input is a sum (or maximum, or minimum) that is not yet
reduced: each device has one addend.

    report = check_sample(Lookup, index=0)
    print(report)       # models.Lookup: 310 cases, 120 refused, 0 left out, 0 failures (seed 0)

An illegal layout must raise LayoutError; it counts as refused, not as a case.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

from meshtf.errors import LayoutError, LayoutWarning
from meshtf.graph import Op, Tensor, apply_all
from meshtf.mesh import Mesh
from meshtf.runtime.lowering.filled_padding import poisoned_padding
from meshtf.testing.conformance.compare import difference
from meshtf.testing.conformance.layouts import (
    Rules,
    all_layouts,
    is_legal,
    layout_text,
    mesh_on,
    sample_layouts,
)
from meshtf.testing.conformance.partial_sums import (
    as_partial,
    can_be_partial,
    variants_of,
)
from meshtf.testing.conformance.recorded_suite import check_program
from meshtf.testing.conformance.reference import ReferenceCase, reference_case
from meshtf.testing.conformance.report import Report, report_for
from meshtf.testing.conformance.samples import MESHES, label, random_generator

# The maximum counts of layouts of one sample on one mesh.
MAX_LEGAL = 8
MAX_ILLEGAL = 4


def check_op(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: Sequence[str] = (),
    recorded: bool = True,
) -> Report:
    """Runs all samples of an op eagerly, and once in a mtf.function on one device, and
    returns a report.

    Args:
      op_class: the class of an op with samples.
      seed: the seed of the random values, and of the layouts that are drawn if there are
        too many.
      meshes: the axes of each mesh, such as "x:2;y:2".
      fail_fast: whether to stop at the first failure.
      devices: names of devices that meshes use round-robin; empty: all devices of the
        local machine.
      recorded: whether samples run in a mtf.function as well.
    """
    report = report_for(label(op_class), len(op_class.conformance_samples), seed)
    for i in range(len(op_class.conformance_samples)):
        sample_report = check_sample(
            op_class, i, seed=seed, meshes=meshes, fail_fast=fail_fast, devices=devices
        )
        report.add(sample_report)
        if fail_fast and report.failures:
            return report
    if report.failures or not recorded:
        return report
    # An op may read what only eager mode has, such as a tf.Variable from outside.
    report.add(
        check_program(op_class, seed=seed, meshes=[""], devices=devices, max_programs=1)
    )
    return report


def check_sample(
    op_class: type[Op],
    index: int,
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: Sequence[str] = (),
    max_layouts: int = MAX_LEGAL,
) -> Report:
    """Runs one sample of an op eagerly and returns a report.

    Args:
      op_class: the class of an op with samples.
      index: the index of the sample.
      seed: the seed of the random values and layouts, as in `check_op`.
      meshes: the axes of each mesh, such as "x:2;y:2".
      fail_fast: whether to stop at the first failure.
      devices: names of devices, as in `check_op`.
      max_layouts: the number of legal layouts that are drawn for each mesh.
    """
    report = Report(label(op_class), seed)
    sample = op_class.conformance_samples[index]
    with warnings.catch_warnings(), poisoned_padding(seed + index):
        warnings.simplefilter("ignore", LayoutWarning)  # unusual layouts are intended
        try:
            case = reference_case(op_class, sample, seed, devices)
        except Exception as error:
            report.failures.append(
                f"{op_class.__name__} {sample} on one device: {type(error).__name__}: "
                f"{str(error)[:600]}"
            )
            return report
        for problem in case.problems:
            report.failures.append(
                f"{case.op} {sample.inputs} on one device: {problem}"
            )
        for axes, rules in _layouts(case, report, meshes, max_layouts):
            if fail_fast and report.failures:
                break
            _check_layout(case, mesh_on(axes, layout_text(rules), devices), report)
    return report


def _layouts(
    case: ReferenceCase, report: Report, meshes: Sequence[str], max_layouts: int
) -> Iterator[tuple[str, Rules]]:
    """Yields the axes of each mesh with each layout to check, first the legal ones.

    Args:
      case: the sample.
      report: the report, in which layouts that are not drawn are counted.
      meshes: the axes of each mesh.
      max_layouts: the number of legal layouts that are drawn for each mesh.
    """
    rng = random_generator(report.seed, "layouts", report.op)
    for axes in meshes:
        axis_sizes = Mesh(axes).axes
        legal: list[Rules] = []
        illegal: list[Rules] = []
        for rules in all_layouts(case.dims, list(axis_sizes)):
            if is_legal(case.shapes, rules):
                legal.append(rules)
            else:
                illegal.append(rules)
        report.left_out += max(0, len(legal) - max_layouts)
        report.left_out += max(0, len(illegal) - MAX_ILLEGAL)
        layouts = sample_layouts(legal, max_layouts, rng)
        layouts += sample_layouts(illegal, MAX_ILLEGAL, rng)
        for rules in layouts:
            yield axes, rules


def _check_layout(case: ReferenceCase, mesh: Mesh, report: Report) -> None:
    """Runs a sample under the layout of a mesh, and adds the results to the report."""
    shapes = [shape for _, shape in case.inputs]
    context = f"{case.op} {shapes} on {mesh}, layout {mesh.layout}"
    rules = {dim: "+".join(axes) for dim, axes in mesh.layout.items()}
    if not is_legal(case.shapes, rules):
        _check_refused(case, mesh, context, report)
        return
    try:
        xs = case.inputs_on(mesh)
        for variant in variants_of(xs):
            report.cases += 1
            inputs = variant.apply(xs)
            ys = apply_all(case.op, *inputs, mesh=mesh)
            problem = _check_outputs(case, ys)
            if not problem:
                dys = case.cotangents_on(mesh)
                problem = _check_gradients(case, ys, inputs, dys)
            if problem:
                report.failures.append(f"{context} {variant.description}: {problem}")
        _check_partial_cotangents(case, xs, mesh, context, report)
    except Exception as error:  # a failure; the next layout is checked anyway
        report.failures.append(f"{context}: {type(error).__name__}: {str(error)[:600]}")


def _check_refused(
    case: ReferenceCase,
    mesh: Mesh,
    context: str,
    report: Report,
) -> None:
    """Checks that an illegal layout raises LayoutError.

    Args:
      case: the sample.
      mesh: a mesh with the layout.
      context: the sample, mesh and layout in words, for messages.
      report: the report that the result is added to.
    """
    try:
        apply_all(case.op, *case.inputs_on(mesh), mesh=mesh)
    except LayoutError:
        report.refused += 1
    except Exception as error:
        report.failures.append(
            f"{context}: is illegal, but raised {type(error).__name__}: {error}"
        )
    else:
        report.failures.append(f"{context}: is illegal, but was not refused")


def _check_outputs(case: ReferenceCase, ys: Sequence[Tensor]) -> str:
    """Returns how outputs differ from the expected ones, or ""."""
    for k, (y, (array, shape)) in enumerate(zip(ys, case.outputs, strict=True)):
        problem = difference(y, shape, array, case.output_tolerance)
        if problem:
            return f"output {k}: {problem}"
    return ""


def _check_gradients(
    case: ReferenceCase,
    ys: Sequence[Tensor],
    xs: Sequence[Tensor],
    dys: Sequence[Tensor | None],
) -> str:
    """Returns how gradients differ from those of one device, or "".

    Args:
      case: the sample, with the gradients of one device.
      ys: the outputs.
      xs: the inputs.
      dys: the cotangent of each output, or None.
    """
    if case.gradients is None:
        return ""
    dxs = case.backward(ys, xs, dys)
    for i, (dx, expected_dx) in enumerate(zip(dxs, case.gradients, strict=True)):
        if (dx is None) != (expected_dx is None):
            existing = "none" if dx is None else "one"
            return f"gradient {i}: {existing}, unlike on one device"
        if dx is None:
            continue
        shape = case.inputs[i].shape
        problem = difference(dx, shape, expected_dx, case.rounding_tolerance)
        if problem:
            return f"gradient {i}: {problem}"
    return ""


def _check_partial_cotangents(
    case: ReferenceCase,
    xs: Sequence[Tensor],
    mesh: Mesh,
    context: str,
    report: Report,
) -> None:
    """Checks gradients for cotangents that are partial sums with unequal addends, along
    each mesh axis.

    Args:
      case: the sample.
      xs: the inputs.
      mesh: a mesh with the layout.
      context: the sample, mesh and layout in words, for messages.
      report: the report that the results are added to.
    """
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
                    f"{context} cotangents partial on {axis}: {problem}"
                )
