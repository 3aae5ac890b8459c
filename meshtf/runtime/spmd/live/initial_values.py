"""Initial values of the variables of a live mesh, computed on its devices.

    defer(variable, recorded_initial_value(initializer, variable))
    ...                                          # more variables
    compute_pending(mesh)                        # one program for all of them

So no host holds all of a variable, and a model of many variables is compiled once. Values
are computed when the first variable of the mesh is used.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

from meshtf.graph import Node, Tensor
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh
from meshtf.runtime.spmd.live.device_arrays import DeviceShards
from meshtf.runtime.spmd.live.jax_slot import JaxSlot, VariableArray
from meshtf.runtime.spmd.live.live_program import LiveProgram


class _Pending(NamedTuple):
    """A variable without a value.

    Attributes:
      variable: a weak reference to it.
      recorded: the function of its initial value.
    """

    variable: weakref.ref[Any]
    recorded: Recorded


_pending: weakref.WeakKeyDictionary[Mesh, list[_Pending]] = weakref.WeakKeyDictionary()


def defer(variable: Any, recorded: Recorded) -> None:
    """Has the initial value of a variable computed with those of all others of its mesh.

    Args:
      variable: a `storage.variable_slots.SlotHolder` without slots.
      recorded: the function of its initial value.
    """
    pending = _pending.setdefault(variable.mesh, [])
    pending.append(_Pending(weakref.ref(variable), recorded))


def compute_pending(mesh: Mesh) -> None:
    """Computes the initial values of all variables of a mesh that have none."""
    variables: list[Any] = []
    nodes: list[Node] = []
    values: list[Tensor] = []
    for pending in _pending.get(mesh, []):
        variable = pending.variable()
        if variable is not None:
            variables.append(variable)
            nodes += pending.recorded.nodes
            values += pending.recorded.results
    if not variables:
        _pending.pop(mesh, None)
        return
    recorded = Recorded(nodes, values, mesh, "initial_values")
    program = LiveProgram(recorded, (), runs_once=True)
    for variable, result in zip(variables, program(()), strict=True):
        assert result.placement == variable.placement
        shards = result.values
        assert isinstance(shards, DeviceShards)
        value = VariableArray(shards.layout, shards.array)
        variable.use_slots([JaxSlot(value, k) for k in range(mesh.size)])
    # Only now: after an error the variables are still without values, and say so again.
    _pending.pop(mesh)
