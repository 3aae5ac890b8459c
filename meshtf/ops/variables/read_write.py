"""The ops `Read` and `Write`, and Python numbers as inputs of a program.

w.assign(w - 0.1 * dw)                 # a Read, two ops, a Write

A store is anything that a program reads: a variable, an argument of a function, or a Python
number that is an input of the program. Only variables are written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import tensorflow as tf

from meshtf.errors import DTypeError, ShapeError
from meshtf.graph import (
    Cotangents,
    LocalTensors,
    ReadOp,
    Spec,
    Specs,
    Store,
    Tensor,
    WriteOp,
    apply,
    register_operator,
)
from meshtf.mesh import Mesh, Placement
from meshtf.names import Shape
from meshtf.ops.common.trace_cache import constant
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.variables.fill import Number, ones_like, zeros, zeros_like


class Read(ReadOp):
    """The current value of a store."""

    def output_specs(self, *xs: Spec) -> Specs:
        return (self.store.spec,)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        return []


class Write(WriteOp):
    """Assigns a new value to a variable."""

    variable: Store

    @property
    def variables(self) -> tuple[Store, ...]:
        return (self.variable,)

    def output_specs(self, *xs: Spec) -> Specs:
        (new_value,) = xs
        if new_value.dtype != self.variable.spec.dtype:
            raise DTypeError(
                f"variable {self.variable.name!r} is {self.variable.spec.dtype}; a "
                f"value of {new_value.dtype} needs mtf.cast."
            )
        return ()

    def new_values(self, new_value: Any, old_value: Any) -> LocalTensors:
        return (new_value,)

    def write_in_place(self, handles: Sequence[Any], new_value: Any) -> bool:
        (variable,) = handles
        tf.raw_ops.AssignVariableOp(resource=variable, value=new_value)
        return True


class ScalarStore:
    """A Python number that is an input of the program.

    Ops that differ only in such a number are equal, so TensorFlow traces them once. With the
    number as a constant in the program, each would be traced.

    Attributes:
      value: the number.
      mesh: the mesh of the program; None: not known yet.
      spec: the shape, [], and the data type.
      kind: "number"; "argument" if each call of the program sets it by `fill`.
    """

    name = "a number"
    kind: Literal["number", "argument"]

    def __init__(self, value: Number, dtype: str, mesh: Mesh | None) -> None:
        self.kind = "number"
        self.value = value
        self.mesh = mesh
        self.spec = Spec(Shape(), dtype)

    @property
    def placement(self) -> Placement:
        """The placement on the mesh: replicated."""
        assert self.mesh is not None
        return self.mesh.replicated

    def fill(self, flat: list[Any]) -> None:
        """Takes the number of one call of a program whose argument this is: the first
        element of `flat`, which is removed.
        """
        self.value = flat.pop(0)

    def read(self) -> list[Any]:
        """Returns the number as a scalar tensor, for each position of the mesh."""
        assert self.mesh is not None
        value = constant(self.value, self.spec.dtype)
        return [value] * self.mesh.size

    def slots(self) -> Sequence[Any]:
        """Raises NotImplementedError: a slot stores a shard that may be written, and such a
        number is never written.
        """
        raise NotImplementedError


class PathHash(ScalarStore):
    """A hash of the active path of module names, which is an input of random ops."""


def path_hash(mesh: Mesh | None, value: int) -> Tensor:
    """Returns the hash `value` of the active path as an input of the program, int32 []."""
    store = PathHash(value, dtype="int32", mesh=mesh)
    return apply(Read(store), mesh=mesh)


def scalar_input(mesh: Mesh | None, value: Number | Tensor, dtype: str) -> Tensor:
    """Returns a scalar [] that is an input of the program: see `ScalarStore`. A tensor is
    returned as it is.
    """
    if isinstance(value, Tensor):
        return value
    store = ScalarStore(value, dtype, mesh)
    return apply(Read(store), mesh=mesh)


def transpose_like(x: Tensor, shape: Shape) -> Tensor:
    """Returns x as [*shape], with its dimensions in this order.

    Raises:
      ShapeError: x has other dimensions.
    """
    if set(x.shape) != set(shape):
        raise ShapeError(
            f"a value of {x.shape!r} does not fit a variable of {shape!r}."
        )
    if x.shape == shape:
        return x
    return transpose(x, shape.names)


# For modules of folders that come before this one in the order of imports.
register_operator("zeros", zeros)
register_operator("zeros_like", zeros_like)
register_operator("ones_like", ones_like)
