"""The ops of random numbers: Random and Dropout.

    apply(Random("normal", Shape("batch:8"), "float32", scale=0.02), seed)

The inputs of `Random` are seeds. The public functions, which take the seeds
from the program, are in `random.py`.

In a microbatch, an example gets the numbers that it would get in the entire batch. So for a
dimension that counts examples of a microbatch, `Strided` has the parameters that map its
indices to indices in the batch, and the index of the microbatch is a further input of the op.

Where indices of a dimension stand for others (`random_indices`), these are inputs as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Sample,
    Spec,
    Specs,
    apply,
)
from meshtf.graph.op_kinds import ElementwiseOp
from meshtf.names import Shape
from meshtf.ops.common.batch_dimensions import Strided
from meshtf.ops.common.broadcasting import broadcast_call
from meshtf.ops.common.trace_cache import constant
from meshtf.ops.random.counter_bits import (
    Words,
    index_words,
    map_elements,
    random_key,
)
from meshtf.ops.random.distributions import draw_function

# The approximate FLOPs of a random number: the additions and multiplications of the hash.
_FLOPS_PER_ELEMENT = 12


def _sample(
    kind: str,
    shape: str,
    dtype: str = "float32",
    scale: float = 1.0,
    shift: float = 0.0,
    strided: tuple[Strided, ...] = (),
    num_seeds: int = 1,
) -> Sample:
    """Returns a test input of `Random`. The inputs are scalars of int32."""
    attributes = (kind, Shape(shape), dtype, scale, shift, strided)
    inputs = ("int",) * (num_seeds + len(strided))
    return Sample(attributes, inputs, gradient=False)


class Random(Op):
    """Random numbers of a distribution: standard numbers * scale + shift.

    The inputs are the seeds, followed by the index of the microbatch for each entry of
    `strided`, all scalars of int32, and the indices for each entry of `indexed`.

    Attributes:
      kind: the distribution of the standard numbers: "uniform" in [0, 1), "integers" in
        [0, scale), "normal", "truncated" (normal, within two standard deviations) or
        "gumbel"; or "mask", booleans that are false with the probability `scale`.
      shape: the shape of the output.
      dtype: the data type of the output.
      scale: the factor of the standard numbers; for "integers" their count.
      shift: the number that is added.
      strided: the dimensions that count examples of microbatches.
      indexed: the dimensions whose indices stand for others, which are inputs, int32 [...,
        dim]; with the further dimensions of such an input, an index is for one element.
    """

    kind: str
    shape: Shape
    dtype: str
    scale: float = 1.0
    shift: float = 0.0
    strided: tuple[Strided, ...] = ()
    indexed: tuple[str, ...] = ()

    # Equal ops are traced once, since they consist of many TensorFlow ops.
    share_trace = True
    # Strided: (dim, num_microbatches, inner_size).
    conformance_samples = (
        _sample("uniform", "b:4;d:8"),
        _sample("uniform", "b:3;c:5", scale=2.0, shift=-1.0, num_seeds=2),
        _sample("uniform", "d:8", "bfloat16"),
        _sample("uniform", "", "float64"),
        _sample("integers", "b:4;c:2;d:6", "int32", 10, -3),
        _sample("normal", "d:6;b:4"),
        _sample("normal", "c:3;b:4;d:5", scale=0.1, shift=1.0),
        _sample("truncated", "b:4;d:6"),
        _sample("gumbel", "b:3;d:8"),
        _sample("uniform", "b:4;d:6", strided=(Strided("b", 3, 1),)),
        _sample("uniform", "t:8;b:4", strided=(Strided("t", 3, 2), Strided("b", 2, 1))),
        Sample(
            ("normal", Shape("c:2;b:3;d:4"), "float32", 1.0, 0.0, (), ("d",)),
            ("int", "int d:4;c:2"),
            gradient=False,
        ),
        _sample("mask", "b:4;d:6", "bool", 0.4),
        _sample("mask", "d:5;b:3", "bool", 0.5, num_seeds=2),
        _sample("mask", "b:8;c:2;d:3", "bool", 0.1),
        _sample("mask", "b:4;d:6", "bool", 0.4, strided=(Strided("b", 2, 1),)),
        _sample("mask", "d:3;t:8", "bool", 0.4, strided=(Strided("t", 2, 4),)),
        Sample(
            (
                "mask",
                Shape("b:4;c:2;d:3;e:4"),
                "bool",
                0.4,
                0.0,
                (Strided("b", 2, 1),),
                ("d", "e"),
            ),
            ("int", "int", "int c:2;d:3", "int e:4;c:2"),
            gradient=False,
        ),
    )

    @property
    def display_name(self) -> str:
        return "dropoutmask" if self.kind == "mask" else "random"

    def output_specs(self, *seeds: Spec) -> Specs:
        return (Spec(self.shape, self.dtype),)

    def local(self, context: LocalContext, *seeds: Any) -> LocalTensors:
        draw = draw_function(self.kind, self.dtype, self.scale, self.shift)
        words = words_of(self.shape, self.strided, self.indexed, context, seeds)
        # A mask is not stored, unlike the words: within the ops that read it, the last steps of
        # the hash take less time than a mask in memory, a quarter of a small step.
        y = map_elements(draw, words, context.outputs[0].sizes)
        return (tf.cast(y, self.dtype),)

    def gradient(self, dy: Any, y: Any, *seeds: Any) -> Cotangents:
        return [None] * len(seeds)

    def flops(self, *seeds: Spec) -> int:
        return _FLOPS_PER_ELEMENT * self.shape.size


def words_of(
    shape: Shape,
    strided: tuple[Strided, ...],
    indexed: tuple[str, ...],
    context: LocalContext,
    inputs: Sequence[Any],
) -> Words:
    """Returns the words of each index of each dimension of a random tensor: hashes of the
    seeds and the index (`counter_bits.py`).

    Args:
      shape, strided, indexed: the attributes of `Random`.
      context: the sizes and offsets of this device's shard.
      inputs: the inputs of the op.
    """
    indices_start = len(inputs) - len(indexed)
    index_shapes = dict(zip(indexed, context.inputs[indices_start:]))
    num_seeds = indices_start - len(strided)
    seeds = inputs[:num_seeds]
    if context.compiled:
        # Otherwise TensorFlow would compute all that depends on constant seeds while it
        # lowers a program, and the text of the program would contain the numbers, such as
        # the initial values of a model.
        seeds = [context.optimization_barrier(seed) for seed in seeds]
    key = random_key(seeds)
    strides = {
        mapping.dim: (mapping, microbatch)
        for mapping, microbatch in zip(strided, inputs[num_seeds:])
    }
    # Chunks of positions, for example, are no dimension of the entire tensor.
    index_names = {name for x in index_shapes.values() for name in x.names}
    names = shape.without(*index_names.difference(indexed)).names
    input_indices = {
        name: tf.reshape(x, [-1]) for name, x in zip(indexed, inputs[indices_start:])
    }
    words = index_words(
        context, names, key=key, strides=strides, input_indices=input_indices
    )
    if not indexed:
        return words
    out = context.outputs[0]
    shapes = [index_shapes.get(name, out.only([name])) for name in names]
    words_a, words_b = words
    a = _broadcast_sum(words_a, shapes, out)
    b = _broadcast_sum(words_b, shapes, out)
    return [a], [b]


def _broadcast_sum(words: Sequence[Any], shapes: Sequence[Shape], out: Shape) -> Any:
    """Returns the sum of tensors, uint32 [size of `out`].

    Args:
      words: the tensors, uint32 [size of a shape] each.
      shapes: the named shape of each tensor.
      out: the shape that they are broadcast to.
    """
    terms = [tf.reshape(x, shape.sizes) for x, shape in zip(words, shapes)]

    def add(first: Any, *rest: Any) -> Any:
        return sum(rest, first)

    return tf.reshape(broadcast_call(add, terms, shapes, out), [-1])


@dataclasses.dataclass(frozen=True)
class Dropout(ElementwiseOp):
    """x * scale where the mask is true, and 0 elsewhere. The mask may lack names of x."""

    scale: float

    # If one input is a partial sum (one addend on each device), so is the output.
    linearity = "each"
    # Test inputs: the attribute `scale`, then each input's kind of values and shape.
    conformance_samples = (
        Sample((2.0,), ("b:4;d:6", "bool b:4;d:6")),
        Sample((1.5,), ("d:5;b:3", "bool b:3")),
        Sample((2.0,), ("b:4;c:2;d:6", "bool c:2;d:6")),
    )

    def output_specs(self, x: Spec, mask: Spec) -> Specs:
        return (x,)

    def local(self, context: LocalContext, x: Any, mask: Any) -> LocalTensors:
        x_shape, _ = context.inputs
        scaled_x = x * constant(self.scale, x.dtype)
        zero = tf.zeros([], x.dtype)

        def dropped(x: Any, mask: Any) -> Any:
            return tf.where(mask, x, zero)

        return (broadcast_call(dropped, [scaled_x, mask], context.inputs, x_shape),)

    def gradient(self, dy: Any, y: Any, x: Any, mask: Any) -> Cotangents:
        return [apply(self, dy, mask), None]  # the same scale and mask
