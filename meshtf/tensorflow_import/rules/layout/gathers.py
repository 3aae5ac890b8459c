"""Reads and sums at computed places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshtf.graph import Tensor
from meshtf.ops.elementwise.arithmetic import logical_and
from meshtf.ops.elementwise.where_cast_clip import where
from meshtf.ops.indexing.gather import gather
from meshtf.ops.indexing.one_hot_and_range import one_hot
from meshtf.ops.indexing.scatter import segment_sum
from meshtf.ops.reductions.reduce import reduce_all, reduce_sum
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.variables.fill import full
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.dimensions.atoms import Axis
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.layout.known_operands import known
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("GatherV2")
class Gather(Rule):
    """Rows of a table."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        table, ids, _ = node.inputs
        rows, indices = analysis.of(table), analysis.of(ids)
        axis = int(known(node, 2)) % len(rows)
        batches = node.attributes.get("batch_dims", 0)
        result = [*rows[:axis], *indices[batches:], *rows[axis + 1 :]]
        analysis.set(node.outputs[0], result)
        analysis.unify_all(rows[:batches], indices[:batches])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        table, ids, _ = node.inputs
        axes = lowering.axes(table)
        axis = int(known(node, 2)) % len(axes)
        batches = node.attributes.get("batch_dims", 0)
        expected = lowering.axes(node.outputs[0])
        count = len(lowering.axes(ids)) - batches
        looked_up = expected[axis : axis + count]
        index = lowering.aligned(ids, [*expected[:batches], *looked_up])
        x = lowering.aligned(table, [*expected[:axis], None, *expected[axis + count :]])
        x, name = lowering.merged(x, axes[axis], "rows")
        # Only batch dimensions may be in both.
        new = [
            a
            for a in lowering.names([a for axis in looked_up for a in axis])
            if a in x.shape.names
        ]
        index = rename(index, {a: f"{a}_looked_up" for a in new}) if new else index
        y = gather(x, index, name)
        return rename(y, {f"{a}_looked_up": a for a in new}) if new else y


@rule("OneHot")
class OneHot(Rule):
    """1 at the place of an id."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes, output = analysis.of(node.inputs[0]), node.outputs[0]
        axis = node.attributes["axis"] % len(output.shape)
        axes.insert(axis, analysis.new(output.shape[axis]))
        analysis.set(output, axes)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        on, off = (known(node, k).item() for k in (2, 3))
        axis = node.attributes["axis"] % len(output.shape)
        classes = lowering.axes(output)[axis]
        name = lowering.single(classes, "classes_now")
        ids, size = lowering.tensor(node.inputs[0]), output.shape[axis]
        is_plain = (on, off) == (1, 0)
        dtype = output.dtype.name
        x = one_hot(ids, f"{name}:{size}", dtype if is_plain else "bool")
        if not is_plain:  # they may be infinite, as logarithms of 0
            scalars = [full(lowering.mesh, "", value, dtype) for value in (on, off)]
            x = where(x, *scalars)
        return lowering.split(x, name, classes)


@rule("UnsortedSegmentSum")
class SegmentSum(Rule):
    """Sums of the entries that have the same id."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        data, ids, _ = node.inputs
        values, indices = analysis.of(data), analysis.of(ids)
        analysis.unify_all(values[: len(indices)], indices)
        output = node.outputs[0]
        rows = analysis.new(output.shape[0])
        analysis.set(output, [rows, *values[len(indices) :]])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        data, ids, _ = node.inputs
        rows = lowering.axes(node.outputs[0])[0]
        index = lowering.aligned(ids, lowering.axes(data))
        name = lowering.single(rows, "segments_now")
        segments = f"{name}:{node.outputs[0].shape[0]}"
        y = segment_sum(lowering.tensor(data), index, segments)
        return lowering.split(y, name, rows)


@rule("ScatterNd")
class Scatter(Rule):
    """A tensor of zeros with updates added at indices. Shards of the updates give partial sums."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        indices, updates, _ = node.inputs
        *batch, depth = indices.shape
        output, axes = node.outputs[0], analysis.of(updates)
        analysis.unify_all(axes[: len(batch)], analysis.of(indices))
        rows = [analysis.new(size) for size in output.shape[:depth]]
        analysis.set(output, [*rows, *axes[len(batch) :]])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        indices, updates, _ = node.inputs
        return scattered(lowering, indices, updates, node.outputs[0])


def scattered(
    lowering: Lowering, indices: Value, updates: Value, output: Value
) -> Tensor:
    """Returns sums of updates at indices of the first axes of an output.

    Args:
        lowering: The run.
        indices: The indices `[*batch, depth]` of each update, one for each of these axes.
        updates: Updates `[*batch, *rest]`.
        output: A value `[*rows, *rest]`, with `depth` axes of rows.
    """
    *batch, depth = indices.shape
    count, axes = len(batch), lowering.axes(output)
    sizes = output.shape[:depth]
    ids = _row_ids(lowering, indices, lowering.axes(updates)[:count], sizes)
    x = lowering.full(updates, updates)
    rest = [atom for axis in axes[depth:] for atom in axis]
    before = [atom for axis in lowering.axes(updates)[count:] for atom in axis]
    names = zip(lowering.names(before), lowering.names(rest))
    pairs = {a: b for a, b in names if a != b}
    x = rename(x, pairs) if pairs else x
    y = segment_sum(x, ids, f"rows_now:{math.prod(sizes)}")
    rows = tuple(atom for axis in axes[:depth] for atom in axis)
    return lowering.split(y, "rows_now", rows)


def _row_ids(
    lowering: Lowering, indices: Value, batch: Sequence[Axis], sizes: Sequence[int]
) -> Tensor:
    """Returns ids of rows in the order of their axes merged. One index of several that is out of
    range may not give the id of another row: it gives one that no row has.
    """
    x = lowering.aligned(indices, [*batch, None])
    x, name = lowering.merged(x, lowering.axes(indices)[-1], "indices_now")
    dtype, shape = indices.dtype.as_numpy_dtype, f"{name}:{len(sizes)}"
    strides = np.cumprod([1, *sizes[:0:-1]])[::-1].astype(dtype)
    limits = constant(lowering.mesh, np.asarray(sizes, dtype), shape)
    is_valid = reduce_all(logical_and(x >= 0, x < limits), name)
    ids = reduce_sum(x * constant(lowering.mesh, strides, shape), name)
    return where(is_valid, ids, math.prod(sizes))
