"""Checks and conversions of the tensors, meshes and variables that users pass to public
functions. For arguments of Python types see `names/arguments.py`.

    x = as_tensor("x", x)             # a tensor, or the value of a variable

`name` is always the name of the argument, for the error.
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

# `Operators`, which checks below look for, is the base class of tensors and variables alone.
_TENSOR = "a tensor or variable of meshtf"
# Ways out of errors: for an array, and for a number.
_NAME_DIMENSIONS = (
    'Name the dimensions of an array first: mtf.asarray(mesh, array, "batch;d_model").'
)
_MAKE_SCALAR = 'Make a tensor of it first: mtf.full(mesh, "", value).'


def as_tensor(name: str, x: Any) -> Tensor:
    """Returns a tensor, or the value of a variable. Raises ArgumentError for anything else."""
    if isinstance(x, Tensor):
        return x
    if hasattr(x, "tensor"):  # a variable, whose class this package cannot import
        return x.tensor()
    return refuse_tensor(name, x)


def as_scalar(name: str, x: Any) -> Tensor:
    """Returns a scalar tensor.

    Raises:
      ArgumentError: x is neither a tensor nor a variable.
      ShapeError: x has dimensions.
    """
    x = as_tensor(name, x)
    if x.shape.names:
        raise ShapeError(
            explain_error(
                f"{name} must be a scalar.",
                tensor=repr(x.shape),
                source=Source.of_caller(),
                way_out="Reduce it: mtf.reduce_mean(x).",
            )
        )
    return x


def refuse_tensor(name: str, x: object) -> NoReturn:
    """Raises ArgumentError for a wrong argument x; the error says how to make a tensor."""
    if x is None:
        way_out = ""
    elif isinstance(x, (bool, int, float)):
        way_out = _MAKE_SCALAR
    else:
        way_out = _NAME_DIMENSIONS
    refuse(name, x, takes=_TENSOR, way_out=way_out)


def as_tensors(name: str, xs: Any) -> list[Tensor]:
    """Returns a sequence of tensors and variables as a list of tensors. Raises
    ArgumentError for anything else.
    """
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
    """Raises ArgumentError if a nesting contains anything but tensors and variables.

    Args:
      name: the name of the argument.
      nest: mappings, tuples and lists in any nesting.
      missing: whether None is allowed in place of a tensor.
    """
    if missing and nest is None:
        return
    if isinstance(nest, Mapping):
        nest = list(nest.values())
    if isinstance(nest, (tuple, list)):
        for x in nest:
            check_nest(name, x, missing=missing)
    elif not isinstance(nest, Operators):
        refuse_tensor(name, nest)


def as_mesh(name: str, mesh: Any) -> Mesh:
    """Returns `mesh`. Raises ArgumentError if it is no mesh."""
    if not isinstance(mesh, Mesh):
        way_out = 'Make one first: mesh = mtf.Mesh("data:4;model:2").'
        refuse(name, mesh, takes="a mesh", way_out=way_out)
    return mesh


def as_variables(
    name: str, variables: Any, expected: str = "variables or tensors"
) -> list[Any]:
    """Returns a sequence of variables as a list. Tensors are allowed as well: gradients are
    taken by both.

    Args:
      name: the name of the argument.
      variables: the value of the argument.
      expected: a description of the elements, for the error.

    Raises:
      ArgumentError: `variables` is no sequence, or an element is neither a variable nor a
        tensor.
    """
    items = list(as_sequence(name, variables, f"a list of {expected}"))
    for item in items:
        if not isinstance(item, Operators):
            way_out = "Give model.trainable_variables, or a list of variables."
            refuse(name, item, takes=expected, way_out=way_out)
    return items
