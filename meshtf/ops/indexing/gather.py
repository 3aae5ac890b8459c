"""Lookup by integer index: gather, its transpose segment_sum, one_hot, and the indices of a
dimension, range.

    emb = mtf.gather(table, ids, "vocab")        # [vocab d], [batch length] -> [batch length d]
    best = mtf.gather(x, top, "vocab")           # [batch vocab], [batch k] -> [batch k]
    sums = mtf.segment_sum(x, ids, "bins:16")    # [batch d], [batch] -> [bins d]
    y = mtf.take_along_axis(x, order, "length")       # [batch length], twice -> [batch length]

Names that table and ids share are batch dimensions. The dimension that is looked up may
be sharded: each device looks up the ids of its shard and gives zeros for the rest, so
neither the complete table nor a one-hot tensor is ever computed. The gradient of gather
is segment_sum, and the other way round. Ids out of range are refused, under every layout
(`meshtf.ops.indexing.index_bounds`); one_hot, like TensorFlow's, gives zeros for them.
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.mesh import Mesh
from meshtf.names import (
    Dimension,
    Names,
    Shape,
    ShapeLike,
    dtype_name,
    is_integer,
    names_of,
)
from meshtf.names.arguments import as_choice, check_bools
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import require_dim, single_dim, tensor_along
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.indexing.index_bounds import (
    OutOfRange,
    as_index_dtype,
    check_bounds,
    mark_out_of_range,
    reduce_segments,
    to_local_ids,
)
from meshtf.ops.shapes.reshape import arrange, rename, transpose


class Gather(Op):
    """table [*batch, dim, *rest], ids [*batch, *lookups] -> [*batch, *lookups, *rest]."""

    dim: str
    out_of_range: OutOfRange = "error"
    linearity = "each"  # of the table; ids cannot be partial sums
    samples = (
        Sample(("v",), ("v:8;d:4", "int b:4")),
        Sample(("v", "negative"), ("d:3;v:8", "int b:4;c:2")),
        Sample(("v",), ("g:4;v:8;d:2", "int g:4;c:2")),
        Sample(("v", "trusted"), ("v:8", "int b:4"), 8),
        Sample(("v", "zeros"), ("v:7;g:2", "int c:3;g:2")),
        Sample(("v",), ("int g:2;v:8", "int g:2")),
    )

    def output_specs(self, table: Spec, ids: Spec) -> Specs:
        require_dim(table.shape, self.dim)
        _check_ids(ids, self.dim)
        _check_sizes(table.shape, ids.shape)
        rest = table.shape.without(self.dim, *ids.shape.names)
        return (Spec(ids.shape + rest, table.dtype),)

    def role(self, factor: str) -> Role:
        return Role.SUM if factor == self.dim else Role.MAP

    def local(self, context: LocalContext, table: Any, ids: Any) -> LocalTensors:
        global_ids = ids
        is_local = None
        is_sharded = context.num_shards(self.dim) > 1
        all_valid = self.out_of_range in ("error", "trusted")
        if is_sharded or not all_valid or not context.kernels_refuse:
            ids = check_bounds(context, self.dim, ids, self.out_of_range)
        if is_sharded or not all_valid:
            ids, is_local = to_local_ids(context, self.dim, ids)
            ids = tf.where(is_local, ids, 0)
        y = self._lookup(context, table, ids)
        if is_local is not None:
            ids_sizes = context.inputs[1].sizes
            num_rest = len(y.shape) - len(ids_sizes)
            is_local = tf.reshape(is_local, [*ids_sizes, *[1] * num_rest])
            y = tf.where(is_local, y, tf.zeros([], y.dtype))
        return (mark_out_of_range(context, self.dim, y, global_ids, self.out_of_range),)

    def _lookup(self, context: LocalContext, table: Any, ids: Any) -> Any:
        """Returns table at ids in range, with the dimensions of the output."""
        table_shape, ids_shape = context.inputs
        batch = [n for n in ids_shape.names if n in table_shape]
        lookups = [n for n in ids_shape.names if n not in table_shape]
        rest = [n for n in table_shape.names if n not in ids_shape]
        axis = rest.index(self.dim)
        y = tf.gather(
            arrange(table, table_shape.names, batch + rest),
            as_index_dtype(arrange(ids, ids_shape.names, batch + lookups)),
            axis=len(batch) + axis,
            batch_dims=len(batch),
        )
        names = [*batch, *rest[:axis], *lookups, *rest[axis + 1 :]]
        return arrange(y, names, context.outputs[0].names)

    def gradient(self, dy: Tensor, y: Tensor, table: Tensor, ids: Tensor) -> Cotangents:
        scatter_sum = SegmentSum(self.dim, table.shape, self.out_of_range)
        return [apply(scatter_sum, dy, ids), None]


class SegmentSum(Op):
    """Sums by segment: x [*batch, *reduced, *rest], ids [*batch, *reduced] -> like
    [*batch, dim, *rest].
    """

    dim: str
    like: Shape
    out_of_range: OutOfRange = "negative"
    linearity = "each"
    samples = (
        Sample(("v", Shape("v:8;d:4")), ("b:4;d:4", "int b:4")),
        Sample(("v", Shape("d:3;v:8")), ("d:3;b:4;c:2", "int c:2;b:4")),
        Sample(("v", Shape("g:4;v:8;d:2")), ("g:4;c:2;d:2", "int g:4;c:2")),
        Sample(("v", Shape("v:7;g:2"), "error"), ("c:3;g:2", "int c:3;g:2")),
        Sample(("v", Shape("v:8"), "zeros"), ("b:4", "int b:4")),
        Sample(("v", Shape("g:2;v:8")), ("int g:2;c:6", "int c:6;g:2")),
        Sample(("v", Shape("v:4;d:2")), ("half b:4;d:2", "int b:4"), below=4),
    )

    def output_specs(self, x: Spec, ids: Spec) -> Specs:
        check_segments("segment_sum", self.dim, self.like, x, ids)
        return (Spec(self.like, x.dtype),)

    def role(self, factor: str) -> Role:
        return Role.MAP if factor in self.like else Role.SUM

    def local(self, context: LocalContext, x: Any, ids: Any) -> LocalTensors:
        sums = reduce_segments(
            tf.math.unsorted_segment_sum,
            context,
            self.dim,
            widen(x),  # bfloat16 sums of ones would stop at 256
            ids,
            self.out_of_range,
        )
        return (tf.cast(sums, x.dtype),)

    def gradient(self, dy: Tensor, y: Tensor, x: Tensor, ids: Tensor) -> Cotangents:
        policy: OutOfRange = "zeros" if self.out_of_range == "zeros" else "negative"
        dx = apply(Gather(self.dim, policy), dy, ids)
        return [transpose(dx, x.shape), None]

    def flops(self, x: Spec, ids: Spec) -> int:
        return x.shape.size


class OneHot(Op):
    """A new last dimension with 1 at the index, 0 elsewhere: ids [*shape] -> [*shape,
    dim].
    """

    dim: Dimension
    dtype: str = "float32"
    samples = (
        Sample((Dimension("v", 8),), ("int b:4",), gradient=False),
        Sample((Dimension("v", 4), "int32"), ("int b:4;c:3",), gradient=False),
        Sample((Dimension("v", 6), "bfloat16"), ("int b:2;c:2",), gradient=False),
        Sample((Dimension("v", 8), "bool"), ("int b:3",), gradient=False),
    )

    def output_specs(self, ids: Spec) -> Specs:
        _check_ids(ids, self.dim.name)
        return (Spec(ids.shape + self.dim, self.dtype),)

    def local(self, context: LocalContext, ids: Any) -> LocalTensors:
        if context.num_shards(self.dim.name) > 1:
            offset = context.shard_offset(self.dim.name)
            ids = tf.cast(ids, tf.int64) - tf.cast(offset, tf.int64)
        ids = as_index_dtype(ids)
        size = context.local_size(self.dim.name)
        if self.dtype == "bool":  # the default values 1 and 0 do not convert to bool
            return (tf.one_hot(ids, size, True, False, dtype=tf.bool),)
        return (tf.one_hot(ids, size, dtype=tf.as_dtype(self.dtype)),)

    def gradient(self, dy: Tensor, y: Tensor, ids: Tensor) -> Cotangents:
        return [None]


class Range(Op):
    """The indices 0, 1, 2... along one dimension."""

    dim: Dimension
    dtype: str = "int32"
    samples = (
        Sample((Dimension("a", 8),), gradient=False),
        Sample((Dimension("a", 6), "float32"), gradient=False),
        Sample((Dimension("a", 5), "int64"), gradient=False),
    )

    def output_specs(self) -> Specs:
        return (Spec(Shape(self.dim), self.dtype),)

    def local(self, context: LocalContext) -> LocalTensors:
        # The offset is added after tf.range, whose length must be static.
        indices = tf.range(context.local_size(self.dim.name))
        if context.num_shards(self.dim.name) > 1:
            indices += context.shard_offset(self.dim.name)
        return (tf.cast(indices, tf.as_dtype(self.dtype)),)

    def gradient(self, dy: Tensor, y: Tensor) -> Cotangents:
        return []


def check_segments(op_name: str, dim: str, like: Shape, x: Spec, ids: Spec) -> None:
    """Checks the inputs of a segment op whose output has the shape `like`.

    Raises:
      ShapeError: `like` is not [*batch, dim, *rest] of x and ids, in any order.
      DTypeError: ids are no integers, or x is bool.
    """
    _check_ids(ids, dim)
    require_dim(x.shape, *ids.shape.names)
    _check_sizes(x.shape, ids.shape)
    if x.dtype == "bool":
        raise DTypeError(f"{op_name} takes numbers, not bool.")
    output_dims = like.without(dim)
    missing = [
        d for d in x.shape if d.name not in ids.shape and d.name not in output_dims
    ]
    if dim in x.shape or missing or not set(output_dims) <= set(x.shape):
        raise ShapeError(f'{op_name} into {like!r} along "{dim}" takes no {x.shape!r}.')


def segments_like(
    x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names
) -> tuple[str, Shape]:
    """Returns the name of the segment dimension, and the output shape
    [*batch, dim, *(x without names of ids)].
    """
    x = as_tensor("x", x)
    ids = as_tensor("ids", ids)
    segment_dim = single_dim(dim)
    batch_names = names_of(batch, ids.shape, x.shape, argument="batch")
    require_dim(ids.shape, *batch_names)
    batch_dims = [ids.shape.dim(n) for n in batch_names]
    rest = x.shape.without(*ids.shape.names)
    return segment_dim.name, Shape([*batch_dims, segment_dim, *rest])


def _check_ids(ids: Spec, dim: str) -> None:
    if not is_integer(ids.dtype):
        raise DTypeError(
            explain_error(
                f"indices are integers, not {ids.dtype}.",
                way_out='Convert them: mtf.cast(ids, "int32").',
            )
        )
    if dim in ids.shape:
        raise ShapeError(
            explain_error(
                f'"{dim}" is the dimension that the indices point into, so they cannot '
                "have it themselves.",
                ids=repr(ids.shape),
                way_out=f'Rename it: mtf.rename(ids, "{dim}", "{dim}_out").',
            )
        )


def _check_sizes(shape: Shape, ids: Shape) -> None:
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

    Names that both have are batch dimensions. An index that is not in [0, size of `dim`)
    is an error of TensorFlow, InvalidArgumentError, when the program runs: it names the
    op, the line and the index. XLA cannot raise errors: there the result for such an
    index is NaN, or the smallest integer.

    Args:
      table: any tensor with `dim`.
      ids: integers.
      dim: the name of the dimension that ids index.
      zero_negative: whether negative indices give zeros, instead of being errors.
      out_of_range: "zeros" gives zeros for all indices that are not in range.

    Raises:
      ShapeError: the table lacks `dim`, ids have it, or a shared name has two sizes.
      DTypeError: ids are no integers.
      PlanError: `out_of_range` is neither "error" nor "zeros".
    """
    check_bools(zero_negative=zero_negative)
    as_choice("out_of_range", out_of_range, ("error", "zeros"))
    policy: OutOfRange = "negative" if zero_negative else "error"
    if out_of_range == "zeros":
        policy = "zeros"
    return gather_with_bounds(table, ids, dim, policy)


def gather_with_bounds(
    table: Any, ids: Tensor, dim: str, out_of_range: OutOfRange
) -> Tensor:
    """Returns [*ids, *(table without dim)], as `gather`, with any policy for indices
    out of range: see `meshtf.ops.indexing.index_bounds`.
    """
    table, dim = tensor_along(table, dim, "table")
    if table.dtype == "bool":  # shards give partial sums, which bool does not have
        y = gather_with_bounds(cast(table, "int8"), ids, dim, out_of_range)
        return cast(y, "bool")
    return apply(Gather(dim, out_of_range), table, ids)


def take_along_axis(
    x: Tensor, ids: Tensor, dim: str, out_of_range: Literal["error", "zeros"] = "error"
) -> Tensor:
    """Returns the elements of x at the indices `ids` along `dim`, as
    numpy.take_along_axis.

    x [..., dim, ...], ids [..., dim, ...] -> [..., dim, ...]: in the result `dim` has the
    size that it has in ids. Dimensions are in the order of x,
    followed by those that only ids have. `take_along_axis(x, argsort(x, "d"), "d")` is sorted.
    Indices out of range are errors, or give zeros, as in `gather`.

    Raises:
      ShapeError: x or ids lack `dim`, or another name has two sizes.
      DTypeError: ids are no integers.
    """
    ids, dim = tensor_along(ids, dim, "ids")
    x = as_tensor("x", x)
    index_dim = "." + dim  # renamed, since ids of gather cannot have `dim`
    y = gather(x, rename(ids, {dim: index_dim}), dim, out_of_range=out_of_range)
    y = rename(y, {index_dim: dim})
    only_in_ids = [n for n in ids.shape.names if n not in x.shape]
    return transpose(y, [*x.shape.names, *only_in_ids])


def segment_sum(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns sums of x by segment: element i of the new `dim` is the sum of x where
    ids are i; negative ids are ignored.

    An id that is too large is refused, as by `gather`; under XLA it is ignored. The
    dimensions of ids are summed, except those in `batch`; the result is
    [*batch, dim, *(x without names of ids)].

    Raises:
      ShapeError: x lacks a name of ids, or has `dim`.
      DTypeError: ids are no integers, or x is bool.
    """
    return apply(SegmentSum(*segments_like(x, ids, dim, batch)), x, ids)


def one_hot(ids: Tensor, dim: ShapeLike, dtype: object = "float32") -> Tensor:
    """Returns [*ids, dim] with 1 where the index along `dim` is the id, else 0, as
    one_hot(ids, "vocab:256").

    An id that is out of range gives zeros, as in TensorFlow.

    Raises:
      ShapeError: ids have `dim` already.
      DTypeError: ids are no integers.
    """
    return apply(OneHot(single_dim(dim), dtype_name(dtype)), ids)


def range(mesh: Mesh | None, dim: ShapeLike, dtype: object = "int32") -> Tensor:
    """Returns the indices 0, 1, 2... [dim] along one dimension, such as "length:8"."""
    return apply(Range(single_dim(dim), dtype_name(dtype)), mesh=mesh)
