"""The ops of random numbers: Random, DropoutMask and Dropout.

    apply(Random("normal", Shape("batch:8"), "float32", 0.02), seed)     # scale 0.02

Their inputs are seeds. The public functions, which take the seeds from the program, are in
`random`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
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
from meshtf.names import Shape
from meshtf.ops.common.batch_dimensions import Strided
from meshtf.ops.common.broadcasting import align
from meshtf.ops.random.counter_bits import (
    IndexStride,
    Words,
    index_words,
    map_elements,
    mix_high,
    random_key,
)
from meshtf.ops.random.distributions import DISTRIBUTIONS

# FLOPs of a random number, roughly: the additions and multiplications of the hash.
_OPS_PER_ELEMENT = 12


def _sample(*attributes: Any, num_inputs: int = 1) -> Sample:
    """Returns a sample of a random op, for conformance tests.

    Args:
      *attributes: the attributes of the op.
      num_inputs: the number of its inputs, which are all scalars of int32.
    """
    return Sample(attributes, ("int",) * num_inputs, gradient=False)


class Random(Op):
    """Random numbers of a distribution: standard numbers * scale + shift.

    The inputs are the seeds, followed by the index of the microbatch for each entry of
    `strided`. All of them are scalars of int32.

    Attributes:
      kind: the distribution of the standard numbers: "uniform" in [0, 1), "integers" in
        [0, scale), "normal", "truncated" (normal, within two standard deviations) or
        "gumbel".
      shape: the shape of the output.
      dtype: the data type of the output.
      scale: the factor of the standard numbers; for "integers" their count.
      shift: the number that is added.
      strided: the dimensions that count examples of microbatches.
    """

    kind: str
    shape: Shape
    dtype: str
    scale: float = 1.0
    shift: float = 0.0
    strided: tuple[Strided, ...] = ()

    share_trace = True
    conformance_samples = (
        _sample("uniform", Shape("b:4;d:8"), "float32"),
        _sample("uniform", Shape("b:3;c:5"), "float32", 2.0, -1.0, num_inputs=2),
        _sample("uniform", Shape("d:8"), "bfloat16"),
        _sample("uniform", Shape(""), "float64"),
        _sample("integers", Shape("b:4;c:2;d:6"), "int32", 10, -3),
        _sample("normal", Shape("d:6;b:4"), "float32"),
        _sample("normal", Shape("c:3;b:4;d:5"), "float32", 0.1, 1.0),
        _sample("truncated", Shape("b:4;d:6"), "float32"),
        _sample("gumbel", Shape("b:3;d:8"), "float32"),
        _sample(
            "uniform",
            Shape("b:4;d:6"),
            "float32",
            1.0,
            0.0,
            (Strided("b", 3, 1),),
            num_inputs=2,
        ),
        _sample(
            "uniform",
            Shape("t:8;b:4"),
            "float32",
            1.0,
            0.0,
            (Strided("t", 3, 2), Strided("b", 2, 1)),
            num_inputs=3,
        ),
    )

    def output_specs(self, *seeds: Spec) -> Specs:
        return (Spec(self.shape, self.dtype),)

    def local(self, context: LocalContext, *seeds: Any) -> LocalTensors:
        distribution = DISTRIBUTIONS[self.kind]
        draw = distribution(self.dtype, self.scale, self.shift)
        words = _words(context, self.shape, self.strided, seeds)
        y = map_elements(draw, words, context.outputs[0].sizes)
        return (tf.cast(y, self.dtype),)

    def gradient(self, dy: Any, y: Any, *seeds: Any) -> Cotangents:
        return [None] * len(seeds)

    def flops(self, *seeds: Spec) -> int:
        return _OPS_PER_ELEMENT * self.shape.size


def _words(
    context: LocalContext,
    shape: Shape,
    strided: Sequence[Strided],
    inputs: Sequence[Any],
) -> Words:
    """Returns the words of each index of each dimension of a random tensor.

    Args:
      context: the shard for which the op runs.
      shape: the shape of the op's output.
      strided: the dimensions that count examples of microbatches.
      inputs: the inputs of `Random`: the seeds, followed by the index of the microbatch
        for each entry of `strided`.
    """
    num_seeds = len(inputs) - len(strided)
    seeds = inputs[:num_seeds]
    if context.compiled:
        # Otherwise TensorFlow computes all that depends on constant seeds while it lowers a
        # program, and the numbers, such as the initial values of a model, are in its text.
        seeds = [context.optimization_barrier(seed) for seed in seeds]
    key = random_key(seeds)
    strides = {
        s.dim: IndexStride(s.num_microbatches, s.inner_size, microbatch)
        for s, microbatch in zip(strided, inputs[num_seeds:])
    }
    return index_words(context, shape.names, key, strides)


class DropoutMask(Op):
    """A boolean mask, true with the probability 1 - rate. The inputs are those of `Random`.

    Attributes:
      rate: the probability of false.
      shape: the shape of the output.
      strided: the dimensions that count examples of microbatches.
    """

    rate: float
    shape: Shape
    strided: tuple[Strided, ...] = ()

    share_trace = True
    conformance_samples = (
        _sample(0.4, Shape("b:4;d:6")),
        _sample(0.5, Shape("d:5;b:3"), num_inputs=2),
        _sample(0.1, Shape("b:8;c:2;d:3")),
        _sample(0.4, Shape("b:4;d:6"), (Strided("b", 2, 1),), num_inputs=2),
        _sample(0.4, Shape("d:3;t:8"), (Strided("t", 2, 4),), num_inputs=2),
    )

    def output_specs(self, *seeds: Spec) -> Specs:
        return (Spec(self.shape, "bool"),)

    def local(self, context: LocalContext, *seeds: Any) -> LocalTensors:
        threshold = np.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        words = _words(context, self.shape, self.strided, seeds)

        def is_kept(a: Any, b: Any) -> Any:
            return mix_high(a, b) >= threshold

        return (map_elements(is_kept, words, context.outputs[0].sizes),)

    def gradient(self, dy: Any, y: Any, *seeds: Any) -> Cotangents:
        return [None] * len(seeds)

    def flops(self, *seeds: Spec) -> int:
        return _OPS_PER_ELEMENT * self.shape.size


@dataclasses.dataclass(frozen=True)
class Dropout(Op):
    """x * scale where the mask is true, and 0 elsewhere. The mask may lack names of x."""

    scale: float

    linearity = "each"  # op(a + b, c) = op(a, c) + op(b, c)
    conformance_samples = (
        Sample((2.0,), ("b:4;d:6", "bool b:4;d:6")),
        Sample((1.5,), ("d:5;b:3", "bool b:3")),
        Sample((2.0,), ("b:4;c:2;d:6", "bool c:2;d:6")),
    )

    def output_specs(self, x: Spec, mask: Spec) -> Specs:
        return (x,)

    def local(self, context: LocalContext, x: Any, mask: Any) -> LocalTensors:
        x_shape, mask_shape = context.inputs
        aligned_mask = align(mask, mask_shape, x_shape)
        scaled_x = x * tf.constant(self.scale, x.dtype)
        zero = tf.zeros([], x.dtype)
        return (tf.where(aligned_mask, scaled_x, zero),)

    def gradient(self, dy: Any, y: Any, x: Any, mask: Any) -> Cotangents:
        return [apply(self, dy, mask), None]
