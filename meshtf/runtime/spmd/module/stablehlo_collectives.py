"""Collectives as StableHLO.

TensorFlow has ops only for some of XLA's collectives, and only for some data types. So each
collective is a small StableHLO module, which is embedded in the TensorFlow function:

    all_reduce(x, ((0, 1), (2, 3)), "sum")       # two groups of two replicas

A replica is the device at one position of the mesh. The functions take this replica's tensor x,
and the groups of replicas that exchange tensors. The replicas of a group are in the order of
their shards.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.ordered_integers import from_ordered_integers, ordered_integers
from meshtf.runtime.tf_internals.xla_ops import (
    call_stablehlo,
    optimization_barrier,
    tensor_type,
)

Groups = Sequence[Sequence[int]]
# XLA compiles one program of many partitions: our replicas. It reads the numbers in groups as
# partition ids only if the op has a channel and, for the ops below, global ids.
_CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>"
_WITH_GLOBAL_IDS = ("all_reduce", "all_gather", "reduce_scatter")
_leaves_out: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "leaves_out", default=False
)
# The StableHLO ops of reductions, by kind.
_COMBINE = {"sum": "add", "max": "maximum", "min": "minimum"}
_COMBINE_BOOL = {"max": "or", "min": "and"}


@contextlib.contextmanager
def without_communication() -> Iterator[None]:
    """Within this context, the functions below send nothing: results have the right shapes, but
    consist of this replica's values. What a device computes can be timed so.
    """
    token = _leaves_out.set(True)
    try:
        yield
    finally:
        _leaves_out.reset(token)


def all_reduce(x: Any, groups: Groups, kind: str) -> Any:
    """Returns the reduction ("sum", "max" or "min") of x over the replicas of a group."""
    terms = x if kind == "sum" else _ordered(x, kind)
    y = _call(
        terms,
        "all_reduce",
        shape=x.shape,
        attributes=f"replica_groups = {_table(groups)}",
        region=_region(terms, kind),
    )
    return y if kind == "sum" else _from_ordered(y, x.dtype)


def reduce_scatter(
    x: Any,
    groups: Groups,
    kind: str,
    axis: int,
) -> Any:
    """Returns the j-th shard along `axis` of the reduced tensor, on replica j of each
    group.
    """
    terms = x if kind == "sum" else _ordered(x, kind)
    y = _call(
        terms,
        "reduce_scatter",
        shape=_scaled_shape(x, axis, factor=1 / len(groups[0])),
        attributes=(
            f"scatter_dimension = {axis} : i64, replica_groups = {_table(groups)}"
        ),
        region=_region(terms, kind),
    )
    return y if kind == "sum" else _from_ordered(y, x.dtype)


def all_gather(x: Any, groups: Groups, axis: int) -> Any:
    """Returns the tensors of a group, concatenated along `axis`."""
    return _call(
        x,
        "all_gather",
        shape=_scaled_shape(x, axis, factor=len(groups[0])),
        attributes=f"all_gather_dim = {axis} : i64, replica_groups = {_table(groups)}",
    )


def all_to_all(
    x: Any,
    groups: Groups,
    split_axis: int,
    concat_axis: int,
) -> Any:
    """Returns, on replica j of each group, the j-th shards along `split_axis` of the
    tensors of the group, concatenated along `concat_axis`.
    """
    group_size = len(groups[0])
    shape = _scaled_shape(x, split_axis, factor=1 / group_size)
    shape[concat_axis] *= group_size
    return _call(
        x,
        "all_to_all",
        shape=shape,
        attributes=(
            f"split_dimension = {split_axis} : i64, "
            f"concat_dimension = {concat_axis} : i64, "
            f"split_count = {group_size} : i64, replica_groups = {_table(groups)}"
        ),
    )


def permute(x: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Returns, on each target replica, the tensor of its source; zeros on all other replicas.

    Args:
      x: this replica's tensor.
      pairs: pairs of replicas (source, target).
    """
    return _call(
        x,
        "collective_permute",
        shape=x.shape,
        attributes=f"source_target_pairs = {_table(pairs)}",
    )


def stack(x: Any, groups: Groups) -> Any:
    """Returns the tensors of a group, stacked along a new first axis."""
    return all_gather(tf.expand_dims(x, axis=0), groups, axis=0)


def _call(
    x: Any,
    op: str,
    shape: Any,
    attributes: str,
    region: str = "",
) -> Any:
    """Returns the output of a StableHLO op.

    Args:
      x: the input, a TensorFlow tensor.
      op: the name of the op.
      shape: the sizes of the output; its data type is that of x.
      attributes: the attributes of the op, in MLIR's syntax.
      region: for a reduction, the region that combines two elements.
    """
    sizes = [int(size) for size in shape]
    if 0 in sizes:  # an empty batch; StableHLO refuses some of these
        return tf.zeros(sizes, x.dtype)
    if _leaves_out.get():
        return _local_result(x, sizes)
    attributes = f"{attributes}, {_CHANNEL}"
    if op in _WITH_GLOBAL_IDS:
        attributes = f"{attributes}, use_global_device_ids"
    x_type = tensor_type(x, x.shape)
    y_type = tensor_type(x, sizes)
    module = f"""module {{
  func.func @main(%x: {x_type}) -> {y_type} {{
    %y = "stablehlo.{op}"(%x) <{{{attributes}}}> {region} : ({x_type}) -> {y_type}
    return %y : {y_type}
  }}
}}"""
    (y,) = call_stablehlo([x], module, [(sizes, x.dtype)])
    return y


def _ordered(x: Any, kind: str) -> Any:
    """Returns integers in the order of the floats x, where NaN is the largest for the kind
    "max" and the smallest for "min"; other tensors as they are.

    The collectives of XLA for CPUs, and of NCCL, leave NaN out of a maximum: a device would
    have the maximum of the other shards, or -inf.
    """
    if not x.dtype.is_floating:
        return x
    return ordered_integers(x, nan_is_smallest=kind == "min")


def _from_ordered(y: Any, dtype: tf.DType) -> Any:
    """Returns the tensor of a data type that `_ordered` gave the integers of."""
    return from_ordered_integers(y, dtype) if dtype.is_floating else y


def _local_result(x: Any, sizes: Sequence[int]) -> Any:
    """Returns elements of x, repeated where x has too few of them.

    Args:
      x: the input of a collective.
      sizes: the sizes of its output.
    """
    (y,) = optimization_barrier([x])
    for axis, size in enumerate(sizes):
        if size < y.shape[axis]:
            y = tf.split(y, y.shape[axis] // size, axis)[0]
        elif size > y.shape[axis]:
            y = tf.concat([y] * (size // y.shape[axis]), axis)
    return optimization_barrier([y])[0]


def _region(x: Any, kind: str) -> str:
    """Returns the MLIR region of a reduction, which combines two elements of x."""
    element = tensor_type(x, ())
    combine_ops = _COMBINE_BOOL if x.dtype == tf.bool else _COMBINE
    combine = combine_ops[kind]
    return f"""({{
    ^bb0(%a: {element}, %b: {element}):
      %c = stablehlo.{combine} %a, %b : {element}
      stablehlo.return %c : {element}
    }})"""


def _table(rows: Sequence[Sequence[int]]) -> str:
    """Returns a table of integers as an MLIR constant."""
    num_columns = len(rows[0])
    row_texts = []
    for row in rows:
        entries = ", ".join(map(str, row))
        row_texts.append(f"[{entries}]")
    table = ", ".join(row_texts)
    return f"dense<[{table}]> : tensor<{len(rows)}x{num_columns}xi64>"


def _scaled_shape(x: Any, axis: int, factor: float) -> list[int]:
    """Returns the shape of x with the size of one axis multiplied by a factor."""
    sizes = list(map(int, x.shape))
    sizes[axis] = round(sizes[axis] * factor)
    return sizes
