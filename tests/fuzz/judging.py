"""Runs a drawn program on meshtf and on the judge, and says where their
numbers differ.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

import meshtf as mtf
from meshtf.runtime.lowering.filled_padding import poisoned_padding
from tests.fuzz.judge import plain
from tests.fuzz.judge.control import VOCABULARY
from tests.fuzz.judge.optimizers import OPTIMIZERS, of_layers
from tests.fuzz.program import HALF, Mesh, Program, array

TOLERANCE = {"float64": 1e-7, "float32": 2e-3, "bfloat16": 0.03}
ROUGH = 0.05  # what rounding to bfloat16 may change, of 1 + the largest number
LARGEST = 1e4  # of the judge's numbers: beyond that rounding is all that is compared

Draws = list[tuple[Any, tuple[str, ...]]]  # random numbers with their names
Numbers = tuple[list[Any], list[Any], list[Any]]  # values, gradients, their gradients


class Unfit(Exception):
    """The judge's numbers say nothing: they are not finite, or too large."""


class Senseless(Exception):
    """The judge cannot run a program."""


def run(source: str, **names: Any) -> dict[str, Any]:
    """Returns what a script defines."""
    namespace = {"np": np, "copy": copy, **names}
    exec(
        compile(source.replace("import meshtf as mtf", ""), "<drawn program>", "exec"),
        namespace,
    )
    return namespace


def judge(program: Program, draws: Draws) -> Numbers:
    """Returns the numbers of plain TensorFlow, as `plain.Named` or None."""
    try:
        return _judged(program, draws)
    except Unfit:
        raise
    except Exception as error:
        raise Senseless from error


def rounding(program: Program, draws: Draws, exact: Numbers) -> float:
    """Returns by how much of 1 + the largest number rounding changes a program of
    bfloat16.

    Raises:
      Unfit: by so much that numbers say nothing.
    """
    plain.computed_in[:] = ["float32"]
    try:
        rough = judge(program, draws)
    finally:
        plain.computed_in[:] = ["float64"]
    off = max(
        (
            _off(x.value, y.value)
            for wants, gots in zip(exact, rough)
            for x, y in zip(wants, gots)
            if x is not None
        ),
        default=0.0,
    )
    if not off < ROUGH:
        raise Unfit
    return off


def _judged(program: Program, draws: Draws) -> Numbers:
    plain.draws[:] = draws
    namespace = run(program.definition(), mtf=VOCABULARY)
    if program.optimizer:
        return _trained(program, namespace), [], []
    inputs = [
        plain.Named(tf.constant(x), plain.names(shape)) for x, shape in _arrays(program)
    ]
    floats = [x for x, (_, _, below) in zip(inputs, program.inputs) if not below]
    variables = [eval(text, namespace).tensor() for text in program.variables]
    targets = [*([] if program.only_variables else floats), *variables]
    watched = [x.value for x in targets]
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(watched)
        with tf.GradientTape() as inner:
            inner.watch(watched)
            loss, values = namespace["program"](*inputs)
        first = [] if not program.order else _dense(inner.gradient(loss.value, watched))
        total = sum(tf.reduce_sum(g * g) for g in first if g is not None)
    second = []
    if program.order > 1 and any(g is not None for g in first):
        second = _dense(outer.gradient(total, watched))
    outputs = [loss] if program.only_variables else [loss, *values]
    return outputs, *(
        [g if g is None else plain.Named(g, x.dims) for g, x in zip(grads, targets)]
        for grads in (first, second)
    )


def _trained(program: Program, namespace: dict[str, Any]) -> list[Any]:
    """Returns the losses of three steps, and the variables after them."""
    inputs = [
        plain.Named(tf.constant(x), plain.names(shape)) for x, shape in _arrays(program)
    ]
    variables = [eval(text, namespace) for text in program.variables]
    slots: list[Any] = [{} for _ in variables]
    losses = []
    draws = list(plain.draws)
    for step in range(3):
        plain.draws[:] = draws
        watched = [v.tensor().value for v in variables]
        with tf.GradientTape() as tape:
            tape.watch(watched)
            losses.append(namespace["program"](*inputs)[0])
        for k, g in enumerate(_dense(tape.gradient(losses[-1].value, watched))):
            if (
                g is None
            ):  # only a branch that is not taken uses it: it may decay, or stay
                raise Unfit
            update = of_layers(OPTIMIZERS[program.optimizer], variables[k].num_stacked)
            value, slots[k] = update(
                watched[k].numpy().astype("float64"),
                g.numpy().astype("float64"),
                slots[k],
                step + 1,
            )
            variables[k].assign(
                plain.Named(tf.constant(value, program.dtype), variables[k].dims)
            )
    return [*losses, *(v.tensor() for v in variables)]


def _dense(grads: list[Any]) -> list[Any]:
    return [None if g is None else tf.convert_to_tensor(g) for g in grads]


def _arrays(program: Program) -> list[tuple[Any, str]]:
    return [
        (eval(array(shape, below, k, program.dtype), {"np": np}), shape)
        for k, (_, shape, below) in enumerate(program.inputs)
    ]


def drawn(program: Program) -> Draws:
    """Returns the random numbers that meshtf draws for a program op by op on one
    position.

    Raises:
      AssertionError: two ops, iterations or layers draw the same numbers.
    """
    results: Draws = []

    def keep(x: Any) -> Any:
        results.append((x.numpy(), x.shape.names))
        return x

    def dropout(x: Any, rate: float, name: str) -> Any:
        return x * keep(mtf.dropout(mtf.ones_like(x), rate, name=name))

    def uniform(*args: Any, **kwargs: Any) -> Any:
        return keep(mtf.random_uniform(*args, **kwargs))

    single_position = dataclasses.replace(program, mesh=Mesh(""))
    recording = SimpleNamespace(
        **{
            **vars(mtf),
            "dropout": dropout,
            "random_uniform": uniform,
            "function": lambda fn, mesh=None: fn,
            "pipeline": VOCABULARY.pipeline,
        }
    )
    names = run(single_position.definition(), mtf=recording)
    mesh = names["mesh"]
    names["program"](*(mtf.asarray(mesh, x, shape) for x, shape in _arrays(program)))
    for (a, _), (b, _) in itertools.combinations(results, 2):
        if a.shape == b.shape and a.size >= 8 and 0 not in a and np.array_equal(a, b):
            raise AssertionError("two draws are the same")
    return results


def meshtf_numbers(program: Program) -> Numbers:
    """Returns what meshtf computes, as Tensors or None.

    Padding is poisoned, by an integer that depends on the program.
    """
    source = program.source()
    with poisoned_padding(zlib.crc32(source.encode())):
        results: Numbers = run(source, mtf=mtf)["results"]
        return results


def check(program: Program) -> str:
    """Returns how meshtf's numbers differ from the judge's; "": they agree.

    Raises:
      Unfit: the judge's numbers say nothing.
    """
    draws = drawn(program) if program.random else []
    expected = judge(program, draws)
    if not all(
        np.all(np.abs(x.value) < LARGEST)
        for tensors in expected
        for x in tensors
        if x is not None
    ):
        raise Unfit
    tolerance = TOLERANCE[program.dtype]
    if program.dtype == HALF:
        tolerance += 4 * rounding(program, draws, expected)
    got = meshtf_numbers(program)
    for quantity, wants, gots in zip(
        ("value", "gradient", "second gradient"), expected, got
    ):
        for k, (x, y) in enumerate(itertools.zip_longest(wants, gots)):
            if problem := differs(x, y, tolerance, program.dtype):
                return f"{quantity} {k}: {problem}"
    return ""


def _off(expected: Any, have: Any) -> float:
    """Returns the largest difference of two arrays, divided by 1 + the largest value."""
    expected = np.asarray(expected, "float64")
    have = np.asarray(have, "float64")
    return float(
        np.max(np.abs(expected - have), initial=0)
        / (1 + np.max(np.abs(expected), initial=0))
    )


def differs(
    expected: plain.Named | None, got: Any, tolerance: float, dtype: str
) -> str:
    """Returns how a tensor differs from the judge's; None stands for zeros."""
    if expected is None and got is None:
        return ""
    if got is None:
        return (
            f"None for {_short(expected.value)}" if np.any(expected.value != 0) else ""
        )
    if got.dtype != dtype:
        return f"{got.dtype} for {dtype}"
    have = got.numpy().astype("float64")
    if expected is None:
        return f"{_short(have)} for None" if np.any(have) else ""
    if set(got.shape.names) != set(expected.dims):
        return f"dimensions {got.shape.names} for {expected.dims}"
    expected_array = np.asarray(plain.ordered(expected, got.shape.names), "float64")
    if expected_array.shape != have.shape:
        return f"shape {have.shape} for {expected_array.shape}"
    off = _off(expected_array, have)
    return (
        ""
        if off <= tolerance
        else f"off by {off:.3g}: {_short(have)} for {_short(expected_array)}"
    )


def _short(x: Any) -> str:
    """Returns the first numbers of an array."""
    flat = np.asarray(x).reshape(-1)
    return (
        f"[{', '.join(f'{v:.6g}' for v in flat[:6])}{', ...' if flat.size > 6 else ''}]"
    )
