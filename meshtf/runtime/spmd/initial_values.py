"""Initial values of the variables of a live mesh, computed on its devices.

    defer(variable, functools.partial(recorded_initial_value, initializer))
    ...                                          # more variables
    compute_pending(mesh)                        # one program for all of them

So no host holds all of a variable, and a model of many variables is compiled once. Values
are computed when the first variable of the mesh is used.

A live mesh is one whose devices belong to jax (`devices="spmd"`), and a slot is the storage of
one shard of a variable: a variable without slots has no value.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from meshtf.graph import Node, Tensor
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh
from meshtf.runtime.spmd.live.device_arrays import DeviceShards
from meshtf.runtime.spmd.live.jax_slot import JaxSlot, VariableArray
from meshtf.runtime.spmd.live.live_program import LiveProgram
from meshtf.runtime.spmd.stages.stage_arrays import StageShards, use_arrays
from meshtf.runtime.spmd.stages.stage_meshes import num_stages
from meshtf.runtime.spmd.stages.staged_program import StagedProgram


class _Pending(NamedTuple):
    """A variable whose initial value is not computed yet.

    Attributes:
      variable: a weak reference to the variable.
      record: records the computation of the initial value of the variable that it takes.
      recorded: the recorded computation for this variable.
    """

    variable: weakref.ref[Any]
    record: Callable[[Any], Recorded]
    recorded: Recorded


_pending: weakref.WeakKeyDictionary[Mesh, list[_Pending]] = weakref.WeakKeyDictionary()


def defer(variable: Any, record: Callable[[Any], Recorded]) -> None:
    """Postpones the initial value of a variable: `compute_pending` computes it together with
    those of all other variables of the mesh.

    Args:
      variable: a `storage.variable_slots.SlotHolder` without slots.
      record: records the computation of the initial value of the variable that it takes.
    """
    pending = _pending.setdefault(variable.mesh, [])
    pending.append(_Pending(weakref.ref(variable), record, record(variable)))


def move_pending(variable: Any) -> None:
    """Records a postponed initial value again, after the placement of its variable changed.
    A variable without one stays as it is.
    """
    pending = _pending.get(variable.mesh, [])
    for index, (reference, record, _) in enumerate(pending):
        if reference() is variable:
            pending[index] = _Pending(reference, record, record(variable))


def compute_pending(mesh: Mesh) -> None:
    """Computes the postponed initial values of all variables of a mesh."""
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
    program: LiveProgram | StagedProgram
    if num_stages(mesh) > 1:
        program = StagedProgram(recorded, stores=(), runs_once=True)
    else:
        program = LiveProgram(recorded, stores=(), runs_once=True)
    results = program(())  # it has no arguments
    for variable, result in zip(variables, results, strict=True):
        assert result.placement == variable.placement
        _use_result(variable, result.values)
    # Only now, so that after an error the next use of a variable raises the error again.
    _pending.pop(mesh)


def _use_result(variable: Any, shards: Any) -> None:
    """Makes the shards of a result the value of a variable."""
    if isinstance(shards, StageShards):
        arrays = {
            stage: stage_shards.array
            for stage, stage_shards in shards.shards_by_stage.items()
        }
        use_arrays(variable, arrays)
        return
    assert isinstance(shards, DeviceShards)
    value = VariableArray(shards.layout, shards.array)
    slots = [JaxSlot(value, position) for position in range(variable.mesh.size)]
    variable.use_slots(slots)
