"""Reading and writing stores (variables, arguments), and tensors of one number.

Example:

    w.assign(w - 0.1 * dw)                 # a Read, two ops, a Write
    mtf.zeros(mesh, "batch:8;d_model:4")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import OPERATORS, Op, Spec, Store, Tensor, apply
from meshtf.mesh import Mesh, Placement
from meshtf.names import Shape
from meshtf.ops.variables.fill import Number, ones_like, zeros, zeros_like


class Read(Op):
    """The present value of a store."""

    store: Store
    effect = "read"

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self.store,)

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return (self.store.spec,)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        return []


class Write(Op):
    """A new value for a store."""

    store: Store
    effect = "write"

    @property
    def stores(self) -> tuple[Store, ...]:
        return (self.store,)

    def update(self, slices: Sequence[Any], *xs: Any) -> None:
        slices[0].assign(xs[0], read_value=False)

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        if xs[0].dtype != self.store.spec.dtype:
            raise DTypeError(
                f"variable {self.store.name!r} is {self.store.spec.dtype}; a value of "
                f"{xs[0].dtype} needs mtf.cast."
            )
        return ()


class NumberStore:
    """A number that is an input of the program instead of a part of it, so that ops
    that differ in nothing else are equal, and are traced once."""

    name = "a number"
    kind: Literal["number"] = "number"

    def __init__(self, value: Number, dtype: str, mesh: Mesh | None) -> None:
        self.value, self.mesh = value, mesh
        self.spec = Spec(Shape(), dtype)

    @property
    def placement(self) -> Placement:
        """The same everywhere."""
        assert self.mesh is not None
        return self.mesh.whole

    def read(self) -> list[Any]:
        """Returns the number, for each position."""
        assert self.mesh is not None
        return [tf.constant(self.value, tf.as_dtype(self.spec.dtype))] * self.mesh.size

    def slices(self) -> Sequence[Any]:
        """A number is not written."""
        raise NotImplementedError


class PathNumber(NumberStore):
    """A number that was made of the path of names in force, as the salt of a random op
    is.
    """


def path_number(mesh: Mesh | None, value: int) -> Tensor:
    """Returns an int32 scalar that was made of the path in force: see `number`."""
    return apply(Read(PathNumber(value, "int32", mesh)), mesh=mesh)


def number(mesh: Mesh | None, value: Number, dtype: str) -> Tensor:
    """Returns a scalar that is an input of the program: another value is no
    other op.
    """
    return apply(Read(NumberStore(value, dtype, mesh)), mesh=mesh)


def transpose_like(x: Tensor, shape: Shape) -> Tensor:
    """Returns x with its dimensions in the order of `shape`. Raises ShapeError if they
    differ.
    """
    if set(x.shape) != set(shape):
        raise ShapeError(
            f"a value of {x.shape!r} does not fit a variable of {shape!r}."
        )
    return x if x.shape == shape else OPERATORS["transpose"](x, shape.names)


OPERATORS["zeros"] = zeros
OPERATORS["zeros_like"] = zeros_like
OPERATORS["ones_like"] = ones_like
