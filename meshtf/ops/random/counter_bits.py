"""A counter-based random generator: 32 bits as a hash of (key, global index).

Each index i_d of dimension d has two words of 32 bits, word_a and word_b, hashes of the key,
d and i_d. They are computed once per index, in 1-D tensors. For each element, the words of
its indices are added up, and the two sums are mixed:

    a = sum_d word_a(i_d)      b = sum_d word_b(i_d)      bits = mix(a, b)

With one word per index, two of 250,000 indices would almost surely have the same word, and
so the same bits. With two words, they almost surely do not. All arithmetic is in uint32,
since TensorFlow runs int32 ops of a GPU on the host. On one CPU core a million numbers take
5 ms op by op and 1.3 ms compiled by XLA; tf.random.stateless_uniform takes 6 ms.

In eager mode NumPy computes keys and words. On a CPU it computes the elements as well, in
blocks that fit the cache, which is faster than TensorFlow's ops one by one.

    key = random_key([seed])                                # seed: int32 []
    words = index_words(context, ("batch", "length"), key)
    bits = map_elements(mix, words, sizes=[8, 4])           # uint32 [batch, length]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import LocalContext
from meshtf.ops.common.batch_dimensions import Strided
from meshtf.ops.common.trace_cache import constant

_PACKET = 16  # the number of floats in the widest vector register
_BLOCK = 1 << 16  # elements of a block: a few such arrays fit a core's cache
_GOLDEN_RATIO = 0x9E3779B9  # 2**32 / golden ratio, as in Weyl sequences
# Constants that are added to the hashes of word_a and of word_b, so that these differ.
_SALT = np.array([[0x68E31DA4], [0xB5297A4D]], np.uint32)

# The list of all word_a, and that of all word_b: a 1-D tensor or array for each dimension.
Words = tuple[list[Any], list[Any]]


# How the indices of a dimension that counts examples of a microbatch map to those of the batch,
# and the index of the microbatch, int32 [].
IndexStride = tuple[Strided, Any]

_NO_STRIDES: Mapping[str, IndexStride] = {}


def random_key(seeds: Sequence[Any]) -> Any:
    """Returns the key of scalar int32 seeds, uint32 [2, 1]: a word for word_a and another
    one for word_b.

    It is a NumPy array in eager mode.
    """
    key: Any = np.array([[0], [_GOLDEN_RATIO]], np.uint32)
    for seed in seeds:
        # Without the constant, a seed of 0 would leave a key of 0 unchanged.
        key = _avalanche(_as_uint32(seed) + key) ^ np.uint32(0x85EBCA6B)
    return _avalanche(key)


def index_words(
    context: LocalContext,
    names: Sequence[str],
    key: Any,
    strides: Mapping[str, IndexStride] = _NO_STRIDES,
    input_indices: Mapping[str, Any] = _NO_STRIDES,
) -> Words:
    """Returns the two words of each index of each dimension, uint32.

    They are NumPy arrays if the key is one.

    Args:
      context: the sizes and offsets of this device's shard.
      names: the names of the dimensions; without any, a scalar has one index.
      key: the result of `random_key`.
      strides: the strides of dimensions that count examples of a microbatch, by name.
      input_indices: the indices of dimensions whose indices stand for others, int32 [n], by
        name.
    """
    if names:
        indices = [
            _distinct_indices(
                context, name, dim_index, strides.get(name), input_indices.get(name)
            )
            for dim_index, name in enumerate(names)
        ]
        sizes = [index.shape[0] for index in indices]
    else:
        sizes = [1]
        indices = [_zero_index()]
    if isinstance(key, np.ndarray):
        return _array_words(indices, key, sizes)
    return _tensor_words(context, indices, key, sizes)


def _array_words(indices: list[Any], key: Any, sizes: Sequence[int]) -> Words:
    """Returns the result of `index_words` as NumPy arrays.

    Args:
      indices: the distinct indices of each dimension, uint32 [size].
      key: the result of `random_key`, uint32 [2, 1].
      sizes: the size of each dimension.
    """
    index = np.concatenate(indices)
    hashes = _avalanche(index + key)  # [2, sum of sizes]
    # Each row is hashed once more, with the other word of the key.
    words_a, words_b = _avalanche(hashes + key[::-1] + _SALT)
    *ends, _total = np.cumsum(sizes)
    split_a = np.split(words_a, ends)
    split_b = np.split(words_b, ends)
    return split_a, split_b


def _tensor_words(
    context: LocalContext, indices: list[Any], key: Any, sizes: Sequence[int]
) -> Words:
    """Returns the result of `index_words` as tensors; the other arguments are those of
    `_array_words`.
    """
    if len(indices) > 1:
        index = tf.concat(indices, axis=0)
    else:
        index = indices[0]
    hashes = _avalanche(index + key)
    words = _avalanche(hashes + tf.reverse(key, [0]) + _SALT)
    # Otherwise XLA would hash the key and the indices anew for each element.
    words_a, words_b = tf.unstack(context.stored(words))
    if len(sizes) == 1:
        return [words_a], [words_b]
    return tf.split(words_a, sizes), tf.split(words_b, sizes)


def map_elements(
    function: Callable[[Any, Any], Any], words: Words, sizes: Sequence[int]
) -> Any:
    """Returns function(a, b) for the sums a and b of the words of each element.

    Args:
      function: an elementwise function of two NumPy arrays or of two tensors.
      words: the result of `index_words`.
      sizes: the shape of the result.
    """
    words_a, words_b = words
    if isinstance(words_a[0], np.ndarray):
        default_device = tf.constant(0.0).device
        if "CPU" in default_device:
            array = _map_blocks(function, words)
            return tf.convert_to_tensor(array.reshape(sizes))
        words_a = list(map(tf.constant, words_a))
        words_b = list(map(tf.constant, words_b))
    a, b = element_sums((words_a, words_b))
    return tf.reshape(function(a, b), sizes)


def element_sums(words: Words) -> tuple[Any, Any]:
    """Returns the sums a and b of the words of each element: two 1-D or 2-D tensors with
    the elements in row-major order.
    """
    words_a, words_b = words
    return _outer_sum(words_a), _outer_sum(words_b)


def mix_high(a: Any, b: Any) -> Any:
    """Returns 32 bits from two words; only the upper 16 bits are as random as those of `mix`.

    The shifts and factors are those of the hash lowbias32 (Chris Wellons, "Prospecting for
    hash functions", 2018).
    """
    h = _shift_right(a, 16)
    h ^= a  # in place for NumPy, a new tensor for TensorFlow
    h *= _constant_for(h, 0x7FEB352D)
    h += b
    h ^= _shift_right(h, 15)
    h *= _constant_for(h, 0x846CA68B)
    return h


def mix(a: Any, b: Any) -> Any:
    """Returns 32 random bits from two words."""
    h = mix_high(a, b)
    h ^= _shift_right(h, 16)
    return h


def upper_bits(bits: Any, count: int) -> Any:
    """Returns the upper `count` bits, at most 31, as int32."""
    bits = _shift_right(bits, 32 - count)
    if isinstance(bits, np.ndarray):
        return bits.view(np.int32)
    return tf.bitcast(bits, tf.int32)


def by_packets(function: Callable[..., Any], *xs: Any) -> Any:
    """Returns function(*xs), computed so that equal elements of the inputs give equal
    results at every index.

    TensorFlow computes the elements after the last full vector register with other code,
    whose logarithms and cosines differ in the last bit. So the inputs are padded to full
    registers.

    Args:
      function: an elementwise function of TensorFlow.
      *xs: tensors or NumPy arrays of one shape; the result is of the same kind.
    """
    if isinstance(xs[0], np.ndarray):
        # Not NumPy's logarithms and cosines: their last bits differ from TensorFlow's.
        return by_packets(function, *map(tf.convert_to_tensor, xs)).numpy()
    shape = xs[0].shape
    size = shape.num_elements()
    padding = -size % _PACKET
    if not padding:
        return function(*xs)
    padded_xs = [tf.pad(tf.reshape(x, [size]), [[0, padding]]) for x in xs]
    y = function(*padded_xs)
    return tf.reshape(y[:size], shape)


def _distinct_indices(
    context: LocalContext,
    name: str,
    dim_index: int,
    stride: IndexStride | None,
    input_indices: Any,
) -> Any:
    """Returns the indices in the batch of the local elements of a dimension, uint32 [size].

    A constant that depends on `dim_index` is added, so that equal indices of two dimensions
    differ.

    Args:
      context: the sizes and offsets of this device's shard.
      name: the name of the dimension.
      dim_index: the index of the dimension in the list of dimensions.
      stride: the stride of a dimension that counts examples of a microbatch, or None.
      input_indices: the indices themselves, int32 [n]; None: those of the shard.
    """
    if input_indices is None:
        index = _shard_indices(context, name)
    else:
        index = _array_if_eager(input_indices)
    if stride is not None:
        mapping, microbatch = stride
        index = mapping.in_batch(index, _array_if_eager(microbatch))
    constant = np.uint32(_GOLDEN_RATIO * dim_index & 0xFFFFFFFF)
    return _as_uint32(index) + constant


def _shard_indices(context: LocalContext, name: str) -> Any:
    """Returns the global indices of the local elements of a dimension, int32 [size]."""
    size = context.local_size(name)
    if tf.executing_eagerly():
        index = np.arange(size, dtype=np.int32)
    else:
        index = tf.range(size)
    if context.num_shards(name) > 1:
        index = index + _array_if_eager(context.shard_offset(name))
    return index


def _array_if_eager(x: Any) -> Any:
    """Returns an eager tensor as a NumPy array, and a tensor of a graph as it is."""
    return x.numpy() if tf.executing_eagerly() else x


def _zero_index() -> Any:
    """Returns the only index of a scalar, uint32 [1]."""
    index = np.zeros([1], np.uint32)
    if tf.executing_eagerly():
        return index
    return tf.constant(index)


def _as_uint32(x: Any) -> Any:
    """Returns the bits of int32 numbers as uint32; a NumPy array in eager mode."""
    if tf.executing_eagerly():
        return np.asarray(x).view(np.uint32)
    return tf.bitcast(x, tf.uint32)


def _outer_sum(words: list[Any]) -> Any:
    """Returns the sum of the words of all dimensions, for all combinations of indices.

    Args:
      words: the words of each dimension, uint32 [size].

    Returns:
      [product of the sizes of all dimensions but the last, size of the last].
    """
    total = words[0]
    for dim_words in words[1:]:
        library = np if isinstance(dim_words, np.ndarray) else tf
        total = library.reshape(total, [-1, 1]) + dim_words
    return total


def _map_blocks(function: Callable[[Any, Any], Any], words: Words) -> Any:
    """Returns function(a, b) for all elements, computed in blocks of NumPy arrays: [n, size
    of the last dimension], where n is the product of the other sizes.
    """
    words_a, words_b = words
    a_leading, a_last = _leading_sums_and_last(words_a)
    b_leading, b_last = _leading_sums_and_last(words_b)
    block_size = max(1, _BLOCK // a_last.size)  # in rows

    def block(start: int) -> Any:
        """Returns the rows of the block that starts at row `start`."""
        stop = start + block_size
        a = a_leading[start:stop] + a_last
        b = b_leading[start:stop] + b_last
        return np.asarray(function(a, b))

    # The first block has the data type of the result.
    first_block = block(0)
    result = np.empty([len(a_leading), *first_block.shape[1:]], first_block.dtype)
    result[:block_size] = first_block
    for start in range(block_size, len(a_leading), block_size):
        result[start : start + block_size] = block(start)
    return result


def _leading_sums_and_last(words: list[Any]) -> tuple[Any, Any]:
    """Returns the outer sum of all dimensions but the last, [n, 1], and the words of the
    last dimension, [size]. A single dimension counts as leading.
    """
    if len(words) == 1:
        return words[0].reshape(-1, 1), np.zeros([1], np.uint32)
    leading_sums = _outer_sum(words[:-1])
    return leading_sums.reshape(-1, 1), words[-1]


def _avalanche(h: Any) -> Any:
    """Returns a hash of 32 bits, in which each bit depends on all bits of h."""
    return mix(h, np.uint32(0))


def _shift_right(h: Any, count: int) -> Any:
    """Returns uint32 numbers shifted right by `count` bits."""
    if isinstance(h, np.ndarray):
        return h >> np.uint32(count)
    return tf.bitwise.right_shift(h, _constant_for(h, count))


def _constant_for(h: Any, value: int) -> Any:
    """Returns a uint32 number to compute with h: a tensor if h is one, else a NumPy number."""
    if isinstance(h, np.ndarray | np.generic):
        return np.uint32(value)
    return constant(value, tf.uint32)
