"""Einsum: the product of tensors, summed over the names that the output lacks.

    h = mtf.einsum([x, w], "batch;d_ff")         # x[batch, d_model] w[d_model, d_ff]

A dimension of the output that no input has is an error; `mtf.broadcast` adds dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import (
    ArgumentError,
    DTypeError,
    ShapeError,
    explain_error,
)
from meshtf.graph import (
    Cotangents,
    LocalTensors,
    Op,
    PaddingValue,
    Role,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Dimension, Names, Shape, Source, names_of
from meshtf.names.arguments import as_sequence
from meshtf.names.calls import equation_way_out
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.broadcasting import conflicting_sizes
from meshtf.ops.common.checks import did_you_mean
from meshtf.ops.elementwise.complex import conj
from meshtf.ops.linear.contraction import contract
from meshtf.ops.reductions.broadcast import broadcast


class Einsum(Op):
    """The product of the inputs, summed over the names that the output lacks.

    Attributes:
      names: the names of the output, in order.
    """

    names: tuple[str, ...]
    # If one input is a partial sum (one addend on each device), so is the output.
    linearity = "each"
    # Test inputs: the attribute `names`, then each input's kind of values and shape.
    conformance_samples = (
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

    def output_specs(self, *xs: Spec) -> Specs:
        sizes = _sizes_by_name(xs)
        dtypes = {x.dtype for x in xs}
        if len(dtypes) > 1:
            raise DTypeError(
                f"inputs of {' and '.join(sorted(dtypes))} in one einsum: cast one of "
                "them with mtf.cast."
            )
        for name in self.names:
            if name not in sizes:
                suggestion = did_you_mean(name, sizes)
                raise ShapeError(
                    f'no input has the dimension "{name}" of the output.{suggestion}'
                )
        shape = Shape(Dimension(name, sizes[name]) for name in self.names)
        return (Spec(shape, xs[0].dtype),)

    def role(self, factor: str) -> Role:
        # What sharding `factor`, a dimension of the inputs, does: the output is sharded too,
        # or each shard has a partial sum.
        return Role.MAP if factor in self.names else Role.SUM

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        return None if factor in self.names else 0.0

    def local(self, context: Any, *xs: Any) -> LocalTensors:
        input_names = [shape.names for shape in context.inputs]
        if len(xs) == 2 and self._is_contraction(*input_names):
            x, y = xs
            x_names, y_names = input_names
            z = contract(x, x_names, y, y_names, out_names=self.names, context=context)
            return (z,)
        equation = _equation(input_names, self.names)
        z = tf.einsum(equation, *map(widen, xs))
        return (tf.cast(z, xs[0].dtype),)

    def _is_contraction(self, x_names: Sequence[str], y_names: Sequence[str]) -> bool:
        """Returns whether each name that only one of two inputs has is in the output."""
        only_in_one = set(x_names) ^ set(y_names)
        return only_in_one <= set(self.names)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        conjugates = [conj(x) for x in xs]
        dxs = []
        for i, x in enumerate(xs):
            other_inputs = [*conjugates[:i], *conjugates[i + 1 :]]
            dxs.append(_einsum_onto(x, [dy, *other_inputs]))
        return dxs

    def flops(self, *xs: Spec) -> int:
        sizes = {dim.name: dim.size for x in xs for dim in x.shape}
        num_terms = math.prod(sizes.values())
        num_matmuls = max(1, len(xs) - 1)
        return 2 * num_terms * num_matmuls


def einsum(xs: Sequence[Any], output_shape: Names) -> Tensor:
    """Returns the product of tensors, summed over all names that the output lacks:
    x [batch, d], w [d, d_ff] -> [batch, d_ff].

    Args:
      xs: one or more tensors or variables.
      output_shape: the names of the output in order: "batch;d_ff", a list or a Shape.

    Raises:
      ShapeError: inputs have different sizes of a name, or the output has a name that
        no input has.
      DTypeError: the inputs have different data types.
    """
    _check_no_equation(xs, output_shape)
    xs = as_sequence("xs", xs, "a list of tensors")
    shapes = [as_tensor("xs", x).shape for x in xs]
    names = names_of(output_shape, *shapes, argument="output_shape")
    return apply(Einsum(names), *xs)


def _check_no_equation(xs: Any, output_shape: Any) -> None:
    """Raises ArgumentError for an equation of letters, which other libraries take."""
    for equation, tensors in ((xs, output_shape), (output_shape, xs)):
        if isinstance(equation, str) and "->" in equation:
            raise ArgumentError(
                explain_error(
                    f"einsum takes tensors and names, not the equation {equation!r}.",
                    source=Source.of_caller(),
                    way_out=equation_way_out(equation, tensors),
                )
            )


def matmul(x: Any, y: Any) -> Tensor:
    """Returns the product of x and y, summed over the one name that both have: [a, k],
    [k, b] -> [a, b].

    Raises:
      ShapeError: x and y share no name, or several.
    """
    x = as_tensor("x", x)
    y = as_tensor("y", y)
    shared = [name for name in x.shape.names if name in y.shape]
    if len(shared) != 1:
        raise ShapeError(
            f"matmul sums over the one name that both have; {x.shape!r} and "
            f"{y.shape!r} share {len(shared)}. Use mtf.einsum."
        )
    names = [*x.shape.names, *y.shape.names]
    return einsum([x, y], [name for name in names if name not in shared])


def _sizes_by_name(xs: Sequence[Spec]) -> dict[str, int]:
    """Returns the size of each name. Raises ShapeError if a name has two sizes."""
    shapes = [x.shape for x in xs]
    for name, known_size, size in conflicting_sizes(shapes):
        raise ShapeError(
            f'"{name}" has size {known_size} in one input and {size} in another: a name '
            "that inputs share has one size. Rename one of them."
        )
    return {dim.name: dim.size for shape in shapes for dim in shape}


def _equation(inputs: Sequence[Sequence[str]], output: Sequence[str]) -> str:
    """Returns the equation of tf.einsum, with one letter for each name, as "ab,bc->ac"."""
    letters: dict[str, str] = {}
    terms = []
    for names in inputs:
        for name in names:
            unused_letter = chr(ord("a") + len(letters))
            letters.setdefault(name, unused_letter)
        terms.append("".join(letters[name] for name in names))
    left = ",".join(terms)
    right = "".join(letters[name] for name in output)
    return f"{left}->{right}"


def _einsum_onto(x: Tensor, operands: list[Any]) -> Tensor:
    """Returns the product of the operands in the shape of x: summed over the names that x
    lacks, and broadcast along the names of x that no operand has.
    """
    operand_names: set[str] = set()
    for operand in operands:
        operand_names.update(operand.shape.names)
    names = [name for name in x.shape.names if name in operand_names]
    dx = einsum(operands, names)
    if len(names) == len(x.shape):
        return dx
    return broadcast(dx, x.shape)
