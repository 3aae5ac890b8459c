"""The recorded suite: all samples of an op as one `mtf.function`, one program for each
layout.

One layout of the mesh applies to every sample, so fewer programs than layouts are enough.
They are chosen greedily (set cover): the next layout is the one that gives most samples a
layout of their dimensions which no program before it has, until each sample has had every
legal one. Half of the samples have partial inputs; all of them if the layout shards
nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from meshtf.errors import LayoutWarning
from meshtf.function.function import function
from meshtf.graph import Op, Tensor, apply_all
from meshtf.mesh import Mesh
from meshtf.testing.conformance.compare import difference
from meshtf.testing.conformance.layouts import (
    Rules,
    all_layouts,
    is_legal,
    mesh_on,
    spell,
)
from meshtf.testing.conformance.partial_sums import Variant, variants_of
from meshtf.testing.conformance.reference import Expected, expected
from meshtf.testing.conformance.report import Report, report_for
from meshtf.testing.conformance.samples import MESHES, generator, label

MAX_CANDIDATES = 20_000  # layouts of one op on one mesh; if there are more, random ones
Run: TypeAlias = Callable[
    [Callable[..., list[Tensor]], Sequence[Tensor]], Sequence[Tensor]
]


def run_placed(
    program: Callable[..., list[Tensor]], inputs: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Runs a program of tensors as a mtf.function."""
    results: list[Tensor] = function(program)(*inputs)
    return results


def check_program(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: str | Sequence[str] = (),
    run: Run = run_placed,
    reference: Callable[..., Expected] = expected,
) -> Report:
    """Runs all samples of an op in one mtf.function for each layout and returns a report.

    Args:
      op_class: an op with samples.
      seed: of the random values and of the choice of layouts.
      meshes: axes and sizes of each mesh.
      fail_fast: whether to stop at the first failure.
      devices: names of devices that meshes use round-robin, or the devices of a mesh in
        one string, such as "spmd:cpu"; empty: all of this machine.
      run: runs such a function on tensors.
      reference: returns the expected results of a sample.
    """
    report = report_for(label(op_class), len(op_class.samples), seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        cases = [
            reference(op_class, sample, seed, devices) for sample in op_class.samples
        ]
        for axes in meshes if cases else ():
            for rules in _chosen_layouts(cases, Mesh(axes).axes, report):
                if fail_fast and report.failures:
                    return report
                _check_program(
                    cases,
                    mesh_on(axes, spell(rules), devices),
                    rules,
                    report,
                    run,
                )
    return report


def _chosen_layouts(
    cases: Sequence[Expected], axes: dict[str, int], report: Report
) -> list[Rules]:
    """Returns layouts that cover all layouts of all samples, and counts those left out."""
    dims = list(dict.fromkeys(name for case in cases for name in case.dims))
    rng = generator(report.seed, "programs", report.op)
    candidates = _candidates(dims, list(axes), rng)
    report.left_out += (len(axes) + 1) ** len(dims) - len(candidates)
    covers = {i: _covers(cases, axes, rules) for i, rules in enumerate(candidates)}
    uncovered = set().union(*covers.values())
    layouts: list[Rules] = [{}]
    uncovered -= _covers(cases, axes, {})
    while uncovered:
        covers = {i: cover & uncovered for i, cover in covers.items()}
        covers = {i: cover for i, cover in covers.items() if cover}
        best = max(covers, key=lambda i: len(covers[i]))
        uncovered -= covers[best]
        layouts.append(candidates[best])
    return layouts


def _candidates(
    dims: list[str], axes: list[str], rng: np.random.Generator
) -> list[Rules]:
    """Returns all layouts, or random ones if there are too many."""
    if (len(axes) + 1) ** len(dims) <= MAX_CANDIDATES:
        return all_layouts(dims, axes)
    choices = [None, *axes]
    layouts = []
    for choice_indices in rng.integers(0, len(choices), (MAX_CANDIDATES, len(dims))):
        axis_of_dims = [choices[i] for i in choice_indices]
        rules = {d: axis for d, axis in zip(dims, axis_of_dims, strict=True) if axis}
        layouts.append(rules)
    return layouts


def _covers(
    cases: Sequence[Expected], axes: dict[str, int], rules: Rules
) -> set[tuple[int, frozenset[tuple[str, str]]]]:
    """Returns (sample, layout of its dimensions) of each sample for which a layout is
    legal.
    """
    return {
        (i, frozenset((dim, rules[dim]) for dim in case.dims if dim in rules))
        for i, case in enumerate(cases)
        if is_legal(case.shapes, axes, rules)
    }


def _check_program(
    cases: Sequence[Expected],
    mesh: Mesh,
    rules: Rules,
    report: Report,
    run: Run,
) -> None:
    """Runs all samples for which a layout is legal, and adds the results to the report."""
    legal = [case for case in cases if is_legal(case.shapes, mesh.axes, rules)]
    where = f"mtf.function on {mesh}, layout {mesh.layout}"
    rng = generator(report.seed, "variants", where)
    report.cases += len(legal)
    try:
        inputs = [case.inputs(mesh) for case in legal]
        variants = [_draw_variant(xs, rng, always=not rules) for xs in inputs]
        inputs = [variant.of(xs) for variant, xs in zip(variants, inputs)]
        cotangents = [case.cotangents_on(mesh) for case in legal]
        results = iter(run(*_program(legal, mesh, inputs, cotangents)))
        for case, variant in zip(legal, variants, strict=True):
            problem = _compare(case, [next(results) for _ in range(_count(case))])
            if problem:
                shapes = [shape for _, shape in case.arrays]
                report.failures.append(
                    f"{case.op} {shapes} in {where} {variant.description}: {problem}"
                )
    except Exception as error:  # a failure; the next layout is checked anyway
        report.failures.append(f"{where}: {type(error).__name__}: {str(error)[:600]}")


def _draw_variant(
    xs: Sequence[Tensor], rng: np.random.Generator, always: bool
) -> Variant:
    """Returns a variant with partial inputs, with probability 1/2 or `always`; otherwise
    the one without.
    """
    plain, *partial = variants_of(xs)
    if partial and (always or rng.integers(2)):
        return partial[rng.integers(len(partial))]
    return plain


def _program(
    cases: list[Expected],
    mesh: Mesh,
    inputs: list[list[Tensor]],
    cotangents: list[list[Tensor | None]],
) -> tuple[Callable[..., list[Tensor]], list[Tensor]]:
    """Returns a program of the outputs and then the gradients of one case after the other,
    and the arguments of the program.
    """

    def program(*flat: Tensor) -> list[Tensor]:
        remaining = iter(flat)
        results: list[Tensor] = []
        for case, eager_xs, eager_dys in zip(cases, inputs, cotangents, strict=True):
            xs = [next(remaining) for _ in eager_xs]
            dys = [None if dy is None else next(remaining) for dy in eager_dys]
            ys = apply_all(case.op, *xs, mesh=mesh)
            results += ys
            if case.gradients is not None:
                dxs = case.backward(ys, xs, dys)
                results += [dx for dx in dxs if dx is not None]
        return results

    arguments = []
    for xs, dys in zip(inputs, cotangents, strict=True):
        arguments += xs
        arguments += [dy for dy in dys if dy is not None]
    return program, arguments


def _count(case: Expected) -> int:
    """Returns the number of results of a case."""
    return len(case.outputs) + sum(g is not None for g in case.gradients or ())


def _compare(case: Expected, results: list[Tensor]) -> str:
    """Returns how the results of a case differ from the expected ones, or ""."""
    expectations = [
        (f"output {k}", shape, array, case.tolerance)
        for k, (array, shape) in enumerate(case.outputs)
    ]
    expectations += [
        (f"gradient {i}", case.arrays[i][1], gradient, case.rounding)
        for i, gradient in enumerate(case.gradients or ())
        if gradient is not None
    ]
    pairs = zip(results, expectations, strict=True)
    for tensor, (name, shape, array, tolerance) in pairs:
        problem = difference(tensor, shape, array, tolerance)
        if problem:
            return f"{name}: {problem}"
    return ""
