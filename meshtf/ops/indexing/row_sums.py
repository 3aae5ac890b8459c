"""Gradients of tables as sums of rows, in proportion to the ids and not to the table.

The gradient of `gather(table, ids, "vocab")` is a sum by segment: [vocab, d_model], zero but for
the rows that ids name. `row_gradient` recognises it from the ops that computed it, so that
whoever needs only these rows takes them from there:

    rows = row_gradient(grad)          # None: the gradient is dense
    ids, sums = rows.summed()          # int64 [rows], [rows, d_model]: each id once, then -1

Then nothing reads the dense gradient, and a recorded program leaves it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

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
    apply_all,
    context,
)
from meshtf.names import Dimension, Shape
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.elementwise.add_n import AddN, add_n
from meshtf.ops.elementwise.binary_op import Binary
from meshtf.ops.elementwise.scalar_op import Scalar, apply_binary
from meshtf.ops.elementwise.where_cast_clip import Cast, cast
from meshtf.ops.indexing.gather import Segment, gather_with_bounds
from meshtf.ops.shapes.reshape import Rename, Transpose, arrange, rename, transpose
from meshtf.ops.variables.optimizer_updates import ReducePartialSums

ROWS = ".rows"  # the dimension of the rows of all lookups


class RowSums(Op):
    """Sums of values that have the same id, for one or several lookups of a table.

    The inputs are ids [*lookups] and values [*lookups, *rest] of each lookup in turn. The outputs
    are the ids int64 [rows] of all lookups in order, but -1 where an id is out of range or has
    occurred before; the sums [rows, *rest] of the values of each id, where it first occurs, and
    zeros elsewhere; and for each lookup the index int32 [*lookups] in `rows` of each sum, or -1.

    Attributes:
      size: the size of the dimension that ids index.
      rest: the names of the dimensions of a row.
    """

    size: int
    rest: tuple[str, ...]
    conformance_samples = (
        Sample((7, ("d",)), ("int b:4;c:2", "b:4;c:2;d:3")),
        Sample(
            (5, ("e", "d")),
            ("int b:6", "b:6;d:4;e:2", "int c:2;b:3", "c:2;b:3;d:4;e:2"),
        ),
        Sample((9, ("d",)), ("int ", "d:4")),
        Sample((7, ("d",)), ("int b:8", "half b:8;d:2")),
    )

    def output_specs(self, *xs: Spec) -> Specs:
        all_ids = [ids.shape for ids in xs[::2]]
        rows = Dimension(ROWS, sum(shape.size for shape in all_ids))
        values = xs[1]
        sums_shape = Shape([rows, *(values.shape.dim(name) for name in self.rest)])
        indices = [Spec(shape, "int32") for shape in all_ids]
        return (Spec(Shape([rows]), "int64"), Spec(sums_shape, values.dtype), *indices)

    def role(self, factor: str) -> Role:
        # Each device needs all rows, and may have a shard of each.
        return Role.MAP if factor in self.rest else Role.UNSHARDED

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        all_ids = []
        all_values = []
        for i in range(0, len(xs), 2):
            all_ids.append(tf.reshape(tf.cast(xs[i], tf.int64), [-1]))
            names = [*context.inputs[i].names, *self.rest]
            values = arrange(xs[i + 1], context.inputs[i + 1].names, names)
            row_sizes = context.outputs[1].sizes[1:]
            all_values.append(tf.reshape(widen(values), [-1, *row_sizes]))
        ids = tf.concat(all_ids, 0)
        num_rows = ids.shape[0]
        first = _first_occurrences(ids, self.size, context.compiled)
        sums = tf.math.unsorted_segment_sum(tf.concat(all_values, 0), first, num_rows)
        is_first = tf.equal(first, tf.range(num_rows))
        sizes = [ids.shape[0] for ids in all_ids]
        indices = tf.split(first, sizes)
        return (
            tf.where(is_first, ids, -1),
            tf.cast(sums, xs[1].dtype),
            *(tf.reshape(y, x.shape) for x, y in zip(xs[::2], indices)),
        )

    def gradient(self, dys: Any, ys: Any, *xs: Any) -> Cotangents:
        cotangents: Cotangents = []
        for values, index in zip(xs[1::2], ys[2:], strict=True):
            dx = None
            if dys[1] is not None:
                dx = gather_with_bounds(dys[1], index, ROWS, out_of_range="zeros")
                dx = transpose(dx, values.shape)
            cotangents += [None, dx]
        return cotangents

    def flops(self, *xs: Spec) -> int:
        return sum(values.shape.size for values in xs[1::2])


def _first_occurrences(ids: Any, size: int, compiled: bool) -> Any:
    """Returns for each id the index of the first equal one, int32 [rows]; -1 for ids that are not
    in [0, size).

    Args:
      ids: int64 [rows].
      size: the exclusive bound of ids.
      compiled: whether XLA compiles the ops.
    """
    num_rows = ids.shape[0]
    positions = tf.range(num_rows)
    is_valid = (ids >= 0) & (ids < size)
    if compiled:
        if size <= tf.int32.max:
            ids = tf.cast(tf.where(is_valid, ids, -1), tf.int32)  # sorted faster
        # XLA needs static shapes. The sort is stable, so the first of equal ids is the lowest.
        order = tf.argsort(ids, stable=True)
        in_order = tf.gather(ids, order)
        is_new = tf.not_equal(in_order[1:], in_order[:-1])
        segment = tf.concat([[0], tf.cumsum(tf.cast(is_new, tf.int32))], 0)
        first = tf.math.unsorted_segment_min(order, segment, num_rows)
        first = tf.scatter_nd(order[:, None], tf.gather(first, segment), [num_rows])
    else:
        segment = tf.unique(ids).idx
        first = tf.math.unsorted_segment_min(positions, segment, num_rows)
        first = tf.gather(first, segment)
    return tf.where(is_valid, first, -1)


class Lookup(NamedTuple):
    """The rows that one lookup adds to a gradient.

    Attributes:
      ids: the indices of the rows, integers [*lookups].
      values: what is added to them, [*lookups, *rest].
    """

    ids: Tensor
    values: Tensor


@dataclasses.dataclass(frozen=True)
class RowGradient:
    """A gradient that is a sum of rows, each multiplied by scalars.

    Attributes:
      shape: the shape of the dense gradient, [dim, *rest] in any order.
      dim: the dimension whose entries are the rows.
      lookups: the rows.
      table: what was looked up, [dim, *rest] in any order; None: it has other names.
      scale: what is done to the sum: a function of [..., *rest] that is linear.
    """

    shape: Shape
    dim: str
    lookups: tuple[Lookup, ...]
    table: Tensor | None = None
    scale: Callable[[Tensor], Tensor] = lambda x: x

    @property
    def num_rows(self) -> int:
        """The number of rows, equal ones counted each time."""
        return sum(lookup.ids.shape.size for lookup in self.lookups)

    @property
    def rest(self) -> tuple[str, ...]:
        """The names of the dimensions of a row, in the order of the gradient."""
        return self.shape.without(self.dim).names

    def scaled_lookups(self) -> list[Lookup]:
        """Returns the rows, [*lookups, *rest], multiplied by the scalars."""
        result = []
        for ids, values in self.lookups:
            values = transpose(values, (*ids.shape.names, *self.rest))
            result.append(Lookup(ids, self.scale(values)))
        return result

    def summed(self) -> Lookup:
        """Returns the ids int64 [rows], each once and -1 in place of further ones, and the sums
        [rows, *rest] of their rows, multiplied by the scalars.
        """
        ids, sums = self._unique()
        return Lookup(ids, self.scale(sums))

    def with_unique_rows(self) -> Tensor:
        """Returns the dense gradient [dim, *rest] of `table` as a sum of the rows of `summed`,
        which is not computed again for it.
        """
        assert self.table is not None
        return self.scale(self.with_lookups([self._unique()], self.table))

    def with_lookups(self, lookups: Sequence[Lookup], table: Tensor) -> Tensor:
        """Returns the dense gradient of a table [dim, *rest] that other lookups have; it is a sum
        of rows, too.
        """
        op = Segment("sum", self.dim, self.shape, out_of_range="zeros")
        with context(primals=(table,)):
            terms = [apply(op, values, ids) for ids, values in lookups]
            return add_n(terms)

    def _unique(self) -> Lookup:
        """Returns what `summed` does, without the scalars."""
        ids, values = self.lookups[0]
        if isinstance(ids.node.op, RowSums) and values.node is ids.node:
            return self.lookups[0]
        inputs = [x for lookup in self.lookups for x in lookup]
        op = RowSums(self.shape[self.dim], self.rest)
        ids, sums, *_ = apply_all(op, *inputs)
        return Lookup(ids, sums)

    def then(self, scale: Callable[[Tensor], Tensor], shape: Shape) -> RowGradient:
        """Returns the gradient after another linear function, in its new shape."""
        first = self.scale
        return dataclasses.replace(self, scale=lambda x: scale(first(x)), shape=shape)


def row_gradient(grad: Tensor) -> RowGradient | None:
    """Returns a gradient [dim, *rest] as a sum of rows; None: it is dense.

    It is a sum of rows if it is the gradient of lookups in a table, and of nothing else: such a
    sum may have been multiplied by scalars, converted, and reduced over devices.
    """
    op = grad.node.op
    inputs = grad.node.inputs
    if isinstance(op, Segment):
        return _of_segments(op, grad)
    if isinstance(op, (Cast, Transpose, ReducePartialSums)):
        rows = row_gradient(inputs[0])
        dtype = grad.dtype
        return rows and rows.then(lambda x: cast(x, dtype), grad.shape)
    if isinstance(op, Rename):
        rows = row_gradient(inputs[0])
        return rows and _renamed(rows, dict(op.pairs), grad.shape)
    if isinstance(op, Scalar):
        rows = row_gradient(inputs[0]) if _is_scaling(op) else None
        return rows and rows.then(
            lambda x: apply_binary(op.fn, x, op.value), grad.shape
        )
    if isinstance(op, AddN) or (isinstance(op, Binary) and op.fn == "add"):
        return _of_sum([row_gradient(x) for x in inputs], grad.shape)
    if isinstance(op, Binary) and op.fn in ("multiply", "divide"):
        return _of_product(op, grad)
    return None


def _of_segments(op: Segment, grad: Tensor) -> RowGradient | None:
    """Returns the gradient of a lookup. With dimensions that table and ids share, it is none of
    rows; and neither is a sum that the user has written, whose ids no lookup has checked.
    """
    values, ids = grad.node.inputs
    is_batched = any(name in op.output_shape for name in ids.shape.names)
    if op.kind != "sum" or is_batched or not grad.node.primals:
        return None
    table = grad.node.primals[0]
    has_its_dims = set(table.shape) == set(grad.shape)
    lookups = (Lookup(ids, values),)
    return RowGradient(grad.shape, op.dim, lookups, table if has_its_dims else None)


def _of_sum(terms: list[RowGradient | None], shape: Shape) -> RowGradient | None:
    """Returns the sum of gradients."""
    lookups: list[Lookup] = []
    for rows in terms:
        if rows is None or set(rows.shape) != set(shape):
            return None
        lookups += rows.scaled_lookups()
    first, *remaining = (rows for rows in terms if rows is not None)
    if any(rows.dim != first.dim for rows in remaining):
        return None
    return RowGradient(shape, first.dim, tuple(lookups), first.table)


def _renamed(
    rows: RowGradient, new_names: dict[str, str], shape: Shape
) -> RowGradient | None:
    """Returns a gradient by other names; None if lookups have one of these already."""
    lookups = []
    row_names = {name: new for name, new in new_names.items() if name in rows.rest}
    for ids, values in rows.scaled_lookups():
        if any(new in ids.shape for new in row_names.values()):
            return None
        values = rename(values, row_names) if row_names else values
        lookups.append(Lookup(ids, values))
    dim = new_names.get(rows.dim, rows.dim)
    return RowGradient(shape, dim, tuple(lookups))


def _of_product(op: Binary, grad: Tensor) -> RowGradient | None:
    """Returns the product of a gradient and a scalar, or their quotient."""
    left, right = grad.node.inputs
    if not right.shape.names:
        rows = row_gradient(left)
        return rows and rows.then(lambda x: apply_binary(op.fn, x, right), grad.shape)
    if not left.shape.names and op.fn == "multiply":
        rows = row_gradient(right)
        return rows and rows.then(lambda x: left * x, grad.shape)
    return None


def _is_scaling(op: Scalar) -> bool:
    """Returns whether an op multiplies by a number."""
    return op.fn == "multiply" or (op.fn == "divide" and not op.swapped)
