"""Lookup by integer index, gather, and its transpose, segment_sum.

    emb = mtf.gather(table, ids, "vocab")        # [vocab d], [batch length] -> [batch length d]
    best = mtf.gather(x, top, "vocab")           # [batch vocab], [batch k] -> [batch k]
    sums = mtf.segment_sum(x, ids, "bins:16")    # [batch d], [batch] -> [bins d]
    y = mtf.take_along_axis(x, order, "length")  # two of [batch length] -> [batch length]

Names that table and ids share are batch dimensions. The dimension that ids index may be
sharded: each device looks up the ids that lie in its shard and gives zeros for the others,
and these partial sums are reduced. So neither the complete table nor a one-hot tensor is
ever computed. The gradient of gather is a sum by segment, and the gradient of that is a
gather. Ids out of range are errors, under every layout (`meshtf.ops.indexing.index_bounds`).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    PaddingValue,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.graph.op_kinds import EntryOp, LookupOp
from meshtf.names import Shape
from meshtf.names.arguments import as_choice, check_bools
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import conflicting_sizes
from meshtf.ops.common.checks import (
    require_dim,
    require_dim_of_caller,
    tensor_along,
)
from meshtf.ops.common.tensorflow_functions import tf_function
from meshtf.ops.elementwise.arithmetic import equal, maximum
from meshtf.ops.elementwise.computed_once import computed_once
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.index_bounds import (
    OutOfRange,
    as_index_dtype,
    check_bounds,
    check_ids,
    entry_of_shard,
    mark_out_of_range,
    reduce_segments,
    to_local_ids,
    with_infinities,
)
from meshtf.ops.shapes.reshape import arrange, rename, transpose

_SEGMENT_KERNELS = {
    "sum": tf_function("math.unsorted_segment_sum"),
    "max": tf_function("math.unsorted_segment_max"),
    "min": tf_function("math.unsorted_segment_min"),
}
# The value that changes no result, for padding.
_IDENTITIES = {"sum": 0.0, "max": -math.inf, "min": math.inf}


class Gather(LookupOp):
    """The elements of a table at ids: table [*batch, dim, *rest], ids [*batch, *lookups] ->
    [*batch, *lookups, *rest].

    Attributes:
      dim: the dimension of the table that ids index.
      out_of_range: the policy for indices outside of [0, size of `dim`): "error"; "negative":
        negative ones give zeros, others are errors; "zeros": all do; "trusted": there are none.
    """

    dim: str
    out_of_range: OutOfRange = "error"
    linearity = "first"  # if the table is a partial sum over shards, so is the output
    conformance_samples = (
        Sample(("v",), ("v:8;d:4", "int b:4")),
        Sample(("v", "negative"), ("d:3;v:8", "int b:4;c:2")),
        Sample(("v",), ("g:4;v:8;d:2", "int g:4;c:2")),
        Sample(("v", "trusted"), ("v:8", "int b:4"), below=8),
        Sample(("v", "zeros"), ("v:7;g:2", "int c:3;g:2")),
        Sample(("v",), ("int g:2;v:8", "int g:2")),
    )

    def output_specs(self, table: Spec, ids: Spec) -> Specs:
        require_dim(table.shape, self.dim)
        check_ids(ids, self.dim)
        _check_sizes(table.shape, ids.shape)
        rest_dims = table.shape.without(self.dim, *ids.shape.names)
        return (Spec(ids.shape + rest_dims, table.dtype),)

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of an input or of the output, does: shards of
        # `dim` give partial sums; with others sharded, the output is sharded too.
        return Role.SUM if factor == self.dim else Role.MAP

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        # Ids must be valid. The table's padding is read by ids that are out of range.
        return 0.0 if input_index == 1 or factor == self.dim else None

    def local(self, context: LocalContext, table: Any, ids: Any) -> LocalTensors:
        global_ids = ids
        is_sharded = context.num_shards(self.dim) > 1
        ignores_ids = self.out_of_range in ("negative", "zeros")
        gives_zeros = is_sharded or ignores_ids
        # If `context.kernels_refuse` (CPUs without XLA), TensorFlow's kernel raises for ids
        # out of range. It cannot check ids that are replaced below.
        if gives_zeros or not context.kernels_refuse:
            ids = check_bounds(context, self.dim, ids, self.out_of_range)
        if gives_zeros:
            ids, is_local = to_local_ids(context, self.dim, ids)
            # Ids outside of the shard look up element 0, which is replaced by zero.
            y = self._lookup(context, table, tf.where(is_local, ids, 0))
            _table_shape, ids_shape = context.inputs
            num_rest = len(y.shape) - len(ids_shape)
            is_local = tf.reshape(is_local, list(ids_shape.sizes) + [1] * num_rest)
            y = tf.where(is_local, y, tf.zeros([], y.dtype))
        else:
            y = self._lookup(context, table, ids)
        # XLA cannot raise errors: there the result for an id out of range is NaN.
        return (mark_out_of_range(context, self.dim, y, global_ids, self.out_of_range),)

    def _lookup(self, context: LocalContext, table: Any, ids: Any) -> Any:
        """Returns the elements of the local table at local ids, all of them in range, in
        the order of the output.
        """
        table_shape, ids_shape = context.inputs
        batch_names = [name for name in ids_shape.names if name in table_shape]
        lookup_names = [name for name in ids_shape.names if name not in table_shape]
        # `dim` may be anywhere among the rest.
        dim_and_rest = [name for name in table_shape.names if name not in ids_shape]
        axis = dim_and_rest.index(self.dim)
        y = tf.gather(
            arrange(table, table_shape.names, batch_names + dim_and_rest),
            as_index_dtype(arrange(ids, ids_shape.names, batch_names + lookup_names)),
            axis=len(batch_names) + axis,
            batch_dims=len(batch_names),
        )
        # tf.gather puts the dimensions of ids in place of the indexed one.
        dim_and_rest[axis : axis + 1] = lookup_names
        names = [*batch_names, *dim_and_rest]
        return arrange(y, names, context.outputs[0].names)

    def gradient(self, dy: Tensor, y: Tensor, table: Tensor, ids: Tensor) -> Cotangents:
        return [sum_at_ids(dy, ids, self.dim, table.shape, self.out_of_range), None]


class Segment(EntryOp):
    """The sum, maximum or minimum of x by segment: x [*batch, *reduced, *rest], ids [*batch,
    *reduced] -> [*batch, dim, *rest].

    A segment consists of the elements of x that have the same id.

    Attributes:
      kind: "sum", "max" or "min".
      dim: the new dimension, which ids index.
      output_shape: the shape of the output, [*batch, dim, *rest] in any order.
      out_of_range: the policy for indices outside of [0, size of `dim`), as in `Gather`;
        elements whose ids give zeros there are dropped.
      one_id: whether there is one id, and so one segment that is not empty.
    """

    kind: str
    dim: str
    output_shape: Shape
    out_of_range: OutOfRange = "negative"
    one_id: bool = False
    # Attributes: (kind, dim, output_shape, out_of_range). "ties" are floats, many of which are
    # equal.
    conformance_samples = (
        Sample(("sum", "v", Shape("v:8;d:4")), ("b:4;d:4", "int b:4")),
        Sample(("sum", "v", Shape("d:3;v:8")), ("d:3;b:4;c:2", "int c:2;b:4")),
        Sample(("sum", "v", Shape("g:4;v:8;d:2")), ("g:4;c:2;d:2", "int g:4;c:2")),
        Sample(("sum", "v", Shape("v:7;g:2"), "error"), ("c:3;g:2", "int c:3;g:2")),
        Sample(("sum", "v", Shape("v:8"), "zeros"), ("b:4", "int b:4")),
        Sample(("sum", "v", Shape("g:2;v:8")), ("int g:2;c:6", "int c:6;g:2")),
        Sample(("sum", "v", Shape("v:4;d:2")), ("half b:4;d:2", "int b:4"), below=4),
        Sample(
            ("sum", "v", Shape("v:4;d:8"), "trusted", True), ("d:8", "int "), below=4
        ),
        Sample(("max", "v", Shape("v:8;d:4")), ("ties b:4;d:4", "int b:4")),
        Sample(("min", "v", Shape("d:2;v:8")), ("d:2;b:4;c:2", "int c:2;b:4")),
        Sample(
            ("max", "v", Shape("g:4;v:4")), ("ties c:4;g:4", "int g:4;c:4"), below=4
        ),
        Sample(("min", "v", Shape("v:5")), ("int b:6", "int b:6"), below=5),
    )

    @property
    def display_name(self) -> str:
        return "segmentsum" if self.kind == "sum" else "segmentextreme"

    @property
    def linearity(self) -> Any:
        # If the elements of a sum are partial sums, so is the output.
        if self.kind != "sum":
            return None
        return "sparse" if self.one_id else "first"

    @property
    def entry_dim(self) -> str | None:
        return self.dim if self.one_id else None

    def output_specs(self, x: Spec, ids: Spec) -> Specs:
        _check_segments(self, x, ids)
        return (Spec(self.output_shape, x.dtype),)

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of x or of the output, does: the output is
        # sharded too, or each shard has a partial sum, maximum or minimum.
        return Role.MAP if factor in self.output_shape else Role(self.kind)

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        if input_index == 1:
            return 0.0  # ids must be valid
        return None if factor in self.output_shape else _IDENTITIES[self.kind]

    def local(self, context: LocalContext, x: Any, ids: Any) -> LocalTensors:
        y = reduce_segments(
            _SEGMENT_KERNELS[self.kind],
            context,
            dim=self.dim,
            # To float32: in bfloat16, sums of ones would stop at 256.
            x=widen(x) if self.kind == "sum" else x,
            ids=ids,
            out_of_range=self.out_of_range,
        )
        return (tf.cast(with_infinities(self.kind, y), x.dtype),)

    def entry(self, context: LocalContext, x: Any, ids: Any) -> tuple[Any, Any]:
        rest_dims = self.output_shape.without(self.dim)
        x = arrange(x, context.inputs[0].names, rest_dims.names)
        return entry_of_shard(context, self.dim, x, ids, self.out_of_range)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor, ids: Tensor) -> Cotangents:
        # An element that the sum has dropped has the gradient zero.
        drops_all = self.kind != "sum" or self.out_of_range == "zeros"
        policy: OutOfRange = "zeros" if drops_all else "negative"

        def at_elements(segments: Tensor) -> Tensor:
            """Returns the value of each element's segment, in the shape of x."""
            return transpose(apply(Gather(self.dim, policy), segments, ids), x.shape)

        if self.kind == "sum":
            return [at_elements(dy), None]
        # If several elements are the extreme of a segment, each gets an equal share of the
        # cotangent, as in TensorFlow. The extremes are taken again, as in `Reduce`.
        x = computed_once(x)
        is_extreme = equal(x, at_elements(apply(self, x, ids)))
        count_op = Segment("sum", self.dim, self.output_shape, out_of_range="zeros")
        count = apply(count_op, cast(is_extreme, x.dtype), ids)
        share = dy / maximum(count, 1.0)
        return [where(is_extreme, at_elements(share), 0.0), None]

    def flops(self, x: Spec, ids: Spec) -> int:
        return x.shape.size


def sum_at_ids(
    x: Tensor, ids: Tensor, dim: str, shape: Shape, out_of_range: OutOfRange
) -> Tensor:
    """Returns the sum of x [*ids, *rest] by segment, [dim, *rest] of this shape: see `Segment`."""
    op = Segment("sum", dim, shape, out_of_range, one_id=not ids.shape.names)
    return apply(op, x, ids)


def _check_segments(op: Segment, x: Spec, ids: Spec) -> None:
    """Checks the inputs of an op.

    Raises:
      ShapeError: `output_shape` is not [*batch, dim, *rest], in any order.
      DTypeError: ids are not integers, or x is bool.
    """
    check_ids(ids, op.dim)
    require_dim_of_caller(x.shape, *ids.shape.names)
    _check_sizes(x.shape, ids.shape)
    op_name = f"segment_{op.kind}"
    if x.dtype == "bool":
        raise DTypeError(f"{op_name} takes numbers, not bool.")
    output_dims = op.output_shape.without(op.dim)
    expected_dims = {*output_dims, *ids.shape}  # `output_dims` have those of the batch
    if op.dim in x.shape or set(x.shape) != expected_dims:
        raise ShapeError(
            f'{op_name} into {op.output_shape!r} along "{op.dim}" takes no {x.shape!r}.'
        )


def _check_sizes(shape: Shape, ids: Shape) -> None:
    """Checks that shared names have one size. Raises ShapeError."""
    for name, *_ in conflicting_sizes((shape, ids)):
        raise ShapeError(f'dimension "{name}" has two sizes: {shape!r} and {ids!r}.')


def gather(
    table: Any,
    ids: Tensor,
    dim: str,
    zero_negative: bool = False,
    out_of_range: Literal["error", "zeros"] = "error",
) -> Tensor:
    """Returns the elements of table at the indices `ids` of `dim`:
    [*ids, *(table without dim and names of ids)].

    Names that table and ids share are batch dimensions. An index that is not in [0, size
    of `dim`) raises IndexRangeError when the program runs, which names the op, the line and
    the index. XLA cannot raise errors: there the result is NaN, or the smallest integer.

    Args:
      table: a tensor or variable with `dim`, such as [vocab, d].
      ids: an integer tensor, such as [batch, length].
      dim: the name of the dimension of table that ids index.
      zero_negative: whether negative indices give zeros, instead of being errors.
      out_of_range: "zeros" gives zeros for all indices that are not in range.

    Raises:
      ShapeError: the table lacks `dim`, ids have it, or a shared name has two sizes.
      DTypeError: ids are not integers.
      PlanError: `out_of_range` is neither "error" nor "zeros".
    """
    check_bools(zero_negative=zero_negative)
    policy: OutOfRange = "negative" if zero_negative else "error"
    if as_choice("out_of_range", out_of_range, ("error", "zeros")) == "zeros":
        policy = "zeros"
    return gather_with_bounds(table, ids, dim, out_of_range=policy)


def gather_with_bounds(
    table: Any, ids: Tensor, dim: str, out_of_range: OutOfRange
) -> Tensor:
    """Returns the elements [*ids, *(table without dim)] of table at ids, as `gather` does,
    under any policy for indices out of range: see `meshtf.ops.indexing.index_bounds`.
    """
    table, dim = tensor_along(table, dim, "table")
    if table.dtype == "bool":
        # Shards give partial sums, which booleans do not have.
        y = gather_with_bounds(cast(table, "int8"), ids, dim, out_of_range)
        return cast(y, "bool")
    return apply(Gather(dim, out_of_range), table, ids)


def take_along_axis(
    x: Tensor, ids: Tensor, dim: str, out_of_range: Literal["error", "zeros"] = "error"
) -> Tensor:
    """Returns the elements of x at the indices `ids` along `dim`, as
    numpy.take_along_axis.

    `take_along_axis(x, argsort(x, "d"), "d")` is x sorted along d. The dimensions of the
    result are in the order of x, followed by those that only ids have; `dim` has the size
    that it has in ids.

    Args:
      x: a tensor [..., dim, ...].
      ids: an integer tensor [..., dim, ...].
      dim: the name of the dimension of x that ids index.
      out_of_range: as in `gather`: whether indices out of range are errors or give zeros.

    Raises:
      ShapeError: x or ids lack `dim`, or another name has two sizes.
      DTypeError: ids are not integers.
    """
    ids, dim = tensor_along(ids, dim, "ids")
    x = as_tensor("x", x)
    choice = as_choice("out_of_range", out_of_range, ("error", "zeros"))
    policy: OutOfRange = "zeros" if choice == "zeros" else "error"
    # Renamed, since ids of gather cannot have `dim`.
    return gather_along(x, dim, rename(ids, {dim: "." + dim}), dim, policy)


def gather_along(
    x: Tensor,
    dim: str,
    indices: Tensor,
    new_dim: str,
    out_of_range: OutOfRange = "trusted",
) -> Tensor:
    """Returns the elements of x at indices along `dim`, in the order of x, followed by the
    dimensions that only the indices have.

    Args:
      x: a tensor [..., dim, ...].
      dim: the name of the dimension that is indexed.
      indices: an integer tensor [..., "." + dim].
      new_dim: the name in the result in place of `dim`.
      out_of_range: the policy for indices out of range.
    """
    y = gather_with_bounds(x, indices, dim, out_of_range)
    y = rename(y, {"." + dim: new_dim})
    names = [new_dim if name == dim else name for name in x.shape.names]
    only_in_indices = [name for name in y.shape.names if name not in names]
    return transpose(y, [*names, *only_in_indices])
