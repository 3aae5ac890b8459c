"""The expected results of a sample: its outputs and gradients on one device.

The gradient rule of the op is compared with a `tf.GradientTape` on one device. Results under
layouts are then compared with the outputs and with the gradients of the rule on one device.

    case = reference_case(MyOp, MyOp.conformance_samples[0], seed=0)
    assert not case.problems                # the rule agrees with the tape
    xs = case.inputs_on(mesh)               # the same inputs under a layout
    ys = apply_all(case.op, *xs, mesh=mesh)     # to be compared with case.outputs
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
from meshtf.testing.conformance.samples import (
    NamedArray,
    draw_inputs,
    random_generator,
)


@dataclasses.dataclass
class ReferenceCase:
    """A sample of an op with random inputs, and the results on one device.

    Attributes:
      op: the op.
      inputs: the values of the inputs.
      outputs: the expected outputs.
      cotangents: a random array for each output of floats; None for other outputs.
      gradients: the expected gradient of each input, None where there is none; None in
        place of the list: gradients are not checked.
      problems: a message for each failure on one device.
      random_tolerance: the tolerance of outputs if no input is of floats, as in ops that
        draw random values.
    """

    op: Op
    inputs: list[NamedArray]
    outputs: list[NamedArray] = dataclasses.field(default_factory=list)
    cotangents: list[Any] = dataclasses.field(default_factory=list)
    gradients: list[Any] | None = None
    problems: list[str] = dataclasses.field(default_factory=list)
    random_tolerance: float = 0.0

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of inputs and outputs, for which a layout must be legal."""
        return [shape for _, shape in (*self.inputs, *self.outputs)]

    @property
    def dims(self) -> list[str]:
        """The names of all dimensions, each once, in the order of the shapes."""
        names = (name for shape in self.shapes for name in shape.names)
        return list(dict.fromkeys(names))

    @property
    def rounding_tolerance(self) -> float:
        """The tolerance of the data type with the lowest precision."""
        arrays = [array for array, _ in (*self.inputs, *self.outputs)]
        return max([TOLERANCE.get(array.dtype.name, 0.0) for array in arrays])

    @property
    def output_tolerance(self) -> float:
        """The tolerance of outputs."""
        if any(has_gradient(array.dtype.name) for array, _ in self.inputs):
            return self.rounding_tolerance
        return self.random_tolerance

    def inputs_on(self, mesh: Mesh) -> list[Tensor]:
        """Returns the inputs as tensors on a mesh."""
        return [asarray(mesh, array, shape) for array, shape in self.inputs]

    def cotangents_on(self, mesh: Mesh) -> list[Tensor | None]:
        """Returns the cotangents as tensors on a mesh."""
        cotangents: list[Tensor | None] = []
        for array, output in zip(self.cotangents, self.outputs, strict=True):
            if array is None:
                cotangents.append(None)
            else:
                cotangents.append(asarray(mesh, array, output.shape))
        return cotangents

    def backward(
        self,
        ys: Sequence[Tensor],
        xs: Sequence[Tensor],
        dys: Sequence[Tensor | None],
    ) -> list[Tensor | None]:
        """Returns the gradient of each input, by the op's gradient rule.

        Args:
          ys: the outputs.
          xs: the inputs.
          dys: the cotangent of each output; None: gradients through the output are not
            counted.
        """
        outputs = []
        cotangents = []
        for y, dy in zip(ys, dys, strict=True):
            if dy is not None:
                outputs.append(y)
                cotangents.append(dy)
        floating_xs = [x for x in xs if has_gradient(x.dtype)]
        dxs = iter(gradients(outputs, floating_xs, cotangents))
        return [next(dxs) if has_gradient(x.dtype) else None for x in xs]


def reference_case(
    op_class: type[Op],
    sample: Sample,
    seed: int,
    devices: str | Sequence[str] = (),
) -> ReferenceCase:
    """Runs a sample on one device and compares its gradient rule with a gradient tape.

    Args:
      op_class: the class of the op.
      sample: the attributes of the op, and descriptions of its inputs.
      seed: the seed of the random values.
      devices: names of devices, of which the first is used; empty: the default device.
    """
    rng = random_generator(seed, op_class.__name__, repr(sample))
    case = ReferenceCase(op_class(*sample.attributes), draw_inputs(sample, rng))
    mesh = mesh_on(axes="", devices=devices)
    # Persistent, since gradients are taken for several groups of outputs.
    with tf.GradientTape(persistent=True) as tape:
        xs = case.inputs_on(mesh)
        x_values = [_watched_value(tape, x) for x in xs]
        ys = apply_all(case.op, *xs, mesh=mesh)
        y_values = [_single_value(y) for y in ys]
    for y, value in zip(ys, y_values, strict=True):
        case.outputs.append(NamedArray(value.numpy(), y.shape))
    case.cotangents = [_random_like(array, rng) for array, _ in case.outputs]
    case.problems += _output_problems(case, ys)
    floating_values = [value for value in x_values if value is not None]
    if not sample.gradient or not floating_values:
        return case
    for output_indices in _cotangent_groups(case):
        tape_gradients = tape.gradient(
            [y_values[k] for k in output_indices],
            floating_values,
            [tf.constant(case.cotangents[k]) for k in output_indices],
        )
        dxs = _compare_with_tape(case, xs, ys, output_indices, tape_gradients)
        if case.gradients is None:  # the first group has all cotangents
            case.gradients = dxs
    return case


def _cotangent_groups(case: ReferenceCase) -> list[list[int]]:
    """Returns groups of indices of outputs: first all outputs that have cotangents, then
    each one separately if there are several.
    """
    indices = [k for k, dy in enumerate(case.cotangents) if dy is not None]
    if not indices:
        return []
    if len(indices) == 1:
        return [indices]
    return [indices, *([k] for k in indices)]


def _watched_value(tape: tf.GradientTape, x: Tensor) -> tf.Tensor | None:
    """Gives x a value that a tape watches, and returns the value; None if x has no
    gradient.
    """
    if not has_gradient(x.dtype):
        return None
    # A copy, since x may share its value with other tensors.
    value = tf.identity(_single_value(x))
    tape.watch(value)
    assert x.sharded_value is not None
    x.sharded_value = ShardedValue(x.sharded_value.placement, [value])
    return value


def _single_value(x: Tensor) -> tf.Tensor:
    """Returns the value of an eager tensor on a mesh of one position."""
    assert x.sharded_value is not None
    (value,) = x.sharded_value.values
    return value


def _random_like(array: Any, rng: np.random.Generator) -> Any:
    """Returns normal random values with the shape and type of an array of floats or
    complex numbers; None for other types.
    """
    if not has_gradient(array.dtype.name):
        return None
    values = rng.normal(size=array.shape)
    if is_complex(array.dtype.name):
        values = values + 1j * rng.normal(size=array.shape)
    return np.asarray(values).astype(array.dtype)


def _output_problems(case: ReferenceCase, ys: Sequence[Tensor]) -> list[str]:
    """Returns a message for each output whose value has another data type than the tensor,
    or NaN that no input has.
    """
    problems = []
    for k, (y, (array, shape)) in enumerate(zip(ys, case.outputs, strict=True)):
        problem = difference(y, shape, array) or _unexpected_nan(case, array)
        if problem:
            problems.append(f"output {k}: {problem}")
    return problems


def _unexpected_nan(case: ReferenceCase, array: Any) -> str:
    """Returns a message if an output or a gradient has NaN although no input has, or ""."""
    inputs_have_nan = any(_has_nan(input_.array) for input_ in case.inputs)
    return "NaN" if _has_nan(array) and not inputs_have_nan else ""


def _has_nan(array: Any) -> bool:
    """Returns whether an array has NaN."""
    return has_gradient(array.dtype.name) and bool(np.isnan(array).any())


def _compare_with_tape(
    case: ReferenceCase,
    xs: list[Tensor],
    ys: Sequence[Tensor],
    output_indices: list[int],
    tape_gradients: list[Any],
) -> list[Any]:
    """Returns the gradients of the op's rule, and adds a problem to the case for each that
    differs from the tape's gradient.

    Args:
      case: the sample and its cotangents.
      xs: the inputs.
      ys: the outputs.
      output_indices: the indices of the outputs whose cotangents are used.
      tape_gradients: the tape's gradient of each input of floats.
    """
    mesh = xs[0].mesh
    assert mesh is not None
    cotangents = case.cotangents_on(mesh)
    dys = [dy if k in output_indices else None for k, dy in enumerate(cotangents)]
    dxs = case.backward(ys, xs, dys)
    remaining_gradients = iter(tape_gradients)
    for i, (x, dx) in enumerate(zip(xs, dxs, strict=True)):
        if not has_gradient(x.dtype):
            continue
        problem = _compare_gradient(case, i, dx, next(remaining_gradients))
        if problem:
            case.problems.append(
                f"gradient rule against the tape, outputs {output_indices}, input {i}: "
                f"{problem}"
            )
    return [None if dx is None else _single_value(dx).numpy() for dx in dxs]


def _compare_gradient(
    case: ReferenceCase,
    input_index: int,
    dx: Tensor | None,
    tape_gradient: Any,
) -> str:
    """Returns how the gradient of one input differs from the tape's, or ""; a gradient of
    None equals zeros.
    """
    array, shape = case.inputs[input_index]
    expected = np.zeros_like(array)
    if tape_gradient is not None:
        # The tape's gradient of a gather is a tf.IndexedSlices.
        expected = tf.convert_to_tensor(tape_gradient).numpy()
    if problem := _unexpected_nan(case, expected):
        return problem
    if dx is not None:
        return difference(dx, shape, expected, case.rounding_tolerance)
    if is_close(np.zeros_like(expected), expected, case.rounding_tolerance):
        return ""
    return "none, the tape has one"
