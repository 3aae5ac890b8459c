"""The recorded suite: all samples of an op in one `mtf.function`, for each of several
layouts.

    report = check_program(MyOp)        # prints as in `Report`

Each program runs all samples under one layout of the mesh, which determines the layout of
each sample's dimensions. The layouts are a greedy set cover: the next one is the layout
under which the most samples have a layout of their dimensions that they have not had
before, until each sample has had every legal one. A random half of the samples has partial
inputs; all samples have if the layout shards nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from meshtf.errors import LayoutWarning
from meshtf.function.function import function
from meshtf.graph import Op, Tensor, apply_all
from meshtf.mesh import Mesh
from meshtf.names import Shape
from meshtf.runtime.lowering.filled_padding import poisoned_padding
from meshtf.testing.conformance.compare import difference
from meshtf.testing.conformance.layouts import (
    Rules,
    all_layouts,
    axis_choices,
    is_legal,
    layout_text,
    mesh_on,
)
from meshtf.testing.conformance.partial_sums import Variant, variants_of
from meshtf.testing.conformance.reference import ReferenceCase, reference_case
from meshtf.testing.conformance.report import Report, report_for
from meshtf.testing.conformance.samples import MESHES, label, random_generator

# The maximum count of layouts of one op on one mesh; of more, random ones are chosen from.
MAX_CANDIDATES = 20_000
# The maximum count of programs of one op on one mesh.
MAX_PROGRAMS = 10
Program: TypeAlias = Callable[..., list[Tensor]]
# Runs a program on eager tensors.
Run: TypeAlias = Callable[[Program, Sequence[Tensor]], Sequence[Tensor]]


class _SampleLayout(NamedTuple):
    """The layout of the dimensions of one sample.

    Attributes:
      sample_index: the index of the sample.
      rules: a pair of dimension and mesh axes for each sharded dimension of the sample.
    """

    sample_index: int
    rules: frozenset[tuple[str, str]]


class _Expectation(NamedTuple):
    """An expected result of a program.

    Attributes:
      name: the name of the result in messages, such as "output 0".
      shape: the expected shape.
      array: the expected value.
      tolerance: the absolute and relative tolerance of floats.
    """

    name: str
    shape: Shape
    array: Any
    tolerance: float


def run_function(program: Program, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """Runs a program of tensors as a mtf.function."""
    results: list[Tensor] = function(program)(*inputs)
    return results


def check_program(
    op_class: type[Op],
    seed: int = 0,
    meshes: Sequence[str] = MESHES,
    fail_fast: bool = False,
    devices: str | Sequence[str] = (),
    run: Run = run_function,
    reference: Callable[..., ReferenceCase] = reference_case,
    max_programs: int = MAX_PROGRAMS,
) -> Report:
    """Runs all samples of an op in one program for each layout, and returns a report.

    Args:
      op_class: the class of an op with samples.
      seed: the seed of the random values and of the choice of layouts.
      meshes: the axes of each mesh, such as "x:2;y:2".
      fail_fast: whether to stop at the first failure.
      devices: names of devices that meshes use round-robin, or the devices of a
        mesh in one string, such as "spmd:cpu"; empty: all devices of the local machine.
      run: runs a program on tensors, by default as a mtf.function.
      reference: returns the expected results of a sample; arguments as of
        `reference_case`.
      max_programs: the maximum count of programs, each with a layout, on one mesh.
    """
    report = report_for(label(op_class), len(op_class.conformance_samples), seed)
    with warnings.catch_warnings(), poisoned_padding(seed):
        warnings.simplefilter("ignore", LayoutWarning)
        cases = [
            reference(op_class, sample, seed, devices)
            for sample in op_class.conformance_samples
        ]
        if not cases:
            return report
        for axes in meshes:
            for rules in _covering_layouts(
                cases, Mesh(axes).axes, report, max_programs
            ):
                if fail_fast and report.failures:
                    return report
                mesh = mesh_on(axes, layout_text(rules), devices)
                _check_layout(cases, mesh, rules, report, run)
    return report


def _covering_layouts(
    cases: Sequence[ReferenceCase],
    axes: dict[str, int],
    report: Report,
    max_programs: int,
) -> list[Rules]:
    """Returns layouts of the mesh under which each sample has every legal layout of its
    dimensions, as far as random candidates and the maximum count allow it.

    Args:
      cases: the samples.
      axes: the size of each mesh axis.
      report: the report, in which the layouts that are left out are counted.
      max_programs: the maximum count of layouts.
    """
    dims = list(dict.fromkeys(name for case in cases for name in case.dims))
    rng = random_generator(report.seed, "programs", report.op)
    candidates = _candidates(dims, list(axes), rng)
    rng.shuffle(candidates)  # the first of those that cover equally many is taken
    # Each dimension is sharded along some of the axes, or along none.
    num_layouts = (len(axis_choices(list(axes))) + 1) ** len(dims)
    report.left_out += num_layouts - len(candidates)
    # {index of a candidate: the layouts of samples that it covers}.
    covers = {
        i: _sample_layouts(cases, rules=candidate)
        for i, candidate in enumerate(candidates)
    }
    uncovered = set().union(*covers.values())
    # The empty layout is always checked.
    layouts: list[Rules] = [{}]
    uncovered -= _sample_layouts(cases, rules={})
    while uncovered and len(layouts) < max_programs:
        covers = _remaining_covers(covers, uncovered)
        best = max(covers, key=lambda i: len(covers[i]))
        uncovered -= covers[best]
        layouts.append(candidates[best])
    report.left_out += len(uncovered)
    return layouts


def _remaining_covers(
    covers: dict[int, set[_SampleLayout]], uncovered: set[_SampleLayout]
) -> dict[int, set[_SampleLayout]]:
    """Returns what each candidate covers of the uncovered sample layouts, without the
    candidates that cover none of them.
    """
    remaining_covers = {}
    for i, cover in covers.items():
        remaining_cover = cover & uncovered
        if remaining_cover:
            remaining_covers[i] = remaining_cover
    return remaining_covers


def _candidates(
    dims: list[str], axes: list[str], rng: np.random.Generator
) -> list[Rules]:
    """Returns all layouts of the dimensions, or `MAX_CANDIDATES` random ones if there are
    more.
    """
    choices = ["", *axis_choices(axes)]
    if len(choices) ** len(dims) <= MAX_CANDIDATES:
        return all_layouts(dims, axes)
    layouts = []
    for choice_indices in rng.integers(0, len(choices), (MAX_CANDIDATES, len(dims))):
        axis_by_dim = [choices[i] for i in choice_indices]
        pairs = zip(dims, axis_by_dim, strict=True)
        layouts.append({dim: axis for dim, axis in pairs if axis})
    return layouts


def _sample_layouts(cases: Sequence[ReferenceCase], rules: Rules) -> set[_SampleLayout]:
    """Returns the layout of each sample's dimensions under a layout of the mesh, for the
    samples for which it is legal.
    """
    sample_layouts = set()
    for i, case in enumerate(cases):
        if is_legal(case.shapes, rules):
            pairs = frozenset((dim, rules[dim]) for dim in case.dims if dim in rules)
            sample_layouts.add(_SampleLayout(i, pairs))
    return sample_layouts


def _check_layout(
    cases: Sequence[ReferenceCase],
    mesh: Mesh,
    rules: Rules,
    report: Report,
    run: Run,
) -> None:
    """Runs all samples for which a layout is legal in one program, and adds the results to
    the report.

    Args:
      cases: the samples.
      mesh: a mesh with the layout.
      rules: the layout.
      report: the report that cases and failures are added to.
      run: runs the program.
    """
    legal_cases = [case for case in cases if is_legal(case.shapes, rules)]
    context = f"mtf.function on {mesh}, layout {mesh.layout}"
    rng = random_generator(report.seed, "variants", context)
    report.cases += len(legal_cases)
    try:
        inputs = [case.inputs_on(mesh) for case in legal_cases]
        variants = [_draw_variant(xs, rng, always=not rules) for xs in inputs]
        inputs = [variant.apply(xs) for variant, xs in zip(variants, inputs)]
        cotangents = [case.cotangents_on(mesh) for case in legal_cases]
        program, arguments = _program(legal_cases, mesh, inputs, cotangents)
        results = iter(run(program, arguments))
        for case, variant in zip(legal_cases, variants, strict=True):
            problem = _compare(results, _expectations(case))
            if problem:
                shapes = [shape for _, shape in case.inputs]
                report.failures.append(
                    f"{case.op} {shapes} in {context} {variant.description}: {problem}"
                )
    except Exception as error:  # a failure; the next layout is checked anyway
        report.failures.append(f"{context}: {type(error).__name__}: {str(error)[:600]}")


def _draw_variant(
    xs: Sequence[Tensor], rng: np.random.Generator, always: bool
) -> Variant:
    """Returns a random variant with partial inputs, with probability 1/2 or `always`;
    otherwise the variant without partial inputs.
    """
    variant_without, *variants = variants_of(xs)
    if variants and (always or rng.integers(2)):
        return variants[rng.integers(len(variants))]
    return variant_without


def _program(
    cases: list[ReferenceCase],
    mesh: Mesh,
    inputs: list[list[Tensor]],
    cotangents: list[list[Tensor | None]],
) -> tuple[Program, list[Tensor]]:
    """Returns a program that runs all cases, and its arguments. The program returns the
    outputs and then the gradients of the first case, then those of the next, and so on.

    Args:
      cases: the samples.
      mesh: the mesh of the tensors.
      inputs: the inputs of each case.
      cotangents: the cotangent of each output of each case, or None.
    """

    def program(*arguments: Tensor) -> list[Tensor]:
        """Runs all cases, with as many of the arguments as each case takes."""
        remaining = iter(arguments)
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

    flat_arguments = []
    for xs, dys in zip(inputs, cotangents, strict=True):
        flat_arguments += xs
        flat_arguments += [dy for dy in dys if dy is not None]
    return program, flat_arguments


def _expectations(case: ReferenceCase) -> list[_Expectation]:
    """Returns the expected results of a case, in the order of the program's results."""
    expectations = []
    for k, (array, shape) in enumerate(case.outputs):
        tolerance = case.output_tolerance
        expectations.append(_Expectation(f"output {k}", shape, array, tolerance))
    for i, gradient in enumerate(case.gradients or ()):
        if gradient is not None:
            shape = case.inputs[i].shape
            tolerance = case.rounding_tolerance
            expectations.append(
                _Expectation(f"gradient {i}", shape, gradient, tolerance)
            )
    return expectations


def _compare(results: Iterator[Tensor], expectations: list[_Expectation]) -> str:
    """Takes a result for each expectation from an iterator, and returns how the first
    wrong one differs, or "".
    """
    message = ""
    for name, shape, array, tolerance in expectations:
        problem = difference(next(results), shape, array, tolerance)
        if problem and not message:
            message = f"{name}: {problem}"
    return message
