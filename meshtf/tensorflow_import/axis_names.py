"""Tensors with the axes of a TensorFlow function, from and to those with atoms as dimensions.

In a program a merged axis (heads x d_head) is several dimensions, and one of size 1 is none.
Arguments and results have TensorFlow's axes, one dimension each.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.ops.shapes.reshape import reshape
from meshtf.tensorflow_import.dimensions.atoms import flat
from meshtf.tensorflow_import.dimensions.names import unused_name
from meshtf.tensorflow_import.graph.program import Value
from meshtf.tensorflow_import.named_program import NamedProgram


def shape_text(value: Value, names: Sequence[str]) -> str:
    """Returns the named shape of a value, with a name for each axis: "batch:8; length:16"."""
    return "; ".join(f"{name}:{size}" for name, size in zip(names, value.shape))


def names_of_axes(named: NamedProgram, value: Value) -> list[str]:
    """Returns a name for each axis of a value: a merged one has those of its factors, joined
    ("d_ff" for "d_ff" and "d_ff_inner"), and one of size 1 is called by its position.
    """
    names: list[str] = []
    for position, axis in enumerate(named.analysis.of(value)):
        factors = [named.names[atom] for atom in flat(axis)]
        if factors[1:] == [f"{name}_inner" for name in factors[:1]]:
            del factors[1:]
        stem = "_".join(factors) or f"axis_{position}"
        names.append(unused_name(stem, names.__contains__))
    return names


def to_program(named: NamedProgram, value: Value, x: Tensor) -> Tensor:
    """Returns an argument [one dimension for each axis] as [*atoms]."""
    return reshape(x, named.shape_of(value))


def from_program(named: NamedProgram, value: Value, x: Tensor) -> Tensor:
    """Returns a result [*atoms] as [one dimension for each axis]."""
    return reshape(x, shape_text(value, names_of_axes(named, value)))


def check_names(named: NamedProgram, value: Value, names: Sequence[str]) -> None:
    """Checks that the names which the user gave an argument's axes exist in the program.

    An axis may become another dimension of the program when the function starts (the mask of
    keys has the length of keys, not of queries), but then its name must be one of the
    program's, or rules of a layout for it would do nothing.

    Raises:
        ShapeError: A name is none of the program's.
    """
    known = set(named.names.values())
    for position, (axis, name) in enumerate(zip(named.analysis.of(value), names)):
        atoms = flat(axis)
        if len(atoms) == 1 and name not in known:
            final = named.names[atoms[0]]
            raise ShapeError(
                explain_error(
                    f'`inputs` calls axis {position} of "{value.path}" {name!r}, but it is '
                    f"one dimension with an axis that is called {final!r}.",
                    shape=str(list(value.shape)),
                    way_out="Axes that the function adds or multiplies element by element "
                    f'have one name: write "{final}" here as well.',
                )
            )
