"""Initial values of variables. An initializer is a function (mesh, shape, name) -> Tensor;
some initializers have names. A shard is the part of a tensor that one mesh position (an
element of the mesh's grid) stores.

Example:

    as_initializer("zeros")               # meshtf.layers.initializers.zeros
    initial_shards(initializer, variable) # a tensor for each mesh position
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import Graph, Source, Spec, Tensor, apply, context, executing
from meshtf.graph.recorder import Recorded
from meshtf.mesh import NO_CHANGES, Layout, Mesh, Placement
from meshtf.names import Shape, is_complex, is_floating
from meshtf.names.arguments import as_choice, refuse
from meshtf.ops.control.layout_region import Relayout
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.variables.fill import Fill, full
from meshtf.runtime.devices.resolve import devices_of, share_memory
from meshtf.runtime.eager import export, reshard_to
from meshtf.runtime.storage.sharding import shards_on_source

Initializer = Callable[[Mesh, Shape, str], Tensor]
_MAX_LAYOUTS = 1000  # that are remembered

# {name: initializer}, for initializers without further arguments. Importing
# meshtf.layers.initializers fills the dict.
INITIALIZERS: dict[str, Initializer] = {}


def as_initializer(initializer: Any) -> Initializer:
    """Returns an initializer: the argument, or the initializer with this name.

    Raises:
      ArgumentError: the argument is neither a function nor the name of an initializer.
    """
    if callable(initializer):
        return initializer
    if not isinstance(initializer, str):
        refuse(
            "initializer",
            initializer,
            "a function of (mesh, shape, name), or the name of one",
            'Write "zeros", or mtf.layers.initializers.variance_scaling("d_model").',
        )
    return INITIALIZERS[as_choice("initializer", initializer, INITIALIZERS)]


class VariableDescription(Protocol):
    """The members of a variable that its initial value depends on."""

    mesh: Mesh
    spec: Spec
    layout: Layout
    placement: Placement
    stage: int | None

    @property
    def name(self) -> str:
        """The name of the variable, which determines its random numbers."""


def initial_shards(
    initializer: Initializer, variable: VariableDescription
) -> Sequence[Any]:
    """Returns each position's shard of an initial value; [] on an abstract mesh.

    Values do not depend on the mesh. If all devices share one memory, the global value is
    computed on one device and then sliced: once, instead of once for each shard.

    Raises:
      ShapeError: the initializer returned another shape or data type.
    """
    mesh = variable.mesh
    if not mesh.abstract and share_memory(devices_of(mesh)):
        one_position = Mesh("", seed=mesh.seed)
        with executing():
            value = _initial_value(
                initializer, variable, mesh=one_position, layout_changes=NO_CHANGES
            )
        return shards_on_source(export(value), variable.spec, variable.placement, mesh)
    # On an abstract mesh the initializer is only checked: it is recorded, and not planned.
    with executing(Graph(mesh) if mesh.abstract else None):
        layout_changes = _only(variable.layout)
        value = _initial_value(
            initializer, variable, mesh=mesh, layout_changes=layout_changes
        )
    if mesh.abstract:
        return []
    return reshard_to(value, variable.placement)


def recorded_initial_value(
    initializer: Initializer, variable: VariableDescription
) -> Recorded:
    """Returns the function of an initial value, sharded as the variable is, for a runtime
    that computes it on the devices. Raises as `initial_shards` does.
    """
    graph = Graph(variable.mesh)
    layout_changes = _only(variable.layout)
    # The stage may be another one than where the variable was made: see `move_to_stage`.
    with executing(graph), context(stage=variable.stage):
        value = _initial_value(
            initializer, variable, mesh=variable.mesh, layout_changes=layout_changes
        )
        # `Relayout` is the identity; its output is sharded by the changed layout.
        with context(region=layout_changes):
            value = apply(Relayout(), value)
    return Recorded(graph.nodes, [value], variable.mesh)


@functools.lru_cache(maxsize=_MAX_LAYOUTS)
def _only(layout: Layout) -> Layout:
    """Returns changes of the mesh's layout that make tensors sharded like a variable with this
    layout. `context(region=...)` applies them to the ops within, like a `mtf.layout` block.
    """
    # Only these rules remain: "*:" removes all other rules.
    return Layout.changes("*:").then(layout)


def _initial_value(
    initializer: Initializer,
    variable: VariableDescription,
    mesh: Mesh,
    layout_changes: Layout,
) -> Tensor:
    """Returns the initial value of a variable as a tensor on a mesh.

    Args:
      initializer: the initializer.
      variable: the variable.
      mesh: the mesh on which the initializer runs.
      layout_changes: the changes of the mesh's layout while it runs.

    Raises:
      ShapeError: the initializer returned another shape or data type.
    """
    spec = variable.spec
    with context(region=layout_changes, path=(), iterations=()):
        value = initializer(mesh, spec.shape, variable.name)
        if value.dtype != spec.dtype:
            value = cast_initial_value(value, spec.dtype, variable.name)
    if value.spec != spec:
        raise ShapeError(
            f"the initializer of variable {variable.name!r} returned {value.dtype} "
            f"{value.shape!r}, not {spec.dtype} {spec.shape!r}."
        )
    return value


def cast_initial_value(value: Tensor, dtype: str, name: str) -> Tensor:
    """Returns the value of an initializer in the data type of a variable.

    Floats are cast to the float type of the variable. For a variable of integers or
    booleans, a tensor filled with one number is cast if the cast is exact.

    Args:
      value: the value that the initializer returned.
      dtype: the data type of the variable.
      name: the name of the variable, for errors.

    Raises:
      DTypeError: a variable of integers or booleans got other floats, such as random ones.
    """
    if not is_floating(value.dtype) or is_complex(dtype):
        return value
    if is_floating(dtype):
        return cast(value, dtype)
    op = value.node.op
    fill_value: Any = None
    if isinstance(op, Fill):
        fill_value = op.value
    if not _is_exact(fill_value, dtype):
        raise DTypeError(
            explain_error(
                f"the initializer of variable {name!r} returned {value.dtype}, but the "
                f"variable is {dtype}.",
                shape=repr(value.shape),
                source=Source.of_caller(),
                way_out='Take "zeros", "ones" or a constant that is exact, or write an '
                "initializer: lambda mesh, shape, name: mtf.full(mesh, shape, 7, "
                f'"{dtype}").',
            )
        )
    return full(value.mesh, value.shape, int(fill_value), dtype)


def _is_exact(value: Any, dtype: str) -> bool:
    """Returns whether a number can be cast exactly to a type of integers, or to booleans."""
    if not isinstance(value, (int, float)) or not float(value).is_integer():
        return False
    return dtype != "bool" or value in (0, 1)
