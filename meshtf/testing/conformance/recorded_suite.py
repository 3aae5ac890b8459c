"""The recorded suite: all samples of an op as one `mtf.function`, one program for each
layout.

A layout of the mesh lays out every sample, so fewer programs than layouts will do: each
next layout is the one under which most samples are laid out as no program before it
laid them out, until each sample has had every legal layout of its own dimensions. Half
of the inputs that can be are partial, and all of them where the layout cuts nothing.
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
from meshtf.testing.conformance.partial_sums import variants
from meshtf.testing.conformance.reference import Expected, expected
from meshtf.testing.conformance.report import Report, report_for
from meshtf.testing.conformance.samples import MESHES, generator, label

CANDIDATES = (
    20_000  # layouts that are looked at for one op on one mesh; more are drawn from
)
Run: TypeAlias = Callable[
    [Callable[..., list[Tensor]], Sequence[Tensor]], Sequence[Tensor]
]


def run_placed(
    program: Callable[..., list[Tensor]], inputs: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Runs a program of tensors as a mtf.function."""
    found: list[Tensor] = function(program)(*inputs)
    return found


def check_program(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: Sequence[str] = (),
    run: Run = run_placed,
    reference: Callable[..., Expected] = expected,
) -> Report:
    """Runs all samples of an op in one mtf.function for each layout and returns what
    was found.

    Args:
      op_class: an op with samples.
      seed: of the numbers and of the choice of layouts.
      meshes: axes and sizes of each mesh.
      fail_fast: whether to stop at the first failure.
      devices: names that positions take in turn; without any, what there is.
      run: how such a function runs on tensors.
      reference: what a sample must give.
    """
    report = report_for(label(op_class), len(op_class.samples), seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)
        cases = [
            reference(op_class, sample, seed, devices) for sample in op_class.samples
        ]
        for axes in meshes if cases else ():
            for rules in _chosen(cases, Mesh(axes).axes, report):
                if fail_fast and report.failures:
                    return report
                _try_program(
                    cases, mesh_on(axes, spell(rules), devices), rules, report, run
                )
    return report


def _chosen(
    cases: Sequence[Expected], axes: dict[str, int], report: Report
) -> list[Rules]:
    dims = list(dict.fromkeys(name for case in cases for name in case.dims))
    number = (len(axes) + 1) ** len(dims)
    candidates = _candidates(
        dims, list(axes), generator(report.seed, "programs", report.op)
    )
    report.left_out += number - len(candidates)
    covers = {i: _covers(cases, axes, rules) for i, rules in enumerate(candidates)}
    todo = set().union(*covers.values())
    chosen: list[Rules] = [{}]
    todo -= _covers(cases, axes, {})
    while todo:
        covers = {i: new for i, cover in covers.items() if (new := cover & todo)}
        best = max(covers, key=lambda i: len(covers[i]))
        todo -= covers[best]
        chosen.append(candidates[best])
    return chosen


def _candidates(
    dims: list[str], axes: list[str], rng: np.random.Generator
) -> list[Rules]:
    if (len(axes) + 1) ** len(dims) <= CANDIDATES:
        return all_layouts(dims, axes)
    choices = [None, *axes]
    drawn = rng.integers(0, len(choices), (CANDIDATES, len(dims)))
    return [
        {dim: choices[c] for dim, c in zip(dims, row, strict=True) if choices[c]}
        for row in drawn
    ]


def _covers(
    cases: Sequence[Expected], axes: dict[str, int], rules: Rules
) -> set[tuple[int, frozenset[tuple[str, str]]]]:
    """Returns (sample, layout of its own dimensions) of each sample that a layout can
    hold.
    """
    return {
        (i, frozenset((dim, rules[dim]) for dim in case.dims if dim in rules))
        for i, case in enumerate(cases)
        if is_legal(case.shapes, axes, rules)
    }


def _try_program(
    cases: Sequence[Expected], mesh: Mesh, rules: Rules, report: Report, run: Run
) -> None:
    legal = [case for case in cases if is_legal(case.shapes, mesh.axes, rules)]
    where = f"mtf.function on {mesh!r}, layout {mesh.layout}"
    rng = generator(report.seed, "variants", where)
    report.cases += len(legal)
    try:
        drawn = [
            _draw_variant(case.inputs(mesh), rng, always=not rules) for case in legal
        ]
        cotangents = [case.cotangents_on(mesh) for case in legal]
        found = iter(run(*_program(legal, mesh, [xs for _, xs in drawn], cotangents)))
        for case, (how, _) in zip(legal, drawn, strict=True):
            problem = _compare(case, [next(found) for _ in range(_count(case))])
            if problem:
                shapes = [shape for _, shape in case.arrays]
                report.failures.append(
                    f"{case.op} {shapes} in {where} {how}: {problem}"
                )
    except Exception as error:  # a finding; the next layout is tried
        report.failures.append(f"{where}: {type(error).__name__}: {str(error)[:600]}")


def _draw_variant(
    xs: Sequence[Tensor], rng: np.random.Generator, always: bool
) -> tuple[str, list[Tensor]]:
    """Returns inputs as they are or, half the time or always, in one way of being
    partial.
    """
    plain, *partial = variants(xs)
    drawn = partial and (always or rng.integers(2))
    variant = partial[rng.integers(len(partial))] if drawn else plain
    return variant.how, variant.of(xs)


def _program(
    cases: list[Expected],
    mesh: Mesh,
    inputs: list[list[Tensor]],
    cotangents: list[list[Tensor | None]],
) -> tuple[Callable[..., list[Tensor]], list[Tensor]]:
    """Returns one program that gives outputs, then gradients, of one case after the
    other, and the tensors that it takes."""

    def program(*flat: Tensor) -> list[Tensor]:
        given = iter(flat)
        out: list[Tensor] = []
        for case, some, dys in zip(cases, inputs, cotangents, strict=True):
            xs = [next(given) for _ in some]
            weights = [None if dy is None else next(given) for dy in dys]
            ys = apply_all(case.op, *xs, mesh=mesh)
            out += ys
            if case.gradients is not None:
                out += [dx for dx in case.backward(ys, xs, weights) if dx is not None]
        return out

    flat = [
        x
        for some, dys in zip(inputs, cotangents, strict=True)
        for x in (*some, *(dy for dy in dys if dy is not None))
    ]
    return program, flat


def _count(case: Expected) -> int:
    return len(case.outputs) + sum(g is not None for g in case.gradients or ())


def _compare(case: Expected, found: list[Tensor]) -> str:
    wanted = [
        (f"output {k}", shape, array, case.tolerance)
        for k, (array, shape) in enumerate(case.outputs)
    ]
    wanted += [
        (f"gradient {i}", case.arrays[i][1], gradient, case.rounding)
        for i, gradient in enumerate(case.gradients or ())
        if gradient is not None
    ]
    for tensor, (what, *expectation) in zip(found, wanted, strict=True):
        problem = difference(tensor, *expectation)
        if problem:
            return f"{what}: {problem}"
    return ""
