"""Checks and conversions of tensors, meshes and variables that users pass to public
functions; see also `names/arguments.py`.

Example:

    x = as_tensor("x", x)             # a tensor; a variable is read
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from meshtf.errors import ShapeError, explain_error
from meshtf.graph.operators import Operators
from meshtf.graph.tensor import Tensor
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_sequence, refuse
from meshtf.names.source import Source

_TENSOR = "a tensor or variable of meshtf"
_IMPORT = (
    'Name the dimensions of an array first: mtf.asarray(mesh, array, "batch;d_model").'
)
_FULL = 'Make a tensor of it first: mtf.full(mesh, "", value).'


def as_tensor(name: str, x: Any) -> Tensor:
    """Returns a tensor, or the value of a variable. Raises ArgumentError otherwise."""
    if isinstance(x, Tensor):
        return x
    if hasattr(x, "tensor"):
        return x.tensor()
    return refuse_tensor(name, x)


def as_scalar(name: str, x: Any) -> Tensor:
    """Returns a scalar tensor. Raises ArgumentError, ShapeError."""
    x = as_tensor(name, x)
    if x.shape.names:
        raise ShapeError(
            explain_error(
                f"{name} is a scalar.",
                tensor=repr(x.shape),
                **{"from": Source.of_caller()},
                way_out="Reduce it: mtf.reduce_mean(x).",
            )
        )
    return x


def refuse_tensor(name: str, x: object) -> NoReturn:
    """Raises ArgumentError, which says how to make a tensor of x."""
    if x is None:
        way_out = ""
    elif isinstance(x, (bool, int, float)):
        way_out = _FULL
    else:
        way_out = _IMPORT
    refuse(name, x, _TENSOR, way_out)


def as_tensors(name: str, xs: Any) -> list[Tensor]:
    """Returns a list of tensors. Raises ArgumentError."""
    return [as_tensor(name, x) for x in as_sequence(name, xs, "a list of tensors")]


def check_tensors(**xs: Any) -> None:
    """Raises ArgumentError for an argument that is neither a tensor nor a variable.

    Args:
      **xs: the arguments by their names.
    """
    for name, x in xs.items():
        if not isinstance(x, Operators):
            refuse_tensor(name, x)


def check_nest(name: str, nest: Any, missing: bool = True) -> None:
    """Raises ArgumentError for a nesting that has anything but tensors and variables.

    Args:
      name: of the argument.
      nest: mappings, tuples and lists in any nesting.
      missing: whether None is allowed as well.
    """
    if isinstance(nest, Mapping):
        nest = list(nest.values())
    if isinstance(nest, (tuple, list)):
        for x in nest:
            check_nest(name, x, missing)
    elif not isinstance(nest, Operators) and not (missing and nest is None):
        refuse_tensor(name, nest)


def as_mesh(name: str, mesh: Any) -> Mesh:
    """Returns a mesh. Raises ArgumentError."""
    if not isinstance(mesh, Mesh):
        refuse(
            name, mesh, "a mesh", 'Make one first: mesh = mtf.Mesh("data:4;model:2").'
        )
    return mesh


def as_variables(
    name: str, variables: Any, expected: str = "variables or tensors"
) -> list[Any]:
    """Returns a list of variables and tensors.

    Args:
      name: of the argument.
      variables: its value.
      expected: what the error says is expected.

    Raises:
      ArgumentError: it is no list, or has anything else.
    """
    items = list(as_sequence(name, variables, f"a list of {expected}"))
    for item in items:
        if not isinstance(item, Operators):
            way_out = "Give model.trainable_variables, or a list of variables."
            refuse(name, item, expected, way_out)
    return items
