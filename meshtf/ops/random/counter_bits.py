"""The hash behind random numbers: 32 bits of (key, global index), in TensorFlow ops of
one device.

Each index i_d of dimension d gets two 32-bit words, of 1-D tensors; an element adds up
the words of its indices and mixes the two sums once, the only work on whole tensors:

    a = sum_d word0(i_d)      b = sum_d word1(i_d)      bits = mix(a, b)

With one word per dimension two of 250,000 rows would be alike almost surely; with two,
never. All is uint32: TensorFlow runs int32 arithmetic of a GPU on its host. On one CPU
core a million take 5 ms op by op and 1.3 ms compiled by XLA, against 6 ms of
TensorFlow's own stateless numbers. Outside of functions NumPy makes keys and words, and
on a CPU the elements as well, by blocks that stay in the cache, which takes less time
than TensorFlow's ops one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import LocalContext

_PACKET = 16  # floats in the widest vector register
_EMPTY: Mapping[str, tuple[int, int, Any]] = {}
_BLOCK = 1 << 16  # elements of which a few arrays stay in a core's cache


def random_key(seeds: Sequence[Any]) -> Any:
    """Returns the key, uint32 [2, 1], of scalar int32 seeds; of eager ones a NumPy
    array.
    """
    key: Any = np.array([[0], [0x9E3779B9]], np.uint32)
    for seed in seeds:
        key = _avalanche(_unsigned(seed) + key) ^ _number(0x85EBCA6B)
    return _avalanche(key)


def index_words(
    context: LocalContext,
    names: Sequence[str],
    key: Any,
    places: Mapping[str, tuple[int, int, Any]] = _EMPTY,
) -> tuple[list[Any], list[Any]]:
    """Returns the two words of each index of each dimension: two lists of 1-D tensors
    or, for a key that is a NumPy array, of arrays.

    Args:
      context: where it runs.
      names: of the dimensions.
      key: see `random_key`.
      places: (count, inner, number) of dimensions that have but some of the indices of
        the whole: of each `count` blocks of `inner` of them one, the block `number`.
    """
    sizes = [context.local_size(n) for n in names] or [1]
    rows = [_rows(context, n, d, places.get(n)) for d, n in enumerate(names)] or [
        _one_row()
    ]
    salt = np.array([[0x68E31DA4], [0xB5297A4D]], np.uint32)
    if isinstance(key, np.ndarray):
        words = _avalanche(_avalanche(np.concatenate(rows) + key) + key[::-1] + salt)
        ends = np.cumsum(sizes)[:-1]
        return np.split(words[0], ends), np.split(words[1], ends)
    index = tf.concat(rows, 0) if len(rows) > 1 else rows[0]
    one, other = tf.unstack(
        _avalanche(_avalanche(index + key) + tf.reverse(key, [0]) + salt)
    )
    if len(sizes) == 1:
        return [one], [other]
    return tf.split(one, sizes), tf.split(other, sizes)


def of_elements(
    function: Callable[[Any, Any], Any],
    words: tuple[list[Any], list[Any]],
    sizes: Sequence[int],
) -> Any:
    """Returns function(a, b) of the sums of words of all elements, a tensor of these
    sizes.
    """
    if isinstance(words[0][0], np.ndarray):
        if "CPU" in tf.constant(0.0).device:
            return tf.convert_to_tensor(_by_blocks(function, words).reshape(sizes))
        words = [tf.constant(w) for w in words[0]], [tf.constant(w) for w in words[1]]
    return tf.reshape(function(*element_sums(words)), sizes)


def element_sums(words: tuple[list[Any], list[Any]]) -> tuple[Any, Any]:
    """Returns the sums of words for all elements: two 1-D or 2-D tensors in row-major
    order.
    """
    return _grid(words[0]), _grid(words[1])


def mix_high(a: Any, b: Any) -> Any:
    """Returns 32 bits of two words, of which the upper 16 are as good as `mix`'s."""
    h = _right(a, 16)
    h ^= a  # in place for NumPy, and another tensor for TensorFlow
    h *= _number(0x7FEB352D)
    h += b
    h ^= _right(h, 15)
    h *= _number(0x846CA68B)
    return h


def mix(a: Any, b: Any) -> Any:
    """Returns 32 random bits of two words."""
    h = mix_high(a, b)
    h ^= _right(h, 16)
    return h


def upper_bits(bits: Any, count: int) -> Any:
    """Returns the upper `count` bits, at most 31, as int32."""
    bits = _right(bits, 32 - count)
    return (
        bits.view(np.int32)
        if isinstance(bits, np.ndarray)
        else tf.bitcast(bits, tf.int32)
    )


def by_packets(function: Callable[..., Any], *xs: Any) -> Any:
    """Returns function(*xs) of TensorFlow, the same for each element whatever its
    position.

    Logarithms and cosines of TensorFlow differ in the last bit between full vector
    registers and the few elements after the last full one, so none may come after it.
    """
    if isinstance(
        xs[0], np.ndarray
    ):  # NumPy's logarithms and cosines have other last bits
        return by_packets(function, *map(tf.convert_to_tensor, xs)).numpy()
    shape, size = xs[0].shape, xs[0].shape.num_elements()
    short = -size % _PACKET
    if not short:
        return function(*xs)
    y = function(*(tf.pad(tf.reshape(x, [size]), [[0, short]]) for x in xs))
    return tf.reshape(y[:size], shape)


def _rows(
    context: LocalContext, name: str, d: int, place: tuple[int, int, Any] | None
) -> Any:
    """Returns the global indices of one dimension, far from those of the others."""
    eager = tf.executing_eagerly()
    rows = (
        np.arange(context.local_size(name), dtype=np.int32)
        if eager
        else tf.range(context.local_size(name))
    )
    if context.num_shards(name) > 1:
        rows = rows + (
            context.shard_offset(name).numpy() if eager else context.shard_offset(name)
        )
    if place is not None:
        count, inner, number = place
        number = number.numpy() if eager else number
        rows = (
            (rows // inner * count + number) * inner + rows % inner
            if inner > 1
            else (rows * count + number)
        )
    return _unsigned(rows) + _number(0x9E3779B9 * d)


def _one_row() -> Any:
    row = np.zeros([1], np.uint32)
    return row if tf.executing_eagerly() else tf.constant(row)


def _unsigned(x: Any) -> Any:
    """Returns int32 numbers as uint32, of eager tensors in a NumPy array."""
    if tf.executing_eagerly():
        return np.asarray(x).view(np.uint32)
    return tf.bitcast(x, tf.uint32)


def _grid(words: list[Any]) -> Any:
    total = words[0]
    for word in words[1:]:
        total = (np if isinstance(word, np.ndarray) else tf).reshape(
            total, [-1, 1]
        ) + word
    return total


def _by_blocks(
    function: Callable[[Any, Any], Any], words: tuple[list[Any], list[Any]]
) -> Any:
    """Returns function(a, b) of all elements, of NumPy arrays block by block."""
    (a, a_last), (b, b_last) = map(_rows_and_last, words)
    step = max(1, _BLOCK // a_last.size)

    def block(start: int) -> Any:
        rows = slice(start, start + step)
        return np.asarray(function(a[rows] + a_last, b[rows] + b_last))

    first = block(0)
    out = np.empty([len(a), *first.shape[1:]], first.dtype)
    out[:step] = first
    for start in range(step, len(a), step):
        out[start : start + step] = block(start)
    return out


def _rows_and_last(words: list[Any]) -> tuple[Any, Any]:
    """Returns the sums over all dimensions but the last as a column, and the words of
    the last.
    """
    if len(words) == 1:
        return words[0].reshape(-1, 1), np.zeros([1], np.uint32)
    return np.reshape(_grid(words[:-1]), [-1, 1]), words[-1]


def _avalanche(h: Any) -> Any:
    return mix(h, _number(0))


def _number(value: int) -> np.uint32:
    return np.uint32(value & 0xFFFFFFFF)


def _right(h: Any, by: int) -> Any:
    return (
        h >> _number(by)
        if isinstance(h, np.ndarray)
        else tf.bitwise.right_shift(h, _number(by))
    )
