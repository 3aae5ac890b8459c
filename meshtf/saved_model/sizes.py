"""The sizes that a signature of a SavedModel takes: it checks those that it was exported for,
and computes a batch of any size in chunks.

    x = check_sizes("x", x, (None, 16))
    outputs = in_chunks(run, inputs, axes, size=8)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import Spec


def check_sizes(name: str, x: Any, sizes: Sequence[int | None]) -> Any:
    """Returns x, after a check of its sizes when the signature runs. A loaded signature checks
    none: an index from the end, say, would then be another element.

    Args:
      name: the name of the input, which the error has.
      x: an input of a signature, a TensorFlow tensor.
      sizes: the sizes; None: any.
    """
    return tf.ensure_shape(x, sizes, name=f"sizes_of_{name}")


class BatchAxes(NamedTuple):
    """The axis of a batch of any size in the inputs and outputs of a signature, by name.

    Attributes:
      inputs: its axis in each input that has it.
      outputs: its axis in each output.
      chunk: the number of entries of a chunk.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    chunk: int


def in_chunks(
    run: Callable[[dict[str, Any], Any], dict[str, Any]],
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Spec],
    axes: BatchAxes,
) -> dict[str, Any]:
    """Returns what a function computes of a batch, chunk by chunk. The last chunk is filled up
    with copies of the last entry.

    Args:
      run: the function of inputs by name, for one chunk, and of the chunk's index.
      inputs: the inputs, by name.
      outputs: the shape and dtype of each output of one chunk.
      axes: the axes of the batch, and the size of a chunk.
    """
    batch_size = _batch_size(inputs, axes.inputs)
    num_chunks = (batch_size + axes.chunk - 1) // axes.chunk
    arrays = {}
    for name, axis in axes.outputs.items():
        sizes = list(outputs[name].shape.sizes)
        sizes.insert(0, sizes.pop(axis))
        dtype = tf.as_dtype(outputs[name].dtype)
        arrays[name] = tf.TensorArray(dtype, num_chunks, element_shape=sizes)

    def body(index: Any, arrays: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Computes one chunk, with the batch as the first axis of its outputs."""
        entries = tf.range(axes.chunk) + index * axes.chunk
        entries = tf.minimum(entries, batch_size - 1)
        chunk = dict(inputs)
        for name, axis in axes.inputs.items():
            chunk[name] = tf.gather(inputs[name], entries, axis=axis)
            chunk[name].set_shape(_with_size(inputs[name].shape, axis, axes.chunk))
        results = run(chunk, index)
        written = {}
        for name, array in arrays.items():
            result = _move_axis(results[name], axes.outputs[name], 0)
            written[name] = array.write(index, result)
        return index + 1, written

    _, arrays = tf.while_loop(
        lambda index, _: index < num_chunks,
        body,
        (tf.constant(0), arrays),
        parallel_iterations=1,
        maximum_iterations=num_chunks,  # XLA has no gradient without
    )
    return {
        name: _move_axis(array.concat()[:batch_size], 0, axes.outputs[name])
        for name, array in arrays.items()
    }


def _with_size(shape: Any, axis: int, size: int) -> list[Any]:
    """Returns a static shape with another size of one axis."""
    sizes = list(shape)
    sizes[axis] = size
    return sizes


def _batch_size(inputs: Mapping[str, Any], axes: Mapping[str, int]) -> Any:
    """Returns the number of entries of the batch, after a check that all inputs have as many."""
    first, *remaining = [tf.shape(inputs[name])[axis] for name, axis in axes.items()]
    message = f"the batches of {', '.join(axes)} differ in size"
    for size in remaining:
        check = tf.debugging.Assert(tf.equal(first, size), [message, first, size])
        with tf.control_dependencies([check]):
            first = tf.identity(first)
    return first


def _move_axis(x: Any, old: int, new: int) -> Any:
    """Returns x with an axis at another index, the others in their order."""
    order = [axis for axis in range(len(x.shape)) if axis != old]
    order.insert(new, old)
    return tf.transpose(x, order)
