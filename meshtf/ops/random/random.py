"""Random numbers that do not depend on the layout: a hash of (key, global index).

    with mtf.seed(run_seed, step):                  # ints, or scalar int32 tensors
      x = mtf.dropout(x, 0.1)                       # key: run_seed, step and "encoder/dropout"

Any slice of any dimension, on any device, eager, recorded, recomputed or compiled,
finds the same bits (see `bits`). The key is an input, so a new step is no new trace.
Numbers depend on the order of a tensor's dimensions, and not on their names or sizes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import DTypeError, PlanError
from meshtf.graph import LocalContext, Op, Sample, Spec, Tensor, apply
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
    index_words,
    mix_high,
    of_elements,
    random_key,
)
from meshtf.ops.random.distributions import DISTRIBUTIONS


class Random(Op):
    """standard numbers of a kind * scale + shift; inputs: the seeds.

    Kinds: uniform in [0, 1), integers in [0, scale), normal, truncated (normal, within
    two standard deviations), gumbel.
    """

    kind: str
    shape: Shape
    dtype: str
    scale: float = 1.0
    shift: float = 0.0
    places: tuple[
        Strided, ...
    ] = ()  # in a batch; the last inputs are microbatches' numbers

    share_trace = True
    samples = (
        Sample(("uniform", Shape("b:4;d:8"), "float32"), ("int",), gradient=False),
        Sample(
            ("uniform", Shape("b:3;c:5"), "float32", 2.0, -1.0),
            ("int", "int"),
            gradient=False,
        ),
        Sample(("uniform", Shape("d:8"), "bfloat16"), ("int",), gradient=False),
        Sample(("uniform", Shape(""), "float64"), ("int",), gradient=False),
        Sample(
            ("integers", Shape("b:4;c:2;d:6"), "int32", 10, -3),
            ("int",),
            gradient=False,
        ),
        Sample(("normal", Shape("d:6;b:4"), "float32"), ("int",), gradient=False),
        Sample(
            ("normal", Shape("c:3;b:4;d:5"), "float32", 0.1, 1.0),
            ("int",),
            gradient=False,
        ),
        Sample(("truncated", Shape("b:4;d:6"), "float32"), ("int",), gradient=False),
        Sample(("gumbel", Shape("b:3;d:8"), "float32"), ("int",), gradient=False),
        Sample(
            ("uniform", Shape("b:4;d:6"), "float32", 1.0, 0.0, (Strided("b", 3, 1),)),
            ("int", "int"),
            gradient=False,
        ),
        Sample(
            (
                "uniform",
                Shape("t:8;b:4"),
                "float32",
                1.0,
                0.0,
                (Strided("t", 3, 2), Strided("b", 2, 1)),
            ),
            ("int", "int", "int"),
            gradient=False,
        ),
    )

    def output_specs(self, *seeds: Spec) -> tuple[Spec, ...]:
        return (Spec(self.shape, self.dtype),)

    def local(self, context: LocalContext, *seeds: Any) -> tuple[Any, ...]:
        y = of_elements(
            DISTRIBUTIONS[self.kind](self.dtype, self.scale, self.shift),
            _words(context, self.shape, self.places, seeds),
            context.outputs[0].sizes,
        )
        return (tf.cast(y, self.dtype),)

    def gradient(self, dy: Any, y: Any, *seeds: Any) -> list[Any]:
        return [None] * len(seeds)

    def flops(self, *seeds: Spec) -> int:
        return 12 * self.shape.size


def _words(
    context: LocalContext,
    shape: Shape,
    places: Sequence[Strided],
    inputs: Sequence[Any],
) -> Any:
    number = len(inputs) - len(places)
    given = {
        p.dim: (p.num_microbatches, p.inner_size, first)
        for p, first in zip(places, inputs[number:])
    }
    return index_words(context, shape.names, random_key(inputs[:number]), given)


class DropoutMask(Op):
    """True with the probability 1 - rate; inputs: the seeds."""

    rate: float
    shape: Shape
    places: tuple[
        Strided, ...
    ] = ()  # in a batch; the last inputs are microbatches' numbers

    share_trace = True
    samples = (
        Sample((0.4, Shape("b:4;d:6")), ("int",), gradient=False),
        Sample((0.5, Shape("d:5;b:3")), ("int", "int"), gradient=False),
        Sample((0.1, Shape("b:8;c:2;d:3")), ("int",), gradient=False),
        Sample(
            (0.4, Shape("b:4;d:6"), (Strided("b", 2, 1),)),
            ("int", "int"),
            gradient=False,
        ),
        Sample(
            (0.4, Shape("d:3;t:8"), (Strided("t", 2, 4),)),
            ("int", "int"),
            gradient=False,
        ),
    )

    def output_specs(self, *seeds: Spec) -> tuple[Spec, ...]:
        return (Spec(self.shape, "bool"),)

    def local(self, context: LocalContext, *seeds: Any) -> tuple[Any, ...]:
        dropped = np.uint32(min(round(self.rate * 2**32), 2**32 - 1))
        kept = of_elements(
            lambda a, b: mix_high(a, b) >= dropped,
            _words(context, self.shape, self.places, seeds),
            context.outputs[0].sizes,
        )
        return (kept,)

    def gradient(self, dy: Any, y: Any, *seeds: Any) -> list[Any]:
        return [None] * len(seeds)

    def flops(self, *seeds: Spec) -> int:
        return 12 * self.shape.size


@dataclasses.dataclass(frozen=True)
class Dropout(Op):
    """x * scale where the mask is true, else 0; the mask may lack names of x."""

    scale: float

    linearity = "each"
    samples = (
        Sample((2.0,), ("b:4;d:6", "bool b:4;d:6")),
        Sample((1.5,), ("d:5;b:3", "bool b:3")),
        Sample((2.0,), ("b:4;c:2;d:6", "bool c:2;d:6")),
    )

    def output_specs(self, x: Spec, mask: Spec) -> tuple[Spec, ...]:
        return (x,)

    def local(self, context: LocalContext, x: Any, mask: Any) -> tuple[Any, ...]:
        kept = align(mask, context.inputs[1], context.inputs[0])
        return (
            tf.where(kept, x * tf.constant(self.scale, x.dtype), tf.zeros([], x.dtype)),
        )

    def gradient(self, dy: Any, y: Any, x: Any, mask: Any) -> list[Any]:
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
    as_text("name", name)
    places = microbatch_inputs(mesh, Shape(shape))
    return apply(
        Random(kind, Shape(shape), dtype, scale, shift, places.strided),
        *seeds_of(mesh, seed, name),
        *places.seeds,
        *places.numbers,
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
    """Returns numbers from [minval, maxval), floats or integers.

    Args:
      mesh: where they are made.
      shape: the named shape.
      minval: the smallest.
      maxval: above all others; for integers at most minval + 2**32.
      dtype: any type of floats or integers.
      seed: int or scalar int32 tensor, or several; default: those of
        `with mtf.seed(...)`.
      name: tells two random ops of one module apart.

    Raises:
      PlanError: no seed, or two ops of one name under one seed.
      DTypeError: bool or complex numbers, or an empty range of integers.
    """
    minval, maxval = as_float("minval", minval), as_float("maxval", maxval)
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
        raise DTypeError(f"random_uniform makes floats or integers, not {dtype}.")
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
    """Returns normal numbers; arguments and errors as in `random_uniform`."""
    mean, stddev = as_float("mean", mean), as_float("stddev", stddev)
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
    """Returns normal numbers within two standard deviations; otherwise as
    `random_normal`.
    """
    mean, stddev = as_float("mean", mean), as_float("stddev", stddev)
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
    """Returns draws from softmax(logits / temperature) along `dim`: int32 without
    `dim`.

    Args:
      logits: floats.
      dim: the name of the classes.
      temperature: a number or a tensor; at 0 the result is argmax(logits).
      seed: as in `random_uniform`.
      name: as in `random_uniform`.
    """
    logits, dim = tensor_along(logits, dim, "logits")
    if not is_scalar(temperature):
        temperature = as_tensor("temperature", temperature)
    noise = _draw(logits.mesh, "gumbel", logits.shape, "float32", 1.0, 0.0, seed, name)
    noise = cast(multiply(noise, temperature), accumulation_dtype(logits.dtype))
    return argmax(add(cast(logits, accumulation_dtype(logits.dtype)), noise), dim)


def dropout(
    x: Tensor,
    rate: float,
    seed: Seed = None,
    broadcast: Names = (),
    name: str = "dropout",
) -> Tensor:
    """Returns x with a share `rate` of its elements 0 and the others divided by 1 -
    rate.

    Args:
      x: floats.
      rate: the probability of 0, in [0, 1); x itself at 0.
      seed: as in `random_uniform`.
      broadcast: names along which all elements share one mask.
      name: as in `random_uniform`.

    Raises:
      PlanError: a rate that is none, no seed, or two ops of one name under one seed.
      ShapeError: x lacks a name of `broadcast`.
    """
    x = as_tensor("x", x)
    rate = as_float("rate", rate)
    if not 0 <= rate < 1:
        raise PlanError(f"a dropout rate is at least 0 and below 1, not {rate}.")
    if rate == 0:
        return x
    require_floating(x.spec, "dropout")
    require_dim(x.shape, *names_of(broadcast, x.shape, argument="broadcast"))
    shape = x.shape.without(*names_of(broadcast, x.shape))
    places = microbatch_inputs(x.mesh, shape)
    mask = apply(
        DropoutMask(float(rate), shape, places.strided),
        *seeds_of(x.mesh, seed, name),
        *places.seeds,
        *places.numbers,
        mesh=x.mesh,
    )
    return apply(Dropout(1 / (1 - rate)), x, mask)
