"""The few ops that move tensors between devices.

    y = concat([x0, x1], 0, "/device:CPU:1")

Each function takes either TensorFlow's tensors, eager or traced, or symbolic tensors of a
program that is written. `device` is the device that runs the op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.placed.program.symbolic_tensor import SymbolicTensor


def identity(x: Any, device: str, after: Any = None) -> Any:
    """Returns x on a device; if `after` is a tensor, only after it is computed."""
    if not isinstance(x, SymbolicTensor):
        waits = [] if after is None else [after]
        with tf.device(device), tf.control_dependencies(waits):
            return tf.identity(x)
    waits = [] if after is None else [after.node]
    return _add_node(
        "Identity",
        [x],
        {},
        [x.shape],
        device,
        controls=waits,
    )[0]


def concat(xs: Sequence[Any], axis: int, device: str) -> Any:
    """Returns tensors concatenated along an axis."""
    if not isinstance(xs[0], SymbolicTensor):
        with tf.device(device):
            return tf.concat(list(xs), axis)
    if len(xs) == 1:  # returns a new tensor, as tf.concat does
        return identity(xs[0], device)
    shape = _resized(xs[0].shape, axis, sum(x.shape[axis] for x in xs))
    axis_tensor = xs[0].program.constant(axis, device=device)
    attributes = {"N": len(xs), "Tidx": tf.int32}
    return _add_node("ConcatV2", [*xs, axis_tensor], attributes, [shape], device)[0]


def stack(xs: Sequence[Any], device: str) -> Any:
    """Returns tensors stacked along a new first axis."""
    if not isinstance(xs[0], SymbolicTensor):
        with tf.device(device):
            return tf.stack(list(xs))
    shape = tf.TensorShape([len(xs), *xs[0].shape])
    return _add_node("Pack", xs, {"N": len(xs), "axis": 0}, [shape], device)[0]


def split(
    x: Any,
    num_or_sizes: int | Sequence[int],
    axis: int,
    device: str,
) -> list[Any]:
    """Returns x split along an axis: into a number of equal shards, or into shards of
    given sizes.
    """
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return list(tf.split(x, num_or_sizes, axis))
    axis_tensor = x.program.constant(axis, device=device)
    if isinstance(num_or_sizes, int):
        shape = _resized(x.shape, axis, x.shape[axis] // num_or_sizes)
        shapes = [shape] * num_or_sizes
        attributes: dict[str, Any] = {"num_split": num_or_sizes}
        inputs = [axis_tensor, x]
        return _add_node(
            "Split",
            inputs,
            attributes,
            shapes,
            device,
            x.dtype,
        )
    shapes = [_resized(x.shape, axis, size) for size in num_or_sizes]
    sizes = x.program.constant(list(num_or_sizes), device=device)
    attributes = {"num_split": len(shapes), "Tlen": tf.int32}
    return _add_node("SplitV", [x, sizes, axis_tensor], attributes, shapes, device)


def reshape(x: Any, shape: Sequence[int], device: str) -> Any:
    """Returns x in another shape; one size may be -1."""
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return tf.reshape(x, list(shape))
    known = [n for n in shape if n >= 0]
    rest = x.shape.num_elements() // max(1, tf.TensorShape(known).num_elements())
    full = tf.TensorShape([rest if n < 0 else n for n in shape])
    sizes = x.program.constant(list(shape), device=device)
    return _add_node("Reshape", [x, sizes], {"Tshape": tf.int32}, [full], device)[0]


def slice_of(
    x: Any,
    begin: Sequence[int],
    sizes: Sequence[int],
    device: str,
) -> Any:
    """Returns the slice of x with first indices `begin` and with these sizes."""
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return tf.slice(x, begin, sizes)
    bounds = [x.program.constant(n, device=device) for n in (begin, sizes)]
    shape = tf.TensorShape(sizes)
    return _add_node("Slice", [x, *bounds], {"Index": tf.int32}, [shape], device)[0]


def pad(
    x: Any,
    pads: Sequence[Sequence[int]],
    fill: float,
    device: str,
) -> Any:
    """Returns x padded with `fill`: pads[axis] = (elements before, elements after)."""
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return tf.pad(x, pads, constant_values=tf.cast(fill, x.dtype))
    shape = [low + n + high for n, (low, high) in zip(x.shape, pads)]
    inputs = [
        x,
        x.program.constant(pads, device=device),
        x.program.constant(fill, x.dtype, device),
    ]
    attributes = {"Tpaddings": tf.int32}
    return _add_node("PadV2", inputs, attributes, [tf.TensorShape(shape)], device)[0]


def add_n(xs: Sequence[Any], device: str) -> Any:
    """Returns the sum of tensors."""
    if not isinstance(xs[0], SymbolicTensor):
        with tf.device(device):
            return tf.raw_ops.AddN(inputs=list(xs))
    attributes = {"N": len(xs)}
    return _add_node(
        "AddN",
        xs,
        attributes,
        [xs[0].shape],
        device,
        name="sum",
    )[0]


_BINARY = {
    "AddV2": tf.add,
    "Maximum": tf.maximum,
    "Minimum": tf.minimum,
    "LogicalOr": tf.logical_or,
    "LogicalAnd": tf.logical_and,
}


def binary(
    kind: str,
    x: Any,
    y: Any,
    device: str,
) -> Any:
    """Returns an elementwise op of two tensors of the same shape.

    Args:
      kind: "AddV2", "Maximum", "Minimum", "LogicalOr" or "LogicalAnd".
      x: the first tensor.
      y: the second tensor.
      device: the device that runs it.
    """
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return _BINARY[kind](x, y)
    return _add_node(
        kind,
        [x, y],
        {},
        [x.shape],
        device,
        name="z",
    )[0]


def _add_node(
    kind: str,
    inputs: Sequence[SymbolicTensor],
    attributes: dict[str, Any],
    shapes: Sequence[tf.TensorShape],
    device: str,
    dtype: tf.DType | None = None,
    name: str = "output",
    controls: Sequence[str] = (),
) -> list[SymbolicTensor]:
    """Adds a node to a program and returns its outputs.

    Args:
      kind: the type of the op.
      inputs: its inputs.
      attributes: its attributes besides "T", the data type of the inputs.
      shapes: the shape of each output.
      device: the device that runs it.
      dtype: the data type of the outputs; None: that of the first input.
      name: the name of the outputs in the op's definition.
      controls: names of nodes that it waits for.
    """
    dtype = inputs[0].dtype if dtype is None else dtype
    if not kind.startswith("Logical"):
        attributes = {"T": dtype, **attributes}
    outputs = [(shape, dtype) for shape in shapes]
    program = inputs[0].program
    return list(program.node(kind, inputs, attributes, outputs, device, name, controls))


def _resized(shape: tf.TensorShape, axis: int, size: int) -> tf.TensorShape:
    """Returns a shape with another size along an axis."""
    sizes = shape.as_list()
    sizes[axis] = size
    return tf.TensorShape(sizes)
