"""Initial values of variables: functions of (mesh, shape, name), some of which go by
name.

Example:

    as_initializer("zeros")               # meshtf.layers.initializers.zeros
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.errors import DTypeError, explain_error
from meshtf.graph import Source, Tensor
from meshtf.mesh import Mesh
from meshtf.names import Shape, is_complex, is_floating
from meshtf.names.arguments import as_choice, refuse
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import Fill, full

Initializer = Callable[[Mesh, Shape, str], Tensor]

# Those that need no arguments of their own; meshtf.layers.initializers fills it.
INITIALIZERS: dict[str, Initializer] = {}


def as_initializer(given: Any) -> Initializer:
    """Returns an initializer given itself or by name. Raises ArgumentError."""
    if callable(given):
        return given
    if not isinstance(given, str):
        refuse(
            "initializer",
            given,
            "a function of (mesh, shape, name), or the name of one",
            'Write "zeros", or mtf.layers.initializers.variance_scaling("d_model").',
        )
    return INITIALIZERS[as_choice("initializer", given, INITIALIZERS)]


def as_initial_value(value: Tensor, dtype: str, name: str) -> Tensor:
    """Returns what an initializer gave, in the data type of a variable.

    Floats become floats of another type; one number that fills a tensor becomes an
    integer, or a boolean, if it is one.

    Raises:
      DTypeError: floats, such as random ones, for a variable of integers or booleans.
    """
    if not is_floating(value.dtype) or is_complex(dtype):
        return value
    if is_floating(dtype):
        return cast(value, dtype)
    op = value.node.op
    number = (
        op.value
        if isinstance(op, Fill) and isinstance(op.value, (int, float))
        else None
    )
    if (
        number is None
        or not float(number).is_integer()
        or dtype == "bool"
        and number not in (0, 1)
    ):
        raise DTypeError(
            explain_error(
                f"the initializer of variable {name!r} gave {value.dtype}, and the "
                f"variable is {dtype}.",
                shape=repr(value.shape),
                **{"from": Source.here()},
                way_out='Take "zeros", "ones" or a constant that is exact, or write an '
                "initializer: lambda mesh, shape, name: mtf.full(mesh, shape, 7, "
                f'"{dtype}").',
            )
        )
    return full(value.mesh, value.shape, int(number), dtype)
