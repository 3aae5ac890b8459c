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
from meshtf.graph import (
    OPERATORS,
    ReadOp,
    Spec,
    Store,
    Tensor,
    WriteOp,
    apply,
)
from meshtf.mesh import Mesh, Placement
from meshtf.names import Shape
from meshtf.ops.variables.fill import Number, ones_like, zeros, zeros_like


class Read(ReadOp):
    """The present value of a store."""

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return (self.store.spec,)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        return []


class Write(WriteOp):
    """A new value for a variable."""

    variable: Store

    @property
    def variables(self) -> tuple[Store, ...]:
        return (self.variable,)

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        if xs[0].dtype != self.variable.spec.dtype:
            raise DTypeError(
                f"variable {self.variable.name!r} is {self.variable.spec.dtype}; a "
                f"value of {xs[0].dtype} needs mtf.cast."
            )
        return ()

    def new_values(self, new: Any, old: Any) -> tuple[Any, ...]:
        return (new,)

    def write_in_place(self, handles: Sequence[Any], new: Any) -> bool:
        tf.raw_ops.AssignVariableOp(resource=handles[0], value=new)
        return True


class ScalarStore:
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
        return self.mesh.replicated

    def read(self) -> list[Any]:
        """Returns the number, for each position."""
        assert self.mesh is not None
        return [tf.constant(self.value, tf.as_dtype(self.spec.dtype))] * self.mesh.size

    def slices(self) -> Sequence[Any]:
        """A number is not written."""
        raise NotImplementedError


class PathHash(ScalarStore):
    """A number that was made of the path of names in force, as the salt of a random op
    is.
    """


def path_hash(mesh: Mesh | None, value: int) -> Tensor:
    """Returns an int32 scalar that was made of the path in force: see `number`."""
    return apply(Read(PathHash(value, "int32", mesh)), mesh=mesh)


def number(mesh: Mesh | None, value: Number, dtype: str) -> Tensor:
    """Returns a scalar that is an input of the program: another value is no
    other op.
    """
    return apply(Read(ScalarStore(value, dtype, mesh)), mesh=mesh)


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
