"""The judge: the vocabulary of drawn programs once more, in plain TensorFlow on one
device.

A drawn program is Python source that says `mtf`. With this vocabulary in its place the
program runs op by op: loops are Python's, nothing is sharded, recorded or recomputed,
and gradients are the tape's. The library is asked for nothing but random numbers, which
it alone can draw: they come from `draws`, in the order in which the program asks for
them.

Programs of bfloat16 are judged twice, in float64 and in float32 with each result
rounded: how much the two differ says how much rounding may change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

draws: list[
    tuple[Any, tuple[str, ...]]
] = []  # random numbers with names, the next one first
computed_in = ["float64"]  # what bfloat16 is computed in


class Named:
    """A tensor with a name for each dimension."""

    def __init__(self, value: Any, dims: Sequence[str]) -> None:
        self.value = _widened(value)
        self.dims = tuple(dims)

    def tensor(self) -> Named:
        """Returns itself; of a variable, its present value."""
        return self

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each dimension."""
        return dict(zip(self.dims, self.value.shape))

    shape = sizes

    def __add__(self, other: Any) -> Named:
        return binary(tf.add, self, other)

    def __sub__(self, other: Any) -> Named:
        return binary(tf.subtract, self, other)

    def __mul__(self, other: Any) -> Named:
        return binary(tf.multiply, self, other)

    def __truediv__(self, other: Any) -> Named:
        return binary(tf.divide, self, other)

    def __neg__(self) -> Named:
        return Named(-self.value, self.dims)

    def __gt__(self, other: Any) -> Named:
        return binary(tf.greater, self, other)

    def __radd__(self, other: Any) -> Named:
        return self + other

    def __rmul__(self, other: Any) -> Named:
        return self * other


def _widened(x: Any) -> Any:
    """Returns bfloat16 in the type that it is computed in; float32 as bfloat16 holds it
    then.
    """
    dtype = getattr(x, "dtype", None)
    if dtype == tf.bfloat16:
        return tf.cast(x, computed_in[0])
    if dtype == tf.float32 == computed_in[0]:
        return x + tf.stop_gradient(tf.cast(tf.cast(x, tf.bfloat16), dtype) - x)
    return x


def plain(x: Any) -> Named:
    """Returns what a program means by a tensor, a variable or a number."""
    return x.tensor() if hasattr(x, "tensor") else Named(x, ())


def names(text: str | Sequence[str]) -> list[str]:
    """Returns the names in "batch:4;d:2", "batch;d" or a list."""
    if not isinstance(text, str):
        return list(text)
    return [item.split(":")[0].strip() for item in text.split(";") if item.strip()]


def sizes(text: str) -> list[int]:
    """Returns the sizes in "batch:4;d:2"."""
    return [int(item.split(":")[1]) for item in text.split(";") if item.strip()]


def ordered(x: Any, dims: Sequence[str]) -> Any:
    """Returns the values of x with these dimensions; those that it lacks have
    size 1.
    """
    x = plain(x)
    present = [d for d in dims if d in x.dims]
    value = (
        tf.transpose(x.value, [x.dims.index(d) for d in present]) if x.dims else x.value
    )
    for axis, dim in enumerate(dims):
        if dim not in x.dims:
            value = tf.expand_dims(value, axis) if x.dims else value
    return value


def binary(fn: Any, a: Any, b: Any) -> Named:
    """Returns fn of two tensors, which are broadcast by name."""
    a = plain(a)
    b = plain(b)
    dims = [*a.dims, *(d for d in b.dims if d not in a.dims)]
    kind = next(x.value.dtype for x in (a, b) if hasattr(x.value, "dtype"))
    a, b = (
        x if hasattr(x.value, "dtype") else Named(tf.constant(x.value, kind), ())
        for x in (a, b)
    )
    return Named(fn(ordered(a, dims), ordered(b, dims)), dims)


def along(fn: Any, x: Any, dim: str) -> Named:
    """Returns fn(x, axis) with the same dimensions."""
    x = plain(x)
    return Named(fn(x.value, x.dims.index(dim)), x.dims)


def reduced(fn: Any, x: Any, dims: str | Sequence[str] | None) -> Named:
    """Returns fn(x, axis=axes) without these dimensions; None: without any."""
    x = plain(x)
    gone = list(x.dims) if dims is None else names(dims)
    return Named(
        fn(x.value, axis=[x.dims.index(d) for d in gone]),
        [d for d in x.dims if d not in gone],
    )


def rows(x: Any, dim: str) -> list[Named]:
    """Returns the entries of a dimension, without it."""
    x = plain(x)
    return [
        Named(y, [d for d in x.dims if d != dim])
        for y in tf.unstack(x.value, axis=x.dims.index(dim))
    ]


def stacked(xs: Sequence[Any], dim: str) -> Named:
    """Returns tensors along a new dimension, the first one."""
    first = plain(xs[0])
    return Named(tf.stack([ordered(x, first.dims) for x in xs]), [dim, *first.dims])


def next_draw() -> Named:
    """Returns the numbers that the library drew here."""
    value, dims = draws.pop(0)
    return Named(tf.constant(value), dims)


def leaves(nest: Any) -> Iterator[Any]:
    """Yields the tensors of a nest."""
    return (x for x in tf.nest.flatten(nest) if x is not None)
