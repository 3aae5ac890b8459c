"""Random numbers that do not depend on the layout: a hash of (key, global index).

    with mtf.seed(run_seed, step):                  # ints, or scalar int32 tensors
      x = mtf.dropout(x, 0.1)                       # key: run_seed, step and "encoder/dropout"

Any shard of any dimension, on any device, eager, recorded, recomputed or compiled, gets
the same bits (see `counter_bits`). The key is an input, so a new step needs no new trace.
The numbers depend on the order of a tensor's dimensions, but not on their names or sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, PlanError
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.mesh import Mesh
from meshtf.names import (
    Names,
    Shape,
    ShapeLike,
    accumulation_dtype,
    dtype_name,
    is_floating,
    is_integer,
    names_of,
)
from meshtf.names.arguments import as_float, as_text
from meshtf.ops.common.batch_dimensions import Strided
from meshtf.ops.common.broadcasting import align, check_scalar, is_scalar
from meshtf.ops.common.checks import require_dim, require_floating, tensor_along
from meshtf.ops.control.microbatch import microbatch_inputs
from meshtf.ops.control.seeds import Seed, seeds_of
from meshtf.ops.elementwise.arithmetic import add, multiply
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.top_k import argmax
from meshtf.ops.random.counter_bits import (
    IndexStride,
    Words,
    index_words,
    map_elements,
    mix_high,
    random_key,
)
from meshtf.ops.random.distributions import DISTRIBUTIONS


def _sample(*attributes: Any, num_inputs: int = 1) -> Sample:
    """Returns a sample of a random op, for conformance tests: all inputs are int32 []."""
    return Sample(attributes, ("int",) * num_inputs, gradient=False)


class Random(Op):
    """Random numbers of a distribution: standard numbers * scale + shift.

    Kinds are uniform in [0, 1), integers in [0, scale), normal, truncated (normal, within
    two standard deviations), and gumbel. Inputs are the seeds, and then for each entry of
    `strided` the index of its microbatch; all are scalars of int32.
    """

    kind: str
    shape: Shape
    dtype: str
    scale: float = 1.0
    shift: float = 0.0
    strided: tuple[Strided, ...] = ()  # dimensions that count examples of microbatches

    share_trace = True
    samples = (
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
        return 12 * self.shape.size


def _words(
    context: LocalContext,
    shape: Shape,
    strided: Sequence[Strided],
    inputs: Sequence[Any],
) -> Words:
    """Returns the words of each index of each dimension of a random tensor.

    Args:
      context: of the op.
      shape: of its output.
      strided: dimensions that count examples of a microbatch.
      inputs: the seeds, and then the microbatch index of each entry of `strided`.
    """
    num_seeds = len(inputs) - len(strided)
    key = random_key(inputs[:num_seeds])
    strides = {
        s.dim: IndexStride(s.num_microbatches, s.inner_size, microbatch)
        for s, microbatch in zip(strided, inputs[num_seeds:])
    }
    return index_words(context, shape.names, key, strides)


class DropoutMask(Op):
    """True with the probability 1 - rate. Inputs are those of `Random`."""

    rate: float
    shape: Shape
    strided: tuple[Strided, ...] = ()  # dimensions that count examples of microbatches

    share_trace = True
    samples = (
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
        return 12 * self.shape.size


@dataclasses.dataclass(frozen=True)
class Dropout(Op):
    """x * scale where the mask is true, else 0. The mask may lack names of x."""

    scale: float

    linearity = "each"
    samples = (
        Sample((2.0,), ("b:4;d:6", "bool b:4;d:6")),
        Sample((1.5,), ("d:5;b:3", "bool b:3")),
        Sample((2.0,), ("b:4;c:2;d:6", "bool c:2;d:6")),
    )

    def output_specs(self, x: Spec, mask: Spec) -> Specs:
        return (x,)

    def local(self, context: LocalContext, x: Any, mask: Any) -> LocalTensors:
        x_names, mask_names = context.inputs
        aligned_mask = align(mask, mask_names, x_names)
        scaled = x * tf.constant(self.scale, x.dtype)
        zero = tf.zeros([], x.dtype)
        y = tf.where(aligned_mask, scaled, zero)
        return (y,)

    def gradient(self, dy: Any, y: Any, x: Any, mask: Any) -> Cotangents:
        return [apply(self, dy, mask), None]


def _draw(
    mesh: Mesh | None,
    kind: str,
    shape: ShapeLike,
    dtype: Any,
    scale: float,
    shift: float,
    seed: Seed,
    name: str,
) -> Tensor:
    """Returns random numbers of a kind of `Random`: standard numbers * scale + shift."""
    as_text("name", name)
    shape = Shape(shape)
    microbatch = microbatch_inputs(mesh, shape)
    return apply(
        Random(kind, shape, dtype, scale, shift, microbatch.strided),
        *seeds_of(mesh, seed, name),
        *microbatch.seeds,
        *microbatch.indices,
        mesh=mesh,
    )


def random_uniform(
    mesh: Mesh | None,
    shape: ShapeLike,
    minval: float = 0,
    maxval: float = 1,
    dtype: Any = "float32",
    seed: Seed = None,
    name: str = "random_uniform",
) -> Tensor:
    """Returns uniformly distributed numbers, floats or integers from minval to below
    maxval, [*shape].

    Args:
      mesh: the mesh of the result.
      shape: the named shape, such as "batch:8;d_model:4".
      minval: the lower bound, included.
      maxval: the upper bound, excluded; for integers at most minval + 2**32.
      dtype: any floating or integer type.
      seed: an int or a scalar int32 tensor, or several; default: those of
        `with mtf.seed(...)`.
      name: distinguishes random ops of one module.

    Raises:
      PlanError: there is no seed, or two ops of one name have the same seed.
      DTypeError: `dtype` is bool or complex, or the range of integers is empty.
    """
    minval = as_float("minval", minval)
    maxval = as_float("maxval", maxval)
    dtype = dtype_name(dtype)
    if is_integer(dtype):
        if not 0 < maxval - minval <= 2**32:
            raise DTypeError(
                f"there are no integers in [{minval}, {maxval}), or more than 2**32."
            )
        check_scalar(minval, dtype)
        check_scalar(maxval - 1, dtype)
        return _draw(
            mesh, "integers", shape, dtype, maxval - minval, minval, seed, name
        )
    if not is_floating(dtype):
        raise DTypeError(f"random_uniform returns floats or integers, not {dtype}.")
    return _draw(mesh, "uniform", shape, dtype, maxval - minval, minval, seed, name)


def random_normal(
    mesh: Mesh | None,
    shape: ShapeLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = "float32",
    seed: Seed = None,
    name: str = "random_normal",
) -> Tensor:
    """Returns normally distributed numbers [*shape]; other arguments as in
    `random_uniform`.
    """
    mean = as_float("mean", mean)
    stddev = as_float("stddev", stddev)
    return _draw(mesh, "normal", shape, _floating(dtype), stddev, mean, seed, name)


def truncated_normal(
    mesh: Mesh | None,
    shape: ShapeLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = "float32",
    seed: Seed = None,
    name: str = "truncated_normal",
) -> Tensor:
    """Returns normally distributed numbers [*shape] within two standard deviations of
    the mean.

    Arguments and errors are those of `random_normal`.
    """
    mean = as_float("mean", mean)
    stddev = as_float("stddev", stddev)
    return _draw(mesh, "truncated", shape, _floating(dtype), stddev, mean, seed, name)


def _floating(dtype: Any) -> str:
    dtype = dtype_name(dtype)
    if not is_floating(dtype):
        raise DTypeError(f"normal numbers are floats, not {dtype}.")
    return dtype


def categorical(
    logits: Tensor,
    dim: str,
    temperature: Any = 1.0,
    seed: Seed = None,
    name: str = "categorical",
) -> Tensor:
    """Returns samples from softmax(logits / temperature) along `dim`.

    The result has the shape of `logits` without `dim`, and type int32.

    Args:
      logits: unnormalized log-probabilities, floats.
      dim: the name of the classes' dimension.
      temperature: a number or a tensor; at 0 the result is argmax(logits).
      seed: as in `random_uniform`.
      name: as in `random_uniform`.
    """
    logits, dim = tensor_along(logits, dim, "logits")
    if not is_scalar(temperature):
        temperature = as_tensor("temperature", temperature)
    # Gumbel-max: argmax(logits + Gumbel noise) is a sample from softmax(logits).
    noise = _draw(logits.mesh, "gumbel", logits.shape, "float32", 1.0, 0.0, seed, name)
    dtype = accumulation_dtype(logits.dtype)
    noise = cast(multiply(noise, temperature), dtype)
    return argmax(add(cast(logits, dtype), noise), dim)


def dropout(
    x: Tensor,
    rate: float,
    seed: Seed = None,
    broadcast: Names = (),
    name: str = "dropout",
) -> Tensor:
    """Returns x [...] with each element 0 with probability `rate`, else divided by 1 -
    rate.

    Args:
      x: floats.
      rate: the probability of 0, in [0, 1); at 0 the result is x itself.
      seed: as in `random_uniform`.
      broadcast: names along which all elements share one mask.
      name: as in `random_uniform`.

    Raises:
      PlanError: `rate` is not in [0, 1), there is no seed, or two ops of one name have the
        same seed.
      ShapeError: x lacks a name of `broadcast`.
    """
    x = as_tensor("x", x)
    rate = as_float("rate", rate)
    if not 0 <= rate < 1:
        raise PlanError(f"a dropout rate is at least 0 and below 1, not {rate}.")
    if rate == 0:
        return x
    require_floating(x.spec, "dropout")
    broadcast_names = names_of(broadcast, x.shape, argument="broadcast")
    require_dim(x.shape, *broadcast_names)
    mask_shape = x.shape.without(*broadcast_names)
    microbatch = microbatch_inputs(x.mesh, mask_shape)
    mask = apply(
        DropoutMask(float(rate), mask_shape, microbatch.strided),
        *seeds_of(x.mesh, seed, name),
        *microbatch.seeds,
        *microbatch.indices,
        mesh=x.mesh,
    )
    return apply(Dropout(1 / (1 - rate)), x, mask)
