"""Initial values of variables: functions of (mesh, shape, name), some of which go by
name.

Example:

    as_initializer("zeros")               # meshtf.layers.initializers.zeros
    initial_shards(initializer, variable) # a tensor for each mesh position
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import Source, Spec, Tensor, context, executing
from meshtf.mesh import NO_CHANGES, Layout, Mesh, Placement
from meshtf.names import Shape, is_complex, is_floating
from meshtf.names.arguments import as_choice, refuse
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import Fill, full
from meshtf.runtime.devices.resolve import devices_of, share_memory
from meshtf.runtime.eager import bring, export
from meshtf.runtime.storage.sharding import shards_on_source

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


class Described(Protocol):
    """What the initial value of a variable depends on."""

    mesh: Mesh
    spec: Spec
    layout: Layout
    placement: Placement

    @property
    def name(self) -> str:
        """By which its random numbers are drawn."""


def initial_shards(initializer: Initializer, variable: Described) -> list[Any]:
    """Returns each position's shard of an initial value; of an abstract mesh none.

    Values do not depend on the mesh. Where all devices see one memory, the whole is
    drawn at once and cut: one draw instead of many.

    Raises:
      ShapeError: the initializer gave another shape or data type.
    """
    mesh = variable.mesh
    spec = variable.spec
    at_once = not mesh.abstract and share_memory(devices_of(mesh))
    rules = NO_CHANGES if at_once else Layout.changes("*:").then(variable.layout)
    drawn_on = Mesh("", seed=mesh.seed) if at_once else mesh
    with context(region=rules, path=(), iterations=()), executing():
        value = initializer(drawn_on, spec.shape, variable.name)
        if value.dtype != spec.dtype:
            value = as_initial_value(value, spec.dtype, variable.name)
    if value.spec != spec:
        raise ShapeError(
            f"the initializer of variable {variable.name!r} gave {value.dtype} "
            f"{value.shape!r}, not {spec.dtype} {spec.shape!r}."
        )
    if mesh.abstract:
        return []
    if value.mesh is mesh:
        return bring(value, variable.placement)
    return shards_on_source(export(value), spec, variable.placement, mesh)


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
                **{"from": Source.of_caller()},
                way_out='Take "zeros", "ones" or a constant that is exact, or write an '
                "initializer: lambda mesh, shape, name: mtf.full(mesh, shape, 7, "
                f'"{dtype}").',
            )
        )
    return full(value.mesh, value.shape, int(number), dtype)
