"""Attention of one block of queries after another, by TensorFlow ops that run on any device.

    y, log_sums = attend(dims, mask, 256, 0, q, k, v)

Only the scores of a block are in memory at a time. (Rabe and Staats, 2021, arXiv:2112.05682.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.names import accumulation_dtype
from meshtf.ops.attention.attention_dims import (
    AttentionDims,
    Mask,
    Names,
    Result,
    WeightDropout,
)
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.linear.contraction import contract
from meshtf.ops.shapes.reshape import arrange

# The elements of the scores of a block, at most: 512 MiB in float32. Each further block costs
# time, as tensors are copied into blocks.
_MAX_SCORES = 2**27
_MASKED_SCORE = -1e9  # finite, so that no query has NaN


class BlockOutputs(NamedTuple):
    """What is computed for each block of queries.

    Attributes:
      sizes: the size of each dimension of all tensors.
      names_and_dtypes: of each output the names of its dimensions, and its data type.
    """

    sizes: dict[str, int]
    names_and_dtypes: list[tuple[Names, Any]]


def scores_dtype(q: Any) -> Any:
    """Returns the data type of the scores of queries q."""
    return tf.as_dtype(accumulation_dtype(q.dtype.name))


def block_size(length: int, scores_of_query: int, largest: int) -> int:
    """Returns the number of queries of a block, a divisor of their number.

    Args:
      length: the number of queries.
      scores_of_query: the number of scores of a query, in all examples and heads.
      largest: the largest number of queries of a block; 0: as many as memory allows.
    """
    largest = largest or max(_MAX_SCORES // scores_of_query, 1)
    return next(
        size for size in range(min(length, largest), 0, -1) if not length % size
    )


def attend(
    dims: AttentionDims,
    mask: Mask,
    block: int,
    offset: Any,
    inputs: Sequence[Any],
    dropout: WeightDropout | None,
) -> tuple[Any, Any]:
    """Returns (y, log_sums): see `FusedAttention`.

    Args:
      dims: the names of the dimensions.
      mask: which keys each query attends to.
      block: the largest number of queries of a block; 0: as many as memory allows.
      offset: by how much the first query comes after the first key.
      inputs: q, k, v and the bias, TensorFlow tensors.
      dropout: the dropout of the weights; None: there is none.
    """
    q, k, v, *biases = inputs

    def attend_block(begin: Any, blocks: Sequence[Any], _: Any) -> Any:
        (q_block,), bias, dropout_of_block = _of_block(dims, biases, dropout, blocks, 1)
        scores = _scores(dims, mask, offset + begin, q_block, k, bias)
        largest = tf.reduce_max(scores, axis=-1, keepdims=True)
        exponentials = tf.exp(scores - largest)
        total = tf.reduce_sum(exponentials, axis=-1, keepdims=True)
        weights = tf.cast(exponentials / total, q.dtype)
        if dropout_of_block is not None:
            weights = dropout_of_block.dropped(weights, dims.scores)
        y = contract(weights, dims.scores, v, dims.value_names, dims.y_names)
        log_sums = tf.squeeze(largest + tf.math.log(total), axis=-1)
        return [y, log_sums], []

    split = [(q, dims.q), *_further_splits(dims, biases, dropout)]
    outputs = BlockOutputs(
        dims.sizes(q, k, v), [(dims.y_names, q.dtype), (dims.queries, scores_dtype(q))]
    )
    (y, log_sums), _ = _over_blocks(dims, block, attend_block, split, outputs, [])
    return y, log_sums


def gradient(
    dims: AttentionDims,
    mask: Mask,
    block: int,
    offset: Any,
    inputs: Sequence[Any],
    result: Result,
    bias_gradient: bool,
    dropout: WeightDropout | None,
) -> tuple[Any, ...]:
    """Returns the cotangents of q, k and v, and of the bias if it has one.

    Args:
      dims: the names of the dimensions.
      mask: which keys each query attends to.
      block: the largest number of queries of a block; 0: as many as memory allows.
      offset: by how much the first query comes after the first key.
      inputs: q, k, v and the bias.
      result: what the forward pass has computed, and dy.
      bias_gradient: whether the bias has a gradient.
      dropout: the dropout of the weights; None: there is none.
    """
    q, k, v, *biases = inputs
    bias_names = dims.bias or ()
    splits_bias = dims.length in bias_names

    def block_gradient(begin: Any, blocks: Sequence[Any], sums: Any) -> Any:
        tensors, bias, dropout_of_block = _of_block(dims, biases, dropout, blocks, 4)
        q_block, y, log_sums, dy = tensors
        scores = _scores(dims, mask, offset + begin, q_block, k, bias)
        weights = tf.exp(scores - log_sums[..., tf.newaxis])
        d_weights = contract(dy, dims.y_names, v, dims.value_names, dims.scores)
        low_weights = tf.cast(weights, q.dtype)
        if dropout_of_block is not None:
            d_weights = dropout_of_block.dropped(d_weights, dims.scores)
            low_weights = dropout_of_block.dropped(low_weights, dims.scores)
        of_query = tf.reduce_sum(widen(dy) * widen(y), axis=-1, keepdims=True)
        d_scores = weights * (widen(d_weights) - of_query)
        low_d_scores = tf.cast(d_scores, q.dtype)
        dq = contract(low_d_scores, dims.scores, k, dims.k, dims.q)
        terms = [
            contract(low_d_scores, dims.scores, q_block, dims.q, dims.k),
            contract(low_weights, dims.scores, dy, dims.y_names, dims.value_names),
        ]
        outputs = [dq]
        if bias_gradient:
            dims_of_bias = [name for name in dims.scores if name in bias_names]
            d_bias = arrange(
                _summed(d_scores, dims.scores, bias_names), dims_of_bias, bias_names
            )
            (outputs if splits_bias else terms).append(d_bias)
        return outputs, [total + widen(term) for total, term in zip(sums, terms)]

    split = [
        (q, dims.q),
        (result.y, dims.y_names),
        (result.log_sums, dims.queries),
        (result.dy, dims.y_names),
        *_further_splits(dims, biases, dropout),
    ]
    outputs = BlockOutputs(dims.sizes(q, k, v), [(dims.q, q.dtype)])
    totals = [k, v]
    if bias_gradient and splits_bias:
        outputs.names_and_dtypes.append((bias_names, scores_dtype(q)))
    elif bias_gradient:
        totals.append(biases[0])
    zeros = [tf.zeros_like(widen(x)) for x in totals]
    stacked, sums = _over_blocks(dims, block, block_gradient, split, outputs, zeros)
    cotangents = [stacked[0], *sums[:2], *stacked[1:], *sums[2:]]
    return tuple(tf.cast(dx, x.dtype) for dx, x in zip(cotangents, inputs))


def _further_splits(
    dims: AttentionDims, biases: Sequence[Any], dropout: WeightDropout | None
) -> list[tuple[Any, Names]]:
    """Returns what else has the positions of queries, with the names of its dimensions: a bias, and
    the random words of a mask.
    """
    split = []
    if dims.bias is not None and dims.length in dims.bias:
        split.append((biases[0], dims.bias))
    if dropout is not None and dims.length in dropout.words:
        split += [(x, (dims.length,)) for x in dropout.words[dims.length]]
    return split


def _of_block(
    dims: AttentionDims,
    biases: Sequence[Any],
    dropout: WeightDropout | None,
    blocks: Sequence[Any],
    count: int,
) -> tuple[Sequence[Any], Any, WeightDropout | None]:
    """Returns the first tensors of a block, its bias and its dropout.

    Args:
      dims: the names of the dimensions.
      biases: the bias of all queries, if there is one.
      dropout: the dropout of the weights of all queries; None: there is none.
      blocks: the tensors of a block, the last of which are those of `_further_splits`.
      count: the number of the first tensors.
    """
    further = list(blocks[count:])
    bias = biases[0] if biases else None
    if dims.bias is not None and dims.length in dims.bias:
        bias = further.pop(0)
    if dropout is not None and further:
        a, b = further
        words = {**dropout.words, dims.length: (a, b)}
        dropout = dropout._replace(words=words)
    return blocks[:count], bias, dropout


def _scores(
    dims: AttentionDims, mask: Mask, begin: Any, q: Any, k: Any, bias: Any
) -> Any:
    """Returns the scores of a block of queries, float32 [*batch, *heads, block, kv_length].

    Args:
      dims: the names of the dimensions.
      mask: which keys each query attends to.
      begin: by how much the first query of the block comes after the first key.
      q: the queries of the block.
      k: the keys.
      bias: the bias of these queries; None: there is none.
    """
    scores = widen(contract(q, dims.q, k, dims.k, dims.scores))
    if bias is not None:
        assert dims.bias is not None
        names = [name for name in dims.scores if name in dims.bias]
        sizes = dict(zip(dims.bias, bias.shape))
        ordered = arrange(bias, dims.bias, names)
        shape = [sizes.get(name, 1) for name in dims.scores]
        scores += tf.cast(tf.reshape(ordered, shape), scores.dtype)
    if not mask.causal:
        return scores
    axis = dims.queries.index(dims.length)
    queries = begin + tf.range(scores.shape[axis])
    distances = queries[:, tf.newaxis] - tf.range(scores.shape[-1])
    visible = distances >= 0
    if mask.window:
        visible &= distances < mask.window
    shape = [1] * len(scores.shape)
    shape[axis], shape[-1] = visible.shape
    return tf.where(tf.reshape(visible, shape), scores, _MASKED_SCORE)


def _summed(x: Any, names: Names, kept_names: Names) -> Any:
    """Returns x summed over the names that `kept_names` lacks."""
    axes = [axis for axis, name in enumerate(names) if name not in kept_names]
    return tf.reduce_sum(x, axis=axes) if axes else x


def _over_blocks(
    dims: AttentionDims,
    largest: int,
    function: Callable[[Any, Sequence[Any], Sequence[Any]], Any],
    split: Sequence[tuple[Any, Names]],
    outputs: BlockOutputs,
    sums: list[Any],
) -> tuple[list[Any], list[Any]]:
    """Returns the outputs for all queries, and the last sums.

    Args:
      dims: the names of the dimensions.
      largest: the largest number of queries of a block; 0: as many as memory allows.
      function: a function of the index of the first query of a block, of the blocks of the tensors
        in `split`, and of the sums so far; it returns outputs, and the next sums.
      split: tensors that have the positions of queries, with the names of their dimensions.
      outputs: what the outputs are.
      sums: the first sums.
    """
    x, names = split[0]
    length = int(x.shape[names.index(dims.length)])
    of_query = math.prod(outputs.sizes[n] for n in dims.scores if n != dims.length)
    block = block_size(length, of_query, largest)
    if block == length:
        return function(0, [x for x, _ in split], sums)
    count = length // block
    # [blocks, ..., block, ...]
    stacked = [_into_blocks(x, names.index(dims.length), count) for x, names in split]

    def body(i: Any, arrays: Any, sums: Any) -> Any:
        blocks = [x[i] for x in stacked]
        ys, sums = function(i * block, blocks, sums)
        arrays = [array.write(i, y) for array, y in zip(arrays, ys)]
        return i + 1, arrays, sums

    sizes = {**outputs.sizes, dims.length: block}
    arrays = [
        tf.TensorArray(dtype, size=count, element_shape=[sizes[name] for name in names])
        for names, dtype in outputs.names_and_dtypes
    ]
    _, arrays, sums = tf.while_loop(
        lambda i, *_: i < count,
        body,
        [tf.constant(0), arrays, sums],
        parallel_iterations=1,
    )
    return [
        _out_of_blocks(array.stack(), names.index(dims.length))
        for array, (names, _) in zip(arrays, outputs.names_and_dtypes)
    ], sums


def _into_blocks(x: Any, axis: int, count: int) -> Any:
    """Returns x with an axis divided into so many blocks, of which there is a first axis."""
    sizes = x.shape.as_list()
    sizes[axis : axis + 1] = [count, sizes[axis] // count]
    order = [axis, *(i for i in range(len(sizes)) if i != axis)]
    return tf.transpose(tf.reshape(x, sizes), order)


def _out_of_blocks(x: Any, axis: int) -> Any:
    """Returns what `_into_blocks` divided."""
    order = [*range(1, axis + 1), 0, *range(axis + 1, len(x.shape))]
    y = tf.transpose(x, order)
    sizes = y.shape.as_list()
    return tf.reshape(
        y, [*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :]]
    )
