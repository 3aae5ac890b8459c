"""The expected results of a sample: outputs and gradients on one device.

The gradient rule of the op is compared with a `tf.GradientTape` that watches the same op on
one device; results under layouts are then compared with those of the rule on one device.
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
from meshtf.runtime.storage.asarray import asarray
from meshtf.testing.conformance.compare import TOLERANCE, difference, is_close
from meshtf.testing.conformance.layouts import mesh_on
from meshtf.testing.conformance.samples import draw_all, generator


@dataclasses.dataclass
class Expected:
    """A sample with the values of its inputs, and the expected results."""

    op: Op
    arrays: list[tuple[Any, Shape]]  # inputs
    outputs: list[tuple[Any, Shape]]
    cotangents: list[Any]  # an array for each floating output, else None
    gradients: list[Any] | None  # an array or None for each input; None: not checked
    problems: list[str]  # failures on one device
    random_tolerance: float = 0.0  # of outputs, if no input is of floats

    @property
    def shapes(self) -> list[Shape]:
        """The shapes for which a layout must be legal."""
        return [shape for _, shape in (*self.arrays, *self.outputs)]

    @property
    def dims(self) -> list[str]:
        """All names of dimensions, in order."""
        names = (name for shape in self.shapes for name in shape.names)
        return list(dict.fromkeys(names))

    @property
    def rounding(self) -> float:
        """The tolerance of floats: that of the data type with the lowest precision."""
        arrays = [array for array, _ in (*self.arrays, *self.outputs)]
        return max([TOLERANCE.get(array.dtype.name, 0.0) for array in arrays])

    @property
    def tolerance(self) -> float:
        """The tolerance of outputs: `random_tolerance` if no input is of floats, as in ops
        that draw random values.
        """
        floating = any(has_gradient(array.dtype.name) for array, _ in self.arrays)
        return self.rounding if floating else self.random_tolerance

    def inputs(self, mesh: Mesh) -> list[Tensor]:
        """Returns the inputs on a mesh."""
        return [asarray(mesh, array, shape) for array, shape in self.arrays]

    def backward(
        self,
        ys: Sequence[Tensor],
        xs: Sequence[Tensor],
        dys: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """Returns the gradients of all inputs for cotangents of the floating outputs."""
        outputs = []
        cotangents = []
        for y, dy in zip(ys, dys, strict=True):
            if dy is not None:
                outputs.append(y)
                cotangents.append(dy)
        floats = [x for x in xs if has_gradient(x.dtype)]
        dxs = iter(gradients(outputs, floats, cotangents))
        return [next(dxs) if has_gradient(x.dtype) else None for x in xs]

    def cotangents_on(self, mesh: Mesh) -> list[Tensor | None]:
        """Returns the cotangents on a mesh."""
        return [
            None if array is None else asarray(mesh, array, shape)
            for array, (_, shape) in zip(self.cotangents, self.outputs, strict=True)
        ]


def expected(
    op_class: type[Op],
    sample: Sample,
    seed: int,
    devices: str | Sequence[str] = (),
) -> Expected:
    """Runs a sample on the first one of `devices`, with a gradient tape."""
    rng = generator(seed, op_class.__name__, repr(sample))
    op = op_class(*sample.attributes)
    case = Expected(
        op,
        draw_all(sample, rng),
        [],
        [],
        None,
        [],
    )
    mesh = mesh_on("", devices=devices)
    with tf.GradientTape(persistent=True) as tape:
        xs = case.inputs(mesh)
        watched = [_watch(tape, x) for x in xs]
        ys = apply_all(case.op, *xs, mesh=mesh)
        values = [_value(y) for y in ys]
        case.outputs = [
            (value.numpy(), y.shape) for y, value in zip(ys, values, strict=True)
        ]
        case.cotangents = [_random_like(array, rng) for array, _ in case.outputs]
    case.problems += _problems(ys, case.outputs)
    floats = [value for value in watched if value is not None]
    if not sample.gradient or not floats:
        return case
    for indices in _cotangent_groups(case):
        tape_gradients = tape.gradient(
            [values[k] for k in indices],
            floats,
            [tf.constant(case.cotangents[k]) for k in indices],
        )
        dxs = _compare_with_tape(case, xs, ys, indices, tape_gradients)
        if case.gradients is None:
            case.gradients = dxs
    return case


def _cotangent_groups(case: Expected) -> list[list[int]]:
    """Returns indices of outputs that have cotangents: all of them, and each one
    separately if there are several.
    """
    indices = [k for k, dy in enumerate(case.cotangents) if dy is not None]
    if not indices:
        return []
    if len(indices) == 1:
        return [indices]
    return [indices, *([k] for k in indices)]


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
    """Returns a message for each output that has a NaN, which differs from itself."""
    problems = []
    for k, (y, (array, shape)) in enumerate(zip(ys, outputs, strict=True)):
        problem = difference(y, shape, array)
        if problem:
            problems.append(f"output {k}: {problem}")
    return problems


def _compare_with_tape(
    case: Expected,
    xs: list[Tensor],
    ys: Sequence[Tensor],
    indices: list[int],
    tape_gradients: list[Any],
) -> list[Any]:
    """Returns the gradients of the op's rule, and adds a problem to the case for each that
    differs from the tape's.

    Args:
      case: the sample.
      xs: its inputs.
      ys: its outputs.
      indices: of the outputs that have cotangents.
      tape_gradients: those of the tape, for the floating inputs.
    """
    mesh = xs[0].mesh
    assert mesh is not None
    cotangents = case.cotangents_on(mesh)
    dys = [dy if k in indices else None for k, dy in enumerate(cotangents)]
    dxs = case.backward(ys, xs, dys)
    remaining = iter(tape_gradients)
    for i, (x, dx) in enumerate(zip(xs, dxs, strict=True)):
        if not has_gradient(x.dtype):
            continue
        problem = _compare_gradient(
            case,
            i,
            dx,
            next(remaining),
        )
        if problem:
            case.problems.append(
                f"gradient rule against the tape, outputs {indices}, input {i}: {problem}"
            )
    return [None if dx is None else _value(dx).numpy() for dx in dxs]


def _compare_gradient(
    case: Expected,
    index: int,
    dx: Tensor | None,
    tape_gradient: Any,
) -> str:
    """Returns how the gradient of one input differs from the tape's, or ""; None is 0."""
    array, shape = case.arrays[index]
    expected = np.zeros_like(array)
    if tape_gradient is not None:
        expected = tf.convert_to_tensor(tape_gradient).numpy()
    if dx is not None:
        return difference(
            dx,
            shape,
            expected,
            case.rounding,
        )
    if is_close(np.zeros_like(expected), expected, case.rounding):
        return ""
    return "none, the tape has one"
