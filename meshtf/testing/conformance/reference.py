"""What a sample must give: one device's outputs and gradients, and TensorFlow's own
gradients.

The gradient rule of the op is compared here with a `tf.GradientTape` that watches the
same op run on one device; layouts are then compared with the rule on one device.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Op, Sample, ShardedValue, Tensor, apply_all, gradients
from meshtf.mesh import Mesh
from meshtf.names import Shape, has_gradient, is_complex
from meshtf.runtime.storage.import_tensor import import_tensor
from meshtf.testing.conformance.compare import TOLERANCE, difference, same
from meshtf.testing.conformance.layouts import mesh_on
from meshtf.testing.conformance.samples import draw_all, generator


@dataclasses.dataclass
class Expected:
    """A sample with its numbers, and what must come out."""

    op: Op
    arrays: list[tuple[Any, Shape]]  # inputs
    outputs: list[tuple[Any, Shape]]
    cotangents: list[Any]  # an array for each floating output, else None
    gradients: list[Any] | None  # an array or None for each input; None: has none
    problems: list[str]  # what is wrong on one device already
    slack: float = 0.0  # how far outputs may be off if no floats come in

    @property
    def shapes(self) -> list[Shape]:
        """The shapes that a layout must be able to hold."""
        return [shape for _, shape in (*self.arrays, *self.outputs)]

    @property
    def dims(self) -> list[str]:
        """All names, in order."""
        return list(
            dict.fromkeys(name for shape in self.shapes for name in shape.names)
        )

    @property
    def rounding(self) -> float:
        """How far floats may be off: as the coarsest data type in it rounds."""
        arrays = [array for array, _ in (*self.arrays, *self.outputs)]
        return max([TOLERANCE.get(array.dtype.name, 0.0) for array in arrays])

    @property
    def tolerance(self) -> float:
        """How far outputs may be off: by `slack` where no floats come in, as with
        random numbers.
        """
        floating = any(has_gradient(array.dtype.name) for array, _ in self.arrays)
        return self.rounding if floating else self.slack

    def inputs(self, mesh: Mesh) -> list[Tensor]:
        """Returns the inputs on a mesh."""
        return [import_tensor(mesh, array, shape) for array, shape in self.arrays]

    def backward(
        self, ys: Sequence[Tensor], xs: Sequence[Tensor], dys: Sequence[Tensor | None]
    ) -> list[Tensor | None]:
        """Returns the gradients for given cotangents of the floating outputs."""
        pairs = [(y, dy) for y, dy in zip(ys, dys, strict=True) if dy is not None]
        floats = [x for x in xs if has_gradient(x.dtype)]
        found = iter(gradients([y for y, _ in pairs], floats, [dy for _, dy in pairs]))
        return [next(found) if has_gradient(x.dtype) else None for x in xs]

    def cotangents_on(self, mesh: Mesh) -> list[Tensor | None]:
        """Returns the cotangents on a mesh."""
        return [
            None if array is None else import_tensor(mesh, array, shape)
            for array, (_, shape) in zip(self.cotangents, self.outputs, strict=True)
        ]


def expected(
    op_class: type[Op], sample: Sample, seed: int, devices: Sequence[str] = ()
) -> Expected:
    """Runs a sample on one device, the first of `devices`, under a tape."""
    rng = generator(seed, op_class.__name__, repr(sample))
    case = Expected(
        op_class(*sample.attributes), draw_all(sample, rng), [], [], None, []
    )
    one = mesh_on("", devices=devices)
    with tf.GradientTape(persistent=True) as tape:
        xs = case.inputs(one)
        watched = [_watch(tape, x) for x in xs]
        ys = apply_all(case.op, *xs, mesh=one)
        values = [_value(y) for y in ys]
        case.outputs = [
            (value.numpy(), y.shape) for y, value in zip(ys, values, strict=True)
        ]
        case.cotangents = [_random_like(array, rng) for array, _ in case.outputs]
    case.problems += _problems(ys, case.outputs)
    floats = [w for w in watched if w is not None]
    several = [k for k, dy in enumerate(case.cotangents) if dy is not None]
    if sample.gradient and floats and several:
        # All cotangents at once, and where there are several outputs each one alone,
        # too.
        for kept in [several, *([k] for k in several if len(several) > 1)]:
            theirs = tape.gradient(
                [values[k] for k in kept],
                floats,
                [tf.constant(case.cotangents[k]) for k in kept],
            )
            found = _compare_with_tape(case, xs, ys, kept, theirs)
            case.gradients = found if case.gradients is None else case.gradients
    return case


def _watch(tape: tf.GradientTape, x: Tensor) -> tf.Tensor | None:
    """Returns the watched value of a floating tensor."""
    if not has_gradient(x.dtype):
        return None
    value = tf.identity(_value(x))
    tape.watch(value)
    assert x.sharded_value is not None
    x.sharded_value = ShardedValue(x.sharded_value.placement, [value])
    return value


def _value(x: Tensor) -> tf.Tensor:
    assert x.sharded_value is not None
    (value,) = x.sharded_value.values
    return value


def _random_like(array: Any, rng: np.random.Generator) -> Any:
    if not has_gradient(array.dtype.name):
        return None
    drawn = rng.normal(size=array.shape)
    if is_complex(array.dtype.name):
        drawn = drawn + 1j * rng.normal(size=array.shape)
    return np.asarray(drawn).astype(array.dtype)


def _problems(ys: Sequence[Tensor], outputs: Sequence[tuple[Any, Shape]]) -> list[str]:
    found = []
    for k, (y, (array, shape)) in enumerate(zip(ys, outputs, strict=True)):
        problem = difference(y, shape, array)  # a NaN differs from itself
        if problem:
            found.append(f"output {k}: {problem}")
    return found


def _compare_with_tape(
    case: Expected,
    xs: list[Tensor],
    ys: Sequence[Tensor],
    kept: list[int],
    tape: list[Any],
) -> list[Any]:
    """Returns the rule's gradients for cotangents of outputs `kept`; notes where the
    tape differs.
    """
    assert xs[0].mesh is not None
    dys = [
        dy if k in kept else None for k, dy in enumerate(case.cotangents_on(xs[0].mesh))
    ]
    found = case.backward(ys, xs, dys)
    theirs = iter(tape)
    for i, (x, mine, (array, shape)) in enumerate(
        zip(xs, found, case.arrays, strict=True)
    ):
        if not has_gradient(x.dtype):
            continue
        their = next(theirs)
        want = (
            np.zeros_like(array)
            if their is None
            else tf.convert_to_tensor(their).numpy()
        )
        if mine is not None:
            problem = difference(mine, shape, want, case.rounding)
        else:
            problem = (
                ""
                if same(np.zeros_like(want), want, case.rounding)
                else "none, the tape has one"
            )
        if problem:
            case.problems.append(
                f"gradient rule against the tape, outputs {kept}, input {i}: {problem}"
            )
    return [None if g is None else _value(g).numpy() for g in found]
