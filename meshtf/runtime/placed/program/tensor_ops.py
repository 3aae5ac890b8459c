"""The few ops that move tensors between devices: at once, traced, or written.

    y = concat([x0, x1], 0, "/device:CPU:1")

Each takes TensorFlow's tensors or symbolic ones, and says on which device it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.placed.program.symbolic_tensor import SymbolicTensor


def identity(x: Any, device: str, after: Any = None) -> Any:
    """Returns x on a device; not before another tensor is there, if one is named."""
    if not isinstance(x, SymbolicTensor):
        waits = [] if after is None else [after]
        with tf.device(device), tf.control_dependencies(waits):
            return tf.identity(x)
    waits = [] if after is None else [after.node]
    return _written("Identity", [x], {}, [x.shape], device, controls=waits)[0]


def concat(xs: Sequence[Any], axis: int, device: str) -> Any:
    """Returns tensors joined along an axis."""
    if not isinstance(xs[0], SymbolicTensor):
        with tf.device(device):
            return tf.concat(list(xs), axis)
    if len(xs) == 1:  # as TensorFlow does: a tensor of its own
        return identity(xs[0], device)
    shape = _resized(xs[0].shape, axis, sum(x.shape[axis] for x in xs))
    where = xs[0].program.constant(axis, device=device)
    attributes = {"N": len(xs), "Tidx": tf.int32}
    return _written("ConcatV2", [*xs, where], attributes, [shape], device)[0]


def stack(xs: Sequence[Any], device: str) -> Any:
    """Returns tensors as rows of one."""
    if not isinstance(xs[0], SymbolicTensor):
        with tf.device(device):
            return tf.stack(list(xs))
    shape = tf.TensorShape([len(xs), *xs[0].shape])
    return _written("Pack", xs, {"N": len(xs), "axis": 0}, [shape], device)[0]


def split(x: Any, parts: int | Sequence[int], axis: int, device: str) -> list[Any]:
    """Returns pieces along an axis: how many equal ones, or of which sizes."""
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return list(tf.split(x, parts, axis))
    where = x.program.constant(axis, device=device)
    if isinstance(parts, int):
        shapes = [_resized(x.shape, axis, x.shape[axis] // parts)] * parts
        attributes: dict[str, Any] = {"num_split": parts}
        return _written("Split", [where, x], attributes, shapes, device, x.dtype)
    shapes = [_resized(x.shape, axis, size) for size in parts]
    sizes = x.program.constant(list(parts), device=device)
    attributes = {"num_split": len(shapes), "Tlen": tf.int32}
    return _written("SplitV", [x, sizes, where], attributes, shapes, device)


def reshape(x: Any, shape: Sequence[int], device: str) -> Any:
    """Returns x in another shape, of which one size may be -1."""
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return tf.reshape(x, list(shape))
    known = [n for n in shape if n >= 0]
    rest = x.shape.num_elements() // max(1, tf.TensorShape(known).num_elements())
    full = tf.TensorShape([rest if n < 0 else n for n in shape])
    sizes = x.program.constant(list(shape), device=device)
    return _written("Reshape", [x, sizes], {"Tshape": tf.int32}, [full], device)[0]


def take(x: Any, begin: Sequence[int], sizes: Sequence[int], device: str) -> Any:
    """Returns the part of x that begins somewhere and has these sizes."""
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return tf.slice(x, begin, sizes)
    bounds = [x.program.constant(n, device=device) for n in (begin, sizes)]
    shape = tf.TensorShape(sizes)
    return _written("Slice", [x, *bounds], {"Index": tf.int32}, [shape], device)[0]


def pad(x: Any, pads: Sequence[Sequence[int]], fill: float, device: str) -> Any:
    """Returns x with elements before and after each axis."""
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
    return _written("PadV2", inputs, attributes, [tf.TensorShape(shape)], device)[0]


def add_n(xs: Sequence[Any], device: str) -> Any:
    """Returns the sum of tensors."""
    if not isinstance(xs[0], SymbolicTensor):
        with tf.device(device):
            return tf.raw_ops.AddN(inputs=list(xs))
    attributes = {"N": len(xs)}
    return _written("AddN", xs, attributes, [xs[0].shape], device, name="sum")[0]


_BINARY = {
    "AddV2": tf.add,
    "Maximum": tf.maximum,
    "Minimum": tf.minimum,
    "LogicalOr": tf.logical_or,
    "LogicalAnd": tf.logical_and,
}


def binary(kind: str, x: Any, y: Any, device: str) -> Any:
    """Returns an op of two tensors of the same shape.

    Args:
      kind: "AddV2", "Maximum", "Minimum", "LogicalOr" or "LogicalAnd".
      x: a tensor.
      y: another.
      device: where it runs.
    """
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return _BINARY[kind](x, y)
    return _written(kind, [x, y], {}, [x.shape], device, name="z")[0]


def _written(
    kind: str,
    inputs: Sequence[SymbolicTensor],
    attributes: dict[str, Any],
    shapes: Sequence[tf.TensorShape],
    device: str,
    dtype: tf.DType | None = None,
    name: str = "output",
    controls: Sequence[str] = (),
) -> list[SymbolicTensor]:
    """Returns the outputs of a new node, all of one data type: that of the first input
    unless another is named.
    """
    dtype = inputs[0].dtype if dtype is None else dtype
    if not kind.startswith("Logical"):
        attributes = {"T": dtype, **attributes}
    outputs = [(shape, dtype) for shape in shapes]
    program = inputs[0].program
    return list(program.node(kind, inputs, attributes, outputs, device, name, controls))


def _resized(shape: tf.TensorShape, axis: int, size: int) -> tf.TensorShape:
    sizes = shape.as_list()
    sizes[axis] = size
    return tf.TensorShape(sizes)
