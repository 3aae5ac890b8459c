"""The ops that collectives consist of, for TensorFlow's tensors and symbolic tensors.

    y = concat([x0, x1], axis=0, device="/device:CPU:1")

With eager or traced tensors, a function runs or adds an op of TensorFlow. With symbolic
tensors of a program that is being written, it adds a node to the program. `device` is the
device that runs the op.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.trace_cache import constant
from meshtf.runtime.placed.program.symbolic_tensor import SymbolicTensor

# TensorFlow slices and pads tensors of few axes only.
_MOST_AXES = 6


def identity(x: Any, device: str, after: Any = None) -> Any:
    """Returns x on a device; if `after` is a tensor, only after that is computed."""
    awaited_tensors = [] if after is None else [after]
    if not isinstance(x, SymbolicTensor):
        with tf.device(device), tf.control_dependencies(awaited_tensors):
            return tf.identity(x)
    return _node_output(
        "Identity",
        [x],
        attributes={},
        shape=x.shape,
        device=device,
        controls=[tensor.node for tensor in awaited_tensors],
    )


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
    return _node_output(
        "ConcatV2",
        [*xs, axis_tensor],
        attributes=attributes,
        shape=shape,
        device=device,
    )


def stack(xs: Sequence[Any], device: str) -> Any:
    """Returns tensors stacked along a new first axis."""
    if not isinstance(xs[0], SymbolicTensor):
        with tf.device(device):
            return tf.stack(list(xs))
    shape = tf.TensorShape([len(xs), *xs[0].shape])
    return _node_output(
        "Pack",
        xs,
        attributes={"N": len(xs), "axis": 0},
        shape=shape,
        device=device,
    )


def split(
    x: Any,
    num_or_sizes: int | Sequence[int],
    axis: int,
    device: str,
) -> list[Any]:
    """Returns x split along an axis: into `num_or_sizes` equal shards, or into shards of
    these sizes.
    """
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return list(tf.split(x, num_or_sizes, axis))
    axis_tensor = x.program.constant(axis, device=device)
    if isinstance(num_or_sizes, int):
        shape = _resized(x.shape, axis, x.shape[axis] // num_or_sizes)
        shapes = [shape] * num_or_sizes
        return _add_node(
            "Split",
            [axis_tensor, x],
            attributes={"num_split": num_or_sizes},
            shapes=shapes,
            device=device,
            dtype=x.dtype,
        )
    shapes = [_resized(x.shape, axis, size) for size in num_or_sizes]
    sizes = x.program.constant(list(num_or_sizes), device=device)
    return _add_node(
        "SplitV",
        [x, sizes, axis_tensor],
        attributes={"num_split": len(shapes), "Tlen": tf.int32},
        shapes=shapes,
        device=device,
    )


def reshape(x: Any, shape: Sequence[int], device: str) -> Any:
    """Returns x in another shape; one size may be -1."""
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return tf.reshape(x, list(shape))
    known_sizes = [size for size in shape if size >= 0]
    missing_size = x.shape.num_elements() // max(1, math.prod(known_sizes))
    new_shape = tf.TensorShape([missing_size if size < 0 else size for size in shape])
    sizes = x.program.constant(list(shape), device=device)
    return _node_output(
        "Reshape",
        [x, sizes],
        attributes={"Tshape": tf.int32},
        shape=new_shape,
        device=device,
    )


def _merge_axes(
    shape: Sequence[int], unchanged: Sequence[bool]
) -> list[tuple[int, int]]:
    """Returns the ranges of axes that become one axis: neighbours that are unchanged."""
    ranges: list[tuple[int, int]] = []
    for axis in range(len(shape)):
        if axis and unchanged[axis] and unchanged[axis - 1]:
            ranges[-1] = (ranges[-1][0], axis + 1)
        else:
            ranges.append((axis, axis + 1))
    return ranges


def slice_of(
    x: Any,
    begin: Sequence[int],
    sizes: Sequence[int],
    device: str,
) -> Any:
    """Returns the slice of x that starts at the indices `begin` and has these sizes."""
    if len(sizes) > _MOST_AXES:
        merged = _merge_axes(x.shape, [a == b for a, b in zip(sizes, x.shape)])
        y = slice_of(
            reshape(x, [math.prod(x.shape[a:b]) for a, b in merged], device),
            [begin[a] if b == a + 1 else 0 for a, b in merged],
            [math.prod(sizes[a:b]) for a, b in merged],
            device,
        )
        return reshape(y, sizes, device)
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return tf.slice(x, begin, sizes)
    inputs = [
        x,
        x.program.constant(begin, device=device),
        x.program.constant(sizes, device=device),
    ]
    return _node_output(
        "Slice",
        inputs,
        attributes={"Index": tf.int32},
        shape=tf.TensorShape(sizes),
        device=device,
    )


def pad(
    x: Any,
    pads: Sequence[Sequence[int]],
    fill: float,
    device: str,
) -> Any:
    """Returns x padded with `fill`; pads[axis] is (elements before, elements after)."""
    if len(pads) > _MOST_AXES:
        merged = _merge_axes(x.shape, [not any(pair) for pair in pads])
        y = pad(
            reshape(x, [math.prod(x.shape[a:b]) for a, b in merged], device),
            [pads[a] if b == a + 1 else (0, 0) for a, b in merged],
            fill,
            device,
        )
        shape = [a + size + b for size, (a, b) in zip(x.shape, pads)]
        return reshape(y, shape, device)
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return tf.pad(x, pads, constant_values=constant(fill, x.dtype))
    shape = [before + size + after for size, (before, after) in zip(x.shape, pads)]
    inputs = [
        x,
        x.program.constant(pads, device=device),
        x.program.constant(fill, x.dtype, device=device),
    ]
    return _node_output(
        "PadV2",
        inputs,
        attributes={"Tpaddings": tf.int32},
        shape=tf.TensorShape(shape),
        device=device,
    )


def add_n(xs: Sequence[Any], device: str) -> Any:
    """Returns the sum of tensors."""
    if not isinstance(xs[0], SymbolicTensor):
        with tf.device(device):
            return tf.raw_ops.AddN(inputs=list(xs))
    return _node_output(
        "AddN",
        xs,
        attributes={"N": len(xs)},
        shape=xs[0].shape,
        device=device,
        output_name="sum",
    )


# The names of binary ops in graphs, and those of TensorFlow's functions that run them.
_BINARY = {
    "AddV2": "add",
    "Maximum": "maximum",
    "Minimum": "minimum",
    "LogicalOr": "logical_or",
    "LogicalAnd": "logical_and",
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
      device: the device that runs the op.
    """
    if not isinstance(x, SymbolicTensor):
        with tf.device(device):
            return getattr(tf, _BINARY[kind])(x, y)
    return _node_output(
        kind,
        [x, y],
        attributes={},
        shape=x.shape,
        device=device,
        output_name="z",
    )


def _node_output(
    kind: str,
    inputs: Sequence[SymbolicTensor],
    attributes: dict[str, Any],
    shape: tf.TensorShape,
    device: str,
    output_name: str = "output",
    controls: Sequence[str] = (),
) -> SymbolicTensor:
    """Adds a node with one output to a program, and returns this output. The arguments are
    those of `_add_node`.
    """
    (output,) = _add_node(
        kind,
        inputs,
        attributes,
        shapes=[shape],
        device=device,
        output_name=output_name,
        controls=controls,
    )
    return output


def _add_node(
    kind: str,
    inputs: Sequence[SymbolicTensor],
    attributes: dict[str, Any],
    shapes: Sequence[tf.TensorShape],
    device: str,
    dtype: tf.DType | None = None,
    output_name: str = "output",
    controls: Sequence[str] = (),
) -> list[SymbolicTensor]:
    """Adds a node to the program of its inputs, and returns the outputs.

    Args:
      kind: the type of the op.
      inputs: the inputs of the op.
      attributes: the attributes of the op, besides "T", the data type of the inputs.
      shapes: the shape of each output.
      device: the device that runs the op.
      dtype: the data type of the outputs; None: that of the first input.
      output_name: the name of the outputs in the op's definition.
      controls: the names of nodes after which the new node runs.
    """
    if dtype is None:
        dtype = inputs[0].dtype
    # The inputs of logical ops are always boolean, so these ops have no attribute "T".
    if not kind.startswith("Logical"):
        attributes = {"T": dtype, **attributes}
    outputs = inputs[0].program.node(
        kind,
        inputs,
        attributes,
        outputs=[(shape, dtype) for shape in shapes],
        device=device,
        output_name=output_name,
        controls=controls,
    )
    return list(outputs)


def _resized(shape: tf.TensorShape, axis: int, size: int) -> tf.TensorShape:
    """Returns a shape with another size along an axis."""
    sizes = shape.as_list()
    sizes[axis] = size
    return tf.TensorShape(sizes)
