"""Einsum: products of tensors, summed over the names that the output lacks.

    h = mtf.einsum([x, w], "batch;d_ff")         # x[batch, d_model] w[d_model, d_ff]

A dimension of the output that no input has is an error, not a silent broadcast: see
`broadcast`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError, near_misses
from meshtf.graph import Op, Role, Sample, Spec, Tensor, apply
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, Names, Shape, names_of
from meshtf.names.arguments import as_sequence
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.elementwise.complex import conj
from meshtf.ops.linear.contraction import contract
from meshtf.ops.reductions.broadcast import broadcast


class Einsum(Op):
    """The product of the inputs, summed over the names that the output lacks."""

    names: tuple[str, ...]
    linearity = "each"
    samples = (
        Sample((("b", "o"),), ("b:4;h:8", "h:8;o:8")),
        Sample((("o", "b"),), ("b:4;h:8", "h:8;o:8")),
        Sample((("h", "o"),), ("b:4;h:8", "b:4;o:8")),
        Sample((("h",),), ("b:4;h:8",)),
        Sample((("b", "o"),), ("complex b:4;h:8", "complex h:8;o:8")),
        Sample((("b", "n", "m"),), ("complex b:2;k:2;n:4", "complex b:2;m:4;k:2")),
        Sample((("b", "o"),), ("b:4;h:3", "h:3;o:5")),
        Sample(((),), ("b:4", "b:4")),
        Sample((("b", "n", "m"),), ("b:2;n:4;k:2", "b:2;m:4;k:2")),
        Sample((("b", "o"),), ("b:4;h:4", "h:4;k:2", "k:2;o:4")),
        Sample((("b", "l", "n", "k"),), ("b:2;l:4;d:4", "d:4;n:2;k:3")),
        Sample((("d", "n", "k"),), ("b:2;l:4;d:4", "b:2;l:4;n:2;k:3")),
        Sample((("b", "l", "d"),), ("b:2;l:4;n:2;k:3", "d:4;n:2;k:3")),
    )

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        sizes = _sizes_by_name(xs)
        dtypes = {x.dtype for x in xs}
        if len(dtypes) > 1:
            raise DTypeError(
                f"inputs of {' and '.join(sorted(dtypes))} in one einsum: cast one of "
                "them with mtf.cast."
            )
        for name in self.names:
            if name not in sizes:
                close = near_misses(name, sizes)
                raise ShapeError(
                    f'no input has the dimension "{name}" of the output.'
                    + (f" Did you mean {close}?" if close else "")
                )
        return (Spec(Shape(Dimension(n, sizes[n]) for n in self.names), xs[0].dtype),)

    def role(self, factor: str) -> Role:
        return Role.MAP if factor in self.names else Role.SUM

    def local(self, context: Any, *xs: Any) -> tuple[Any, ...]:
        names = [s.names for s in context.inputs]
        if len(xs) == 2 and all(
            n in self.names or (n in names[0] and n in names[1])
            for x in names
            for n in x
        ):
            return (contract(xs[0], names[0], xs[1], names[1], self.names, context),)
        letters: dict[str, str] = {}
        terms = [
            "".join(letters.setdefault(n, chr(97 + len(letters))) for n in x)
            for x in names
        ]
        output = "".join(letters[n] for n in self.names)
        y = tf.einsum(",".join(terms) + "->" + output, *map(widen, xs))
        return (tf.cast(y, xs[0].dtype),)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        conjugates = [conj(x) for x in xs]
        return [
            _towards(x, [dy, *conjugates[:i], *conjugates[i + 1 :]])
            for i, x in enumerate(xs)
        ]

    def flops(self, *xs: Spec) -> int:
        sizes = {d.name: d.size for x in xs for d in x.shape}
        return 2 * math.prod(sizes.values()) * max(1, len(xs) - 1)


def einsum(xs: Sequence[Any], output_shape: Names) -> Tensor:
    """Returns the product of tensors, summed over all names that the output lacks.

    Args:
      xs: one or more tensors or variables.
      output_shape: the names of the output in order, as "batch;d_ff", a list or a
        Shape.

    Raises:
      ShapeError: inputs are joined by a name of two sizes, or the output has a name of
        its own.
      DTypeError: the inputs have different data types.
    """
    xs = as_sequence("xs", xs, "a list of tensors")
    shapes = [as_tensor("xs", x).shape for x in xs]
    return apply(Einsum(names_of(output_shape, *shapes, argument="output_shape")), *xs)


def matmul(x: Any, y: Any) -> Tensor:
    """Returns the product summed over the one name that both have: [a, k], [k, b] ->
    [a, b].
    """
    x, y = as_tensor("x", x), as_tensor("y", y)
    joint = [n for n in x.shape.names if n in y.shape]
    if len(joint) != 1:
        raise ShapeError(
            f"matmul sums over the one name that both have; {x.shape!r} and "
            f"{y.shape!r} share {len(joint)}. Use mtf.einsum."
        )
    return einsum(
        [x, y], [n for n in (*x.shape.names, *y.shape.names) if n not in joint]
    )


def _sizes_by_name(xs: Sequence[Spec]) -> dict[str, int]:
    """Returns the size of each name. Raises ShapeError where an input has another."""
    sizes: dict[str, int] = {}
    for x in xs:
        for d in x.shape:
            if sizes.setdefault(d.name, d.size) != d.size:
                raise ShapeError(
                    f'"{d.name}" has size {sizes[d.name]} in one input and {d.size} in '
                    "another: a name that joins inputs has one size. Rename one of them."
                )
    return sizes


def _towards(x: Tensor, factors: list[Any]) -> Tensor:
    """The product of factors with the names of x; names that no factor has are
    repeated.
    """
    there = {n for f in factors for n in f.shape.names}
    have = [n for n in x.shape.names if n in there]
    dx = einsum(factors, have)
    return dx if len(have) == len(x.shape) else broadcast(dx, x.shape)
