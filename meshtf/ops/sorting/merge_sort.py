"""Sorting along a sharded dimension without gathering it: neighbours merge their shards.

    shards           [7 8] [3 9] [1 2]   each sorted locally
    iteration 0      [3 7] [8 9] [1 2]   shards 0 and 1 merge: the left keeps the smaller elements
    iteration 1      [3 7] [1 2] [8 9]   shards 1 and 2 merge
    iteration 2      [1 2] [3 7] [8 9]   shards 0 and 1: as many iterations as shards sort all

This is odd-even transposition sort with merge-splitting (Baudet and Stevenson 1978). In
each iteration a device receives one shard, its partner's, through a window. This module
does not ask for the number of devices: it reshapes the dimension to `[blocks, elements]`,
and sharding the dimension shards the blocks.
"""

from __future__ import annotations

from typing import Any

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
    Window,
    WindowedOp,
    apply,
    apply_all,
)
from meshtf.names import Dimension
from meshtf.ops.elementwise.arithmetic import add, multiply
from meshtf.ops.indexing.gather import take_along_axis
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import arrange, reshape, unflatten
from meshtf.ops.sorting.sort_op import Reorder, Sort, sort_last_axis

BLOCKS, ELEMENTS = ".blocks", ".elements"  # no layout can name them


class MergeSplit(WindowedOp):
    """Sorts each pair of neighbouring blocks by its keys: (0 1)(2 3), odd: (1 2)(3 4).

    The first input holds the keys; all other inputs are reordered like the keys. It has
    no gradient: `Carried` provides that of the sorted tensor.
    """

    blocks: str
    elements: str
    odd: bool
    descending: bool = False
    share_trace = True
    samples = (
        Sample(("b", "r", False), ("ties b:4;r:2", "int b:4;r:2"), gradient=False),
        Sample(("b", "r", True), ("ties a:2;b:4;r:3", "b:4;r:3;a:2"), gradient=False),
        Sample(("b", "r", True, True), ("int r:2;b:6", "int r:2;b:6"), gradient=False),
        Sample(("b", "r", False), ("int b:6;r:1",), gradient=False),
    )

    def output_specs(self, *xs: Spec) -> Specs:
        return xs

    def role(self, factor: str) -> Role:
        if factor == self.elements:
            return Role.UNSHARDED
        return Role.MAP

    def window(self, input_index: int, dim: str) -> Window | None:
        if dim != self.blocks:
            return None
        return Window(
            lambda a: a - (a + self.odd) % 2, lambda b: b + (b + self.odd) % 2
        )

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        inner = (self.blocks, self.elements)
        outer = [n for n in context.inputs[0].names if n not in inner]
        order = [*outer, *inner]
        windows = []  # [*outer, blocks, elements]
        for i, x in enumerate(xs):
            window = context.window(i, self.blocks, x)
            windows.append(arrange(window, context.inputs[i].names, order))
        merged = self._merge_pairs(windows)
        size = context.local_size(self.blocks)
        unpaired = self._unpaired(context, size)
        start = (context.shard_offset(self.blocks) + self.odd) % 2
        outputs = []
        for window, pairs, output in zip(windows, merged, context.outputs):
            unchanged = _local_blocks(window, start, size)
            merged_blocks = tf.reshape(pairs, window.shape)
            sorted_blocks = _local_blocks(merged_blocks, start, size)
            y = tf.where(unpaired, unchanged, sorted_blocks)
            outputs.append(arrange(y, order, output.names))
        return tuple(outputs)

    def _merge_pairs(self, windows: list[Any]) -> list[Any]:
        """Returns tensors `[..., pairs, 2 * elements]`, sorted by the first of them."""
        pairs = []
        for x in windows:
            *outer, num_blocks, block_size = x.shape
            pairs.append(tf.reshape(x, [*outer, num_blocks // 2, 2 * block_size]))
        keys, *values = pairs
        sorted_keys, order = sort_last_axis(keys, self.descending)
        batch_dims = len(order.shape) - 1
        sorted_values = [tf.gather(x, order, batch_dims=batch_dims) for x in values]
        return [sorted_keys, *sorted_values]

    def _unpaired(self, context: LocalContext, size: int) -> Any:
        """Returns a mask `[size, 1]` over the local blocks, true for those at the ends
        of the dimension that have no partner.
        """
        block = context.shard_offset(self.blocks) + tf.range(size)
        is_right = (block + self.odd) % 2
        partner = block + 1 - 2 * is_right
        num_blocks = context.global_size(self.blocks)
        is_outside = (partner < 0) | (partner >= num_blocks)
        return tf.expand_dims(is_outside, 1)

    def gradient(self, dys: Any, ys: Any, *xs: Tensor) -> Cotangents:
        return [None] * len(xs)


def _local_blocks(window: Any, start: Any, size: int) -> Any:
    """Returns the `size` blocks of a window from `start`: those of this device."""
    *outer, _num_blocks, block_size = window.shape
    begin = [0] * len(outer) + [start, 0]
    sizes = [*outer, size, block_size]
    return tf.slice(window, begin, sizes)


class Carried(Op):
    """Returns y, which equals x reordered by `order`; gives x, not y, the gradient.

    back: y is x with that reordering undone.
    """

    dim: str
    blocks: int
    back: bool = False
    samples = (Sample(("d", 2), ("b:2;d:4", "b:2;d:4", "int b:2;d:4"), gradient=False),)

    def output_specs(self, x: Spec, y: Spec, order: Spec) -> Specs:
        return (y,)

    def local(self, context: LocalContext, x: Any, y: Any, order: Any) -> LocalTensors:
        return (y,)

    def gradient(
        self, dz: Tensor, z: Tensor, x: Tensor, y: Tensor, order: Tensor
    ) -> Cotangents:
        if self.back:
            dx = take_along_axis(dz, order, self.dim)
        else:
            dx = _undo_order(dz, order, self.dim, self.blocks)
        return [dx, None, None]

    def flops(self, *xs: Spec) -> int:
        return 0


def merge_sorted(
    x: Tensor, dim: str, blocks: int, descending: bool
) -> tuple[Tensor, Tensor]:
    """Returns x sorted along `dim`, and the index in x of each sorted element, both of
    the shape of x.

    Args:
      x: floats or integers.
      dim: the name along which x is sorted.
      blocks: the number of shards of `dim`; it divides the size of `dim`.
      descending: whether the largest comes first.
    """
    keys, indices = apply_all(Sort(ELEMENTS, descending), _in_blocks(x, dim, blocks))
    assert x.mesh is not None
    block = index_range(x.mesh, Dimension(BLOCKS, blocks))
    offsets = multiply(block, x.shape[dim] // blocks)
    keys, indices = _merged(keys, add(indices, offsets), descending)
    y = reshape(keys, x.shape)
    order = reshape(indices, x.shape)
    return apply(Carried(dim, blocks), x, y, order), order


def _undo_order(y: Tensor, order: Tensor, dim: str, blocks: int) -> Tensor:
    """Returns x, where y is x reordered by `order`: y sorted by the indices in x."""
    order_blocks = _in_blocks(order, dim, blocks)
    y_blocks = _in_blocks(y, dim, blocks)
    keys, indices = apply_all(Sort(ELEMENTS), order_blocks)
    values = apply(Reorder(ELEMENTS), y_blocks, indices)
    _, x_blocks = _merged(keys, values, False)
    x = reshape(x_blocks, y.shape)
    return apply(Carried(dim, blocks, back=True), y, x, order)


def _in_blocks(x: Tensor, dim: str, blocks: int) -> Tensor:
    """Returns x with `dim` split into blocks and the elements of a block."""
    elements = x.shape[dim] // blocks
    return unflatten(x, dim, [Dimension(BLOCKS, blocks), Dimension(ELEMENTS, elements)])


def _merged(keys: Tensor, values: Tensor, descending: bool) -> tuple[Tensor, ...]:
    """Returns keys sorted over all blocks, each block being sorted already, and values
    in the same order.
    """
    blocks = keys.shape[BLOCKS]
    iterations = blocks if blocks > 2 else 1
    for iteration in range(iterations):
        merge = MergeSplit(BLOCKS, ELEMENTS, bool(iteration % 2), descending)
        keys, values = apply_all(merge, keys, values)
    return keys, values
