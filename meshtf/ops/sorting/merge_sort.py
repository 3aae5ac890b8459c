"""Sorting along a sharded dimension without gathering it: neighbours merge their shards.

    shards           [7 8] [3 9] [1 2]   each sorted locally
    iteration 0      [3 7] [8 9] [1 2]   shards 0 and 1 merge: the left keeps the smaller elements
    iteration 1      [3 7] [1 2] [8 9]   shards 1 and 2 merge
    iteration 2      [1 2] [3 7] [8 9]   shards 0 and 1 merge

As many iterations as there are shards sort any input. This is odd-even transposition sort
with merge-splitting (Baudet and Stevenson, "Optimal Sorting Algorithms for Parallel
Computers", 1978). In each iteration a device receives one shard, that of its partner.

The dimension is reshaped to `[blocks, elements]`, where a block has the elements of one
shard. So a layout that shards the dimension shards the blocks, and each op below works on
complete blocks.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

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
    Window,
    WindowedOp,
    apply,
    apply_all,
)
from meshtf.names import Dimension
from meshtf.ops.indexing.gather import take_along_axis
from meshtf.ops.indexing.one_hot_and_range import range as index_range
from meshtf.ops.shapes.reshape import arrange, reshape, unflatten
from meshtf.ops.sorting.sort_op import Reorder, Sort, sort_last_axis

# Names of temporary dimensions. No layout shards a name that starts with a dot.
BLOCKS = ".blocks"
ELEMENTS = ".elements"


class MergeSplit(WindowedOp):
    """Sorts each pair of neighbouring blocks by its keys: blocks (0 1) (2 3) ...

    The first input has the keys; all other inputs are reordered like the keys. The op has
    no gradient: `WithGradientOf` provides that of the sorted tensor.

    Attributes:
      blocks: the name of the dimension of blocks.
      elements: the name of the dimension of the elements of a block.
      odd: whether the pairs are (1 2) (3 4) ...; then blocks at the ends may have no
        partner, and stay as they are.
      descending: whether the largest comes first.
    """

    blocks: str
    elements: str
    odd: bool
    descending: bool = False
    share_trace = True  # equal nodes of a program share one trace of `local`
    # Each sample: the attributes (blocks, elements, odd, descending), and the input shapes.
    conformance_samples = (
        Sample(("b", "r", False), ("ties b:4;r:2", "int b:4;r:2"), gradient=False),
        Sample(("b", "r", True), ("ties a:2;b:4;r:3", "b:4;r:3;a:2"), gradient=False),
        Sample(("b", "r", True, True), ("int r:2;b:6", "int r:2;b:6"), gradient=False),
        Sample(("b", "r", False), ("int b:6;r:1",), gradient=False),
        Sample(("b", "r", True), ("nan b:6;r:2", "int b:6;r:2"), gradient=False),
    )

    def output_specs(self, *xs: Spec) -> Specs:
        return xs

    def role(self, factor: str) -> Role:
        # A factor is the name of a dimension of the inputs.
        if factor == self.elements:
            return Role.UNSHARDED
        return Role.MAP  # each shard of the inputs gives its shard of the outputs

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        # A block of padding would be the partner of one that stays as it is.
        return "gather" if factor == self.blocks else None

    def window(self, input_index: int, dim: str) -> Window | None:
        """Returns the range of blocks that a shard of blocks [a, b) reads: this range,
        extended to complete pairs.
        """
        if dim != self.blocks:
            return None

        # Block k is the right one of its pair if (k + odd) % 2 is 1.
        def low(a: int) -> int:
            # If the first block is a right one, its left partner is read too.
            return a - (a + self.odd) % 2

        def high(b: int) -> int:
            # If block b is a right one, it is the partner of the last block.
            return b + (b + self.odd) % 2

        return Window(low=low, high=high)

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        inner = (self.blocks, self.elements)
        outer = [name for name in context.inputs[0].names if name not in inner]
        order = [*outer, *inner]
        # For each input, its window: the local blocks and their partners, which neighbouring
        # shards have sent, [*outer, blocks, elements].
        windows = []
        for i, x in enumerate(xs):
            window = context.window(i, self.blocks, x)
            windows.append(arrange(window, context.inputs[i].names, order))
        sorted_pairs = self._sort_pairs(context, windows)
        num_local = context.local_size(self.blocks)
        is_unpaired = self._is_unpaired(context, num_local)
        # The index of the first local block in the window: 1 if it is a right block, since
        # the window then starts with its partner.
        start = (context.shard_offset(self.blocks) + self.odd) % 2
        outputs = []
        for window, pairs, output in zip(windows, sorted_pairs, context.outputs):
            unchanged_blocks = _local_blocks(window, start, num_local)
            pairs_as_blocks = tf.reshape(pairs, window.shape)
            sorted_blocks = _local_blocks(pairs_as_blocks, start, num_local)
            y = tf.where(is_unpaired, unchanged_blocks, sorted_blocks)
            outputs.append(arrange(y, order, output.names))
        return tuple(outputs)

    def _sort_pairs(self, context: LocalContext, windows: list[Any]) -> list[Any]:
        """Returns each window as pairs of blocks, `[*outer, pairs, 2 * elements]`, with the
        elements of a pair sorted by the keys, which are the first window.
        """
        pairs_of_inputs = []
        for x in windows:
            *outer, num_blocks, block_size = x.shape
            pairs = tf.reshape(x, [*outer, num_blocks // 2, 2 * block_size])
            pairs_of_inputs.append(pairs)
        keys, *values = pairs_of_inputs
        sorted_keys, order = sort_last_axis(context, keys, self.descending)
        batch_dims = len(order.shape) - 1
        sorted_values = [tf.gather(x, order, batch_dims=batch_dims) for x in values]
        return [sorted_keys, *sorted_values]

    def _is_unpaired(self, context: LocalContext, num_local: int) -> Any:
        """Returns a mask `[num_local, 1]`, true for local blocks without a partner, at the
        ends of the dimension.
        """
        block = context.shard_offset(self.blocks) + tf.range(num_local)
        is_right = (block + self.odd) % 2
        # The partner of a left block is the block after it, that of a right one before it.
        partner = block + 1 - 2 * is_right
        num_blocks = context.global_size(self.blocks)
        is_outside = (partner < 0) | (partner >= num_blocks)
        return tf.expand_dims(is_outside, 1)

    def gradient(self, dys: Any, ys: Any, *xs: Tensor) -> Cotangents:
        return [None] * len(xs)


def _local_blocks(window: Any, start: Any, num_local: int) -> Any:
    """Returns this device's blocks of a window: blocks [start, start + num_local).

    Args:
      window: a tensor `[*outer, blocks, elements]`.
      start: the index of the first local block, a scalar.
      num_local: the number of local blocks.
    """
    *outer, _num_blocks, block_size = window.shape
    begin = [0] * len(outer) + [start, 0]
    sizes = [*outer, num_local, block_size]
    return tf.slice(window, begin, sizes)


class WithGradientOf(Op):
    """Returns y, and passes its gradient to x.

    The inputs are x, y and `order`, where y is x reordered along a dimension: y[i] =
    x[order[i]]. So `MergeSplit`, which computes y, needs no gradient.

    Attributes:
      dim: the name of the dimension along which x is reordered.
      blocks: the number of blocks of `dim`.
      back: whether y is instead x with its reordering undone: y[order[i]] = x[i].
    """

    dim: str
    blocks: int
    back: bool = False
    # The attributes (dim, blocks), and the shapes of x, y and order.
    conformance_samples = (
        Sample(("d", 2), ("b:2;d:4", "b:2;d:4", "int b:2;d:4"), gradient=False),
    )

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
      x: a tensor of floats or integers.
      dim: the name of the dimension along which x is sorted.
      blocks: the number of shards of `dim`; it divides the size of `dim`.
      descending: whether the largest comes first.
    """
    x_blocks = _split_into_blocks(x, dim, blocks)
    keys, indices_in_block = apply_all(Sort(ELEMENTS, descending), x_blocks)
    assert x.mesh is not None
    block_index = index_range(x.mesh, Dimension(BLOCKS, blocks))
    indices = indices_in_block + block_index * (x.shape[dim] // blocks)
    keys, indices = _merge_blocks(keys, indices, descending)
    y = reshape(keys, x.shape)
    order = reshape(indices, x.shape)
    return apply(WithGradientOf(dim, blocks), x, y, order), order


def _undo_order(y: Tensor, order: Tensor, dim: str, blocks: int) -> Tensor:
    """Returns x, if y is x reordered along a dimension: y[i] = x[order[i]].

    It sorts y by the keys `order`, which are the indices in x of y's elements.

    Args:
      y: the reordered tensor.
      order: the index in x of each element of y, int32 in the shape of y.
      dim: the name of the dimension.
      blocks: the number of shards of `dim`.
    """
    order_blocks = _split_into_blocks(order, dim, blocks)
    y_blocks = _split_into_blocks(y, dim, blocks)
    keys, indices_in_block = apply_all(Sort(ELEMENTS), order_blocks)
    values = apply(Reorder(ELEMENTS), y_blocks, indices_in_block)
    _, x_blocks = _merge_blocks(keys, values, descending=False)
    x = reshape(x_blocks, y.shape)
    return apply(WithGradientOf(dim, blocks, back=True), y, x, order)


def _split_into_blocks(x: Tensor, dim: str, blocks: int) -> Tensor:
    """Returns x [..., dim, ...] as [..., BLOCKS, ELEMENTS, ...]."""
    elements = x.shape[dim] // blocks
    return unflatten(x, dim, [Dimension(BLOCKS, blocks), Dimension(ELEMENTS, elements)])


def _merge_blocks(
    keys: Tensor, values: Tensor, descending: bool
) -> tuple[Tensor, Tensor]:
    """Returns keys sorted over all blocks, and values in the same order.

    Args:
      keys: the keys [..., BLOCKS, ELEMENTS, ...], sorted within each block.
      values: the values, in the shape of the keys.
      descending: whether the largest key comes first.
    """
    num_blocks = keys.shape[BLOCKS]
    # Two blocks are sorted by one merge.
    num_iterations = num_blocks if num_blocks > 2 else 1
    for iteration in range(num_iterations):
        is_odd = iteration % 2 == 1
        merge = MergeSplit(BLOCKS, ELEMENTS, odd=is_odd, descending=descending)
        keys, values = apply_all(merge, keys, values)
    return keys, values
