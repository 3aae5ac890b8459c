"""Random numbers that do not depend on the layout: hashes of (key, global index).

    with mtf.seed(run_seed, step):                  # ints, or scalar int32 tensors
      x = mtf.dropout(x, 0.1)                       # key: run_seed, step and "encoder/dropout"

The key is computed from the seeds and from the path of the op: the names of the modules that
it is in, and its own name. An element gets the same bits under any layout, on any device, in
eager mode, in a trace, when it is recomputed and when XLA compiles it (see `counter_bits`). The
seeds are inputs of the op, so a new step needs no new trace. The numbers depend on the order
of a tensor's dimensions, but not on their names or sizes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from meshtf.errors import DTypeError, PlanError
from meshtf.graph import Op, Tensor, apply
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
from meshtf.ops.common.broadcasting import check_scalar, is_scalar
from meshtf.ops.common.checks import (
    require_dim_of_caller,
    require_floating,
    tensor_along,
)
from meshtf.ops.control.microbatch import microbatch_inputs
from meshtf.ops.control.seeds import Seed, seeds_of
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.top_k import argmax
from meshtf.ops.random.random_indices import drawn_indices
from meshtf.ops.random.random_ops import Dropout, Random


def _draw(
    kind: str,
    mesh: Mesh | None,
    shape: ShapeLike,
    scale: float,
    shift: float,
    dtype: Any,
    seed: Seed,
    name: str,
) -> Tensor:
    """Returns random numbers of the op `Random`, for the seeds of this program.

    Args:
      kind: the distribution: "uniform", "integers", "normal", "truncated" or "gumbel".
      mesh: the mesh of the result.
      shape: the named shape of the result.
      scale: the factor of the standard numbers; for "integers" their count.
      shift: the number that is added to them.
      dtype: the data type of the result.
      seed: the seed or seeds; None: those of `with mtf.seed(...)`.
      name: the name that distinguishes random ops of one module.
    """
    shape = Shape(shape)

    def op(**indices: Any) -> Op:
        return Random(kind, shape, dtype, scale=scale, shift=shift, **indices)

    return _apply(op, mesh, shape, seed, as_text("name", name))


def _apply(
    op: Callable[..., Op], mesh: Mesh | None, shape: Shape, seed: Seed, name: str
) -> Tensor:
    """Returns the result of a random op.

    Args:
      op: a function of the op's attributes `strided` and `indexed`.
      mesh: the mesh of the result.
      shape: the shape of the result.
      seed: as in `_draw`.
      name: as in `_draw`.
    """
    # Parts of a tensor get the numbers that they would get in the entire tensor, and in a
    # microbatch, examples those that they would get in the entire batch.
    indices = drawn_indices(mesh, shape)
    plain = shape.without(*(n for x in indices.values() for n in x.shape.names))
    microbatch = microbatch_inputs(mesh, plain)
    return apply(
        op(strided=microbatch.strided, indexed=tuple(indices)),
        *seeds_of(mesh, seed, name),
        *microbatch.seeds,
        *microbatch.indices,
        *indices.values(),
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
    """Returns uniformly distributed floats or integers in [minval, maxval), [*shape].

    Args:
      mesh: the mesh of the result.
      shape: the named shape, such as "batch:8;d_model:4".
      minval: the lower bound, included.
      maxval: the upper bound, excluded; for integers at most minval + 2**32.
      dtype: the data type of the result, floating or integer.
      seed: an int or a scalar int32 tensor, or several; None: the seeds of
        `with mtf.seed(...)`.
      name: the name that distinguishes random ops of one module.

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
        kind = "integers"
    elif is_floating(dtype):
        kind = "uniform"
    else:
        raise DTypeError(f"random_uniform returns floats or integers, not {dtype}.")
    return _draw(kind, mesh, shape, maxval - minval, minval, dtype, seed, name)


def random_normal(
    mesh: Mesh | None,
    shape: ShapeLike,
    mean: float = 0.0,
    stddev: float = 1.0,
    dtype: Any = "float32",
    seed: Seed = None,
    name: str = "random_normal",
) -> Tensor:
    """Returns normally distributed numbers, [*shape].

    Args:
      mesh: the mesh of the result.
      shape: the named shape, such as "batch:8;d_model:4".
      mean: the mean of the distribution.
      stddev: the standard deviation of the distribution.
      dtype: the data type of the result, floating.
      seed: as in `random_uniform`.
      name: as in `random_uniform`.

    Raises:
      PlanError: there is no seed, or two ops of one name have the same seed.
      DTypeError: `dtype` is not floating.
    """
    return _draw_normal("normal", mesh, shape, mean, stddev, dtype, seed, name)


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
    return _draw_normal("truncated", mesh, shape, mean, stddev, dtype, seed, name)


def _draw_normal(
    kind: str,
    mesh: Mesh | None,
    shape: ShapeLike,
    mean: float,
    stddev: float,
    dtype: Any,
    seed: Seed,
    name: str,
) -> Tensor:
    """Returns numbers of the kind "normal" or "truncated", for the arguments of
    `random_normal`.
    """
    mean = as_float("mean", mean)
    stddev = as_float("stddev", stddev)
    dtype = dtype_name(dtype)
    if not is_floating(dtype):
        raise DTypeError(f"normal numbers are floats, not {dtype}.")
    return _draw(kind, mesh, shape, stddev, mean, dtype, seed, name)


def categorical(
    logits: Tensor,
    dim: str,
    temperature: Any = 1.0,
    seed: Seed = None,
    name: str = "categorical",
) -> Tensor:
    """Returns indices of `dim`, sampled with the probabilities softmax(logits /
    temperature): logits [..., dim, ...] -> int32 [...].

    Args:
      logits: unnormalized log-probabilities, floats.
      dim: the name of the dimension of classes.
      temperature: a number or a tensor by which logits are divided; at 0 the result is
        argmax(logits).
      seed: as in `random_uniform`.
      name: as in `random_uniform`.
    """
    logits, dim = tensor_along(logits, dim, "logits")
    if not is_scalar(temperature):
        temperature = as_tensor("temperature", temperature)
    # Gumbel-max: argmax(logits + Gumbel noise) is a sample from softmax(logits). The noise
    # is multiplied by the temperature, so that 0 is allowed.
    noise = _draw("gumbel", logits.mesh, logits.shape, 1.0, 0.0, "float32", seed, name)
    dtype = accumulation_dtype(logits.dtype)
    noise = cast(noise * temperature, dtype)
    return argmax(cast(logits, dtype) + noise, dim)


def dropout(
    x: Tensor,
    rate: float,
    seed: Seed = None,
    broadcast: Names = (),
    name: str = "dropout",
) -> Tensor:
    """Returns x [...] in which each element is 0 with probability `rate`, and otherwise
    divided by 1 - rate.

    Args:
      x: a tensor of floats.
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
    require_dim_of_caller(x.shape, *broadcast_names)
    mask_shape = x.shape.without(*broadcast_names)
    mask_op = functools.partial(Random, "mask", mask_shape, "bool", float(rate))
    mask = _apply(mask_op, x.mesh, mask_shape, seed, name)
    return apply(Dropout(scale=1 / (1 - rate)), x, mask)
