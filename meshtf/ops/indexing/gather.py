"""Rows by number: gather, its transpose segment_sum, one_hot, and the numbers
themselves, range.

    emb = mtf.gather(table, ids, "vocab")        # [vocab d], [batch length] -> [batch length d]
    best = mtf.gather(x, top, "vocab")           # [batch vocab], [batch k] -> [batch k]
    sums = mtf.segment_sum(x, ids, "bins:16")    # [batch d], [batch] -> [bins d]
    y = mtf.take_along(x, order, "length")       # [batch length], twice -> [batch length]

Names that table and ids share are batch dimensions. Rows may be cut: each device then
serves the rows that it holds and gives zeros for the others, so that neither a whole
table nor a one-hot tensor is ever made. The gradient of gather is segment_sum, and the
other way round. Numbers that are none of the table's are refused, under every layout
(`meshtf.ops.indexing.index_bounds`); one_hot, like TensorFlow's, has nothing but zeros for them.
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import LocalContext, Op, Role, Sample, Spec, Tensor, apply
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
    Outside,
    indices,
    marked,
    own,
    reduce_segments,
    refusing,
)
from meshtf.ops.shapes.reshape import arrange, rename, transpose


class Gather(Op):
    """table [*batch, dim, *rest], ids [*batch, *places] -> [*batch, *places, *rest]."""

    dim: str
    outside: Outside = "error"
    linearity = "each"  # in the table, that is; numbers are no sums
    samples = (
        Sample(("v",), ("v:8;d:4", "int b:4")),
        Sample(("v", "negative"), ("d:3;v:8", "int b:4;c:2")),
        Sample(("v",), ("g:4;v:8;d:2", "int g:4;c:2")),
        Sample(("v", "trusted"), ("v:8", "int b:4"), 8),
        Sample(("v", "zeros"), ("v:7;g:2", "int c:3;g:2")),
        Sample(("v",), ("int g:2;v:8", "int g:2")),
    )

    def output_specs(self, table: Spec, ids: Spec) -> tuple[Spec, ...]:
        require_dim(table.shape, self.dim)
        _check_ids(ids, self.dim)
        _check_sizes(table.shape, ids.shape)
        return (
            Spec(
                ids.shape + table.shape.without(self.dim, *ids.shape.names), table.dtype
            ),
        )

    def role(self, factor: str) -> Role:
        return Role.SUM if factor == self.dim else Role.MAP

    def local(self, context: LocalContext, table: Any, ids: Any) -> tuple[Any, ...]:
        given, mine, sure = ids, None, self.outside in ("error", "trusted")
        if context.num_shards(self.dim) > 1 or not sure or not context.kernels_refuse:
            ids = refusing(context, self.dim, ids, self.outside)
        if context.num_shards(self.dim) > 1 or not sure:
            ids, mine = own(context, self.dim, ids)
            ids = tf.where(mine, ids, 0)
        (have, places), out = context.inputs, context.outputs[0].names
        batch = [n for n in places.names if n in have]
        others = [n for n in places.names if n not in have]
        rest = [n for n in have.names if n not in places]
        i = rest.index(self.dim)
        y = tf.gather(
            arrange(table, have.names, batch + rest),
            indices(arrange(ids, places.names, batch + others)),
            axis=len(batch) + i,
            batch_dims=len(batch),
        )
        y = arrange(y, [*batch, *rest[:i], *others, *rest[i + 1 :]], out)
        if mine is not None:
            mine = tf.reshape(mine, [*places.sizes, *[1] * (len(out) - len(places))])
            y = tf.where(mine, y, tf.zeros([], y.dtype))
        return (marked(context, self.dim, y, given, self.outside),)

    def gradient(
        self, dy: Tensor, y: Tensor, table: Tensor, ids: Tensor
    ) -> list[Tensor | None]:
        return [apply(SegmentSum(self.dim, table.shape, self.outside), dy, ids), None]


class SegmentSum(Op):
    """x [*batch, *places, *rest], ids [*batch, *places] -> like [*batch,
    dim, *rest].
    """

    dim: str
    like: Shape
    outside: Outside = "negative"
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

    def output_specs(self, x: Spec, ids: Spec) -> tuple[Spec, ...]:
        check_segments("segment_sum", self.dim, self.like, x, ids)
        return (Spec(self.like, x.dtype),)

    def role(self, factor: str) -> Role:
        return Role.MAP if factor in self.like else Role.SUM

    def local(self, context: LocalContext, x: Any, ids: Any) -> tuple[Any, ...]:
        sums = reduce_segments(
            tf.math.unsorted_segment_sum, context, self.dim, widen(x), ids, self.outside
        )
        return (tf.cast(sums, x.dtype),)  # else half floats stop counting at 256

    def gradient(
        self, dy: Tensor, y: Tensor, x: Tensor, ids: Tensor
    ) -> list[Tensor | None]:
        outside: Outside = "zeros" if self.outside == "zeros" else "negative"
        return [transpose(apply(Gather(self.dim, outside), dy, ids), x.shape), None]

    def flops(self, x: Spec, ids: Spec) -> int:
        return x.shape.size


class OneHot(Op):
    """1 at the numbered row of a new last dimension, 0 elsewhere."""

    dim: Dimension
    dtype: str = "float32"
    samples = (
        Sample((Dimension("v", 8),), ("int b:4",), gradient=False),
        Sample((Dimension("v", 4), "int32"), ("int b:4;c:3",), gradient=False),
        Sample((Dimension("v", 6), "bfloat16"), ("int b:2;c:2",), gradient=False),
        Sample((Dimension("v", 8), "bool"), ("int b:3",), gradient=False),
    )

    def output_specs(self, ids: Spec) -> tuple[Spec, ...]:
        _check_ids(ids, self.dim.name)
        return (Spec(ids.shape + self.dim, self.dtype),)

    def local(self, context: LocalContext, ids: Any) -> tuple[Any, ...]:
        if context.num_shards(self.dim.name) > 1:
            ids = tf.cast(ids, tf.int64) - tf.cast(
                context.shard_offset(self.dim.name), tf.int64
            )
        # TensorFlow's own 1 and 0 do not convert to bool.
        on = (True, False) if self.dtype == "bool" else (None, None)
        return (
            tf.one_hot(
                indices(ids),
                context.local_size(self.dim.name),
                *on,
                dtype=tf.as_dtype(self.dtype),
            ),
        )

    def gradient(self, dy: Tensor, y: Tensor, ids: Tensor) -> list[Tensor | None]:
        return [None]


class Range(Op):
    """The numbers 0, 1, 2... along one dimension."""

    dim: Dimension
    dtype: str = "int32"
    samples = (
        Sample((Dimension("a", 8),), gradient=False),
        Sample((Dimension("a", 6), "float32"), gradient=False),
        Sample((Dimension("a", 5), "int64"), gradient=False),
    )

    def output_specs(self) -> tuple[Spec, ...]:
        return (Spec(Shape(self.dim), self.dtype),)

    def local(self, context: LocalContext) -> tuple[Any, ...]:
        rows = tf.range(
            context.local_size(self.dim.name)
        )  # its length must be static: the offset is not
        if context.num_shards(self.dim.name) > 1:
            rows += context.shard_offset(self.dim.name)
        return (tf.cast(rows, tf.as_dtype(self.dtype)),)

    def gradient(self, dy: Tensor, y: Tensor) -> list[Tensor | None]:
        return []


def check_segments(what: str, dim: str, like: Shape, x: Spec, ids: Spec) -> None:
    """Refuses what cannot be put into rows of `like` by number. Raises ShapeError or
    DTypeError.
    """
    _check_ids(ids, dim)
    require_dim(x.shape, *ids.shape.names)
    _check_sizes(x.shape, ids.shape)
    if x.dtype == "bool":
        raise DTypeError(f"{what} takes numbers, not bool.")
    kept = like.without(dim)
    lost = [d for d in x.shape if d.name not in ids.shape and d.name not in kept]
    if dim in x.shape or lost or not set(kept) <= set(x.shape):
        raise ShapeError(f'{what} into {like!r} along "{dim}" takes no {x.shape!r}.')


def segments_like(
    x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names
) -> tuple[str, Shape]:
    """Returns the name of the new rows, and the shape [*batch, dim, *(x without names
    of ids)].
    """
    x, ids = as_tensor("x", x), as_tensor("ids", ids)
    rows, kept = single_dim(dim), names_of(batch, ids.shape, x.shape, what="batch")
    require_dim(ids.shape, *kept)
    return rows.name, Shape(
        [*(ids.shape.dim(n) for n in kept), rows, *x.shape.without(*ids.shape.names)]
    )


def _check_ids(ids: Spec, dim: str) -> None:
    if not is_integer(ids.dtype):
        raise DTypeError(
            explain_error(
                f"rows are numbered by integers, not by {ids.dtype}.",
                way_out='Convert them: mtf.cast(ids, "int32").',
            )
        )
    if dim in ids.shape:
        raise ShapeError(
            explain_error(
                f'"{dim}" is the dimension that the numbers point into, so it cannot '
                "be one of theirs.",
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
    """Returns the rows of `dim` that ids number: [*ids, *(table without dim and names
    of ids)].

    Names that both have are batch dimensions. A number that is not in [0, size of
    `dim`) is an error of TensorFlow, InvalidArgumentError, when the program runs: it
    names the op, the line and the number. XLA knows no errors: there the result is NaN,
    or the least integer, for such a number.

    Args:
      table: any tensor with `dim`.
      ids: integers.
      dim: the name that is looked up.
      zero_negative: whether negative numbers give zeros, instead of being errors.
      out_of_range: "zeros" gives zeros for all numbers that are not in range.

    Raises:
      ShapeError: the table lacks `dim`, ids have it, or a shared name has two sizes.
      DTypeError: ids are no integers.
      PlanError: `out_of_range` is neither "error" nor "zeros".
    """
    check_bools(zero_negative=zero_negative)
    as_choice("out_of_range", out_of_range, ("error", "zeros"))
    outside: Outside = "negative" if zero_negative else "error"
    return gather_with_bounds(
        table, ids, dim, "zeros" if out_of_range == "zeros" else outside
    )


def gather_with_bounds(table: Any, ids: Tensor, dim: str, outside: Outside) -> Tensor:
    """Returns what `gather` does; what it makes of numbers outside: see
    `meshtf.ops.indexing.index_bounds`.
    """
    table, dim = tensor_along(table, dim, "table")
    if (
        table.dtype == "bool"
    ):  # rows of other slices are added as zeros: bool has no sum
        return cast(gather_with_bounds(cast(table, "int8"), ids, dim, outside), "bool")
    return apply(Gather(dim, outside), table, ids)


def take_along(
    x: Tensor, ids: Tensor, dim: str, out_of_range: Literal["error", "zeros"] = "error"
) -> Tensor:
    """Returns the elements of x that ids number along `dim`, each in its own row:
    take_along_axis.

    In the result `dim` has the size that it has in ids; dimensions are in the order of
    x, then those that ids alone have. It undoes what gave ids:
    `take_along(x, argsort(x, "d"), "d")` is sorted. Numbers out of range are errors, or
    give zeros, as in `gather`.

    Raises:
      ShapeError: x or ids lack `dim`, or another name has two sizes.
      DTypeError: ids are no integers.
    """
    ids, dim = tensor_along(ids, dim, "ids")
    x = as_tensor("x", x)
    places = "." + dim
    y = rename(
        gather(x, rename(ids, {dim: places}), dim, out_of_range=out_of_range),
        {places: dim},
    )
    return transpose(
        y, [*x.shape.names, *(n for n in ids.shape.names if n not in x.shape)]
    )


def segment_sum(x: Tensor, ids: Tensor, dim: ShapeLike, batch: Names = ()) -> Tensor:
    """Returns sums of x by number: row i of the new `dim` adds up where ids are i;
    negatives nowhere.

    A number that is too large is refused, as by `gather`; under XLA it goes nowhere.
    The dimensions of ids are summed, but for those in `batch`; the result is
    [*batch, dim, *(x without names of ids)].

    Raises:
      ShapeError: x lacks a name of ids, or has `dim`.
      DTypeError: ids are no integers, or x is bool.
    """
    return apply(SegmentSum(*segments_like(x, ids, dim, batch)), x, ids)


def one_hot(ids: Tensor, dim: ShapeLike, dtype: object = "float32") -> Tensor:
    """Returns [*ids, dim] with 1 where `dim`'s row is the number, else 0; one_hot(ids,
    "vocab:256").

    A number that is not in range has nothing but zeros, as in TensorFlow.

    Raises:
      ShapeError: ids have `dim` already.
      DTypeError: ids are no integers.
    """
    return apply(OneHot(single_dim(dim), dtype_name(dtype)), ids)


def range(mesh: Mesh | None, dim: ShapeLike, dtype: object = "int32") -> Tensor:
    """Returns the numbers 0, 1, 2... along one dimension, such as "length:8"."""
    return apply(Range(single_dim(dim), dtype_name(dtype)), mesh=mesh)
