"""Lookup by integer index, gather, and its transpose, segment_sum.

    emb = mtf.gather(table, ids, "vocab")        # [vocab d], [batch length] -> [batch length d]
    best = mtf.gather(x, top, "vocab")           # [batch vocab], [batch k] -> [batch k]
    sums = mtf.segment_sum(x, ids, "bins:16")    # [batch d], [batch] -> [bins d]
    y = mtf.take_along_axis(x, order, "length")  # two of [batch length] -> [batch length]

Names that table and ids share are batch dimensions. The dimension that ids index may be
sharded: each device looks up the ids that lie in its shard and gives zeros for the others,
and these partial sums are reduced. So neither the complete table nor a one-hot tensor is
ever computed. The gradient of gather is a segment_sum, and the gradient of segment_sum is a
gather. Ids out of range are errors, under every layout (`meshtf.ops.indexing.index_bounds`).
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    PaddingValue,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import (
    Names,
    Shape,
    ShapeLike,
    names_of,
)
from meshtf.names.arguments import as_choice, check_bools
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import (
    require_dim,
    require_dim_of_caller,
    single_dim,
    tensor_along,
)
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.index_bounds import (
    OutOfRange,
    as_index_dtype,
    check_bounds,
    check_ids,
    mark_out_of_range,
    reduce_segments,
    to_local_ids,
)
from meshtf.ops.shapes.reshape import arrange, rename, transpose


class Gather(Op):
    """The elements of a table at ids: table [*batch, dim, *rest], ids [*batch, *lookups] ->
    [*batch, *lookups, *rest].

    Attributes:
      dim: the dimension of the table that ids index.
      out_of_range: the policy for indices outside of [0, size of `dim`): "error";
        "negative": negative ones give zeros, others are errors; "zeros": all give zeros;
        "trusted": there are none.
    """

    dim: str
    out_of_range: OutOfRange = "error"
    linearity = "each"  # if the table is a partial sum over shards, so is the output
    # Test inputs: the attributes (dim, out_of_range), then each input's kind of values and
    # shape. Integers are less than `below`.
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
        rest_before = dim_and_rest[:axis]
        rest_after = dim_and_rest[axis + 1 :]
        names = [*batch_names, *rest_before, *lookup_names, *rest_after]
        return arrange(y, names, context.outputs[0].names)

    def gradient(self, dy: Tensor, y: Tensor, table: Tensor, ids: Tensor) -> Cotangents:
        scatter_sum = SegmentSum(self.dim, table.shape, self.out_of_range)
        return [apply(scatter_sum, dy, ids), None]


class SegmentSum(Op):
    """The sums of x by segment: x [*batch, *reduced, *rest], ids [*batch, *reduced] ->
    [*batch, dim, *rest].

    A segment consists of the elements of x that have the same id.

    Attributes:
      dim: the new dimension, which ids index.
      output_shape: the shape of the output, [*batch, dim, *rest] in any order.
      out_of_range: the policy for indices outside of [0, size of `dim`), as in `Gather`;
        elements whose ids give zeros there are dropped.
    """

    dim: str
    output_shape: Shape
    out_of_range: OutOfRange = "negative"
    linearity = "each"  # if one input is a partial sum, so is the output
    # Attributes: (dim, output_shape, out_of_range).
    conformance_samples = (
        Sample(("v", Shape("v:8;d:4")), ("b:4;d:4", "int b:4")),
        Sample(("v", Shape("d:3;v:8")), ("d:3;b:4;c:2", "int c:2;b:4")),
        Sample(("v", Shape("g:4;v:8;d:2")), ("g:4;c:2;d:2", "int g:4;c:2")),
        Sample(("v", Shape("v:7;g:2"), "error"), ("c:3;g:2", "int c:3;g:2")),
        Sample(("v", Shape("v:8"), "zeros"), ("b:4", "int b:4")),
        Sample(("v", Shape("g:2;v:8")), ("int g:2;c:6", "int c:6;g:2")),
        Sample(("v", Shape("v:4;d:2")), ("half b:4;d:2", "int b:4"), below=4),
    )

    def output_specs(self, x: Spec, ids: Spec) -> Specs:
        check_segments("segment_sum", self.dim, self.output_shape, x=x, ids=ids)
        return (Spec(self.output_shape, x.dtype),)

    def role(self, factor: str) -> Role:
        return Role.MAP if factor in self.output_shape else Role.SUM

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        # Ids must be valid. Elements of x that would be added to a segment must be 0.
        return 0.0 if input_index == 1 or self.role(factor) is Role.SUM else None

    def local(self, context: LocalContext, x: Any, ids: Any) -> LocalTensors:
        sums = reduce_segments(
            tf.math.unsorted_segment_sum,
            context,
            dim=self.dim,
            x=widen(x),  # to float32: in bfloat16, sums of ones would stop at 256
            ids=ids,
            out_of_range=self.out_of_range,
        )
        return (tf.cast(sums, x.dtype),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor, ids: Tensor) -> Cotangents:
        # An element that the sum has dropped has the gradient zero.
        policy: OutOfRange = "zeros" if self.out_of_range == "zeros" else "negative"
        dx = apply(Gather(self.dim, policy), dy, ids)
        return [transpose(dx, x.shape), None]

    def flops(self, x: Spec, ids: Spec) -> int:
        return x.shape.size


def check_segments(
    op_name: str, dim: str, output_shape: Shape, x: Spec, ids: Spec
) -> None:
    """Checks the inputs of a segment op.

    Args:
      op_name: the name of the op, for errors.
      dim: the dimension that ids index.
      output_shape: the shape of the output.
      x: the spec of the values, [*batch, *reduced, *rest].
      ids: the spec of the segment ids, [*batch, *reduced].

    Raises:
      ShapeError: `output_shape` is not [*batch, dim, *rest], in any order.
      DTypeError: ids are not integers, or x is bool.
    """
    check_ids(ids, dim)
    require_dim_of_caller(x.shape, *ids.shape.names)
    _check_sizes(x.shape, ids.shape)
    if x.dtype == "bool":
        raise DTypeError(f"{op_name} takes numbers, not bool.")
    output_dims = output_shape.without(dim)
    lost_dims = [
        x_dim
        for x_dim in x.shape
        if x_dim.name not in ids.shape and x_dim.name not in output_dims
    ]
    if dim in x.shape or lost_dims or not set(output_dims) <= set(x.shape):
        raise ShapeError(
            f'{op_name} into {output_shape!r} along "{dim}" takes no {x.shape!r}.'
        )


def segment_dim_and_output_shape(
    x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names
) -> tuple[str, Shape]:
    """Returns the attributes `dim` and `output_shape` of a segment op.

    Args:
      x: the values, [*batch, *reduced, *rest].
      ids: the segment ids, [*batch, *reduced].
      dim: the new dimension, such as "bins:16".
      batch: the names of ids that are not reduced.

    Returns:
      The name of the new dimension, and the shape of the output, [*batch, dim, *rest].
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    segment_dim = single_dim(dim)
    batch_names = names_of(batch, ids.shape, x.shape, argument="batch")
    require_dim_of_caller(ids.shape, *batch_names)
    batch_dims = [ids.shape.dim(name) for name in batch_names]
    rest_dims = x.shape.without(*ids.shape.names)
    return segment_dim.name, Shape([*batch_dims, segment_dim, *rest_dims])


def _check_sizes(shape: Shape, ids: Shape) -> None:
    """Checks that shared names have one size. Raises ShapeError."""
    for dim in ids:
        if shape.get(dim.name, dim.size) != dim.size:
            raise ShapeError(
                f'dimension "{dim.name}" has two sizes: {shape!r} and {ids!r}.'
            )


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
    the index. XLA cannot raise errors: there the result for such an
    index is NaN, or the smallest integer.

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
    index_dim = "." + dim  # renamed, since ids of gather cannot have `dim`
    y = gather(x, rename(ids, {dim: index_dim}), dim, out_of_range=out_of_range)
    y = rename(y, {index_dim: dim})
    only_in_ids = [name for name in ids.shape.names if name not in x.shape]
    return transpose(y, [*x.shape.names, *only_in_ids])


def segment_sum(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns sums of x by segment, [*batch, dim, *(x without names of ids)]: element i of
    the new `dim` is the sum of x where ids are i.

    Negative ids are ignored. An id that is too large is an error, as in `gather`; under
    XLA it is ignored.

    Args:
      x: the values, a tensor with all names of ids.
      ids: the segment of each value, an integer tensor.
      dim: the new dimension, such as "bins:16".
      batch: the names of ids that are not summed over.

    Raises:
      ShapeError: x lacks a name of ids, or has `dim`.
      DTypeError: ids are not integers, or x is bool.
    """
    dim_name, output_shape = segment_dim_and_output_shape(x, ids, dim=dim, batch=batch)
    return apply(SegmentSum(dim_name, output_shape), x, ids)
