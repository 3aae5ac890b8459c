"""The mesh of the devices of one pipeline stage.

    mesh = Mesh("stage:2; data:4", devices="spmd")
    stage_meshes(mesh)                   # two meshes "stage:1; data:4"
    stages_of(mesh, placement)           # (1,) of a value on stage 1; (0, 1) if replicated

The mesh of a stage has the same axes, with 1 device along the axis of the stages. So a
placement is valid on it as it is, and its state along the axis of the stages has no effect.
A mesh without that axis has one stage, whose mesh it is.

A live mesh is one whose devices belong to jax (`devices="spmd"`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from meshtf.errors import MeshError, explain_error
from meshtf.mesh import Mesh, Placement
from meshtf.runtime.devices.processes import processes
from meshtf.runtime.spmd.live.jax_host import live_devices, use_devices

_meshes: weakref.WeakKeyDictionary[Mesh, tuple[Mesh, ...]] = weakref.WeakKeyDictionary()


def stage_meshes(mesh: Mesh) -> tuple[Mesh, ...]:
    """Returns the mesh of each stage of a live mesh.

    Raises:
      MeshError: several processes have the devices.
    """
    if mesh.num_stages == 1:
        return (mesh,)
    if mesh not in _meshes:
        live_devices(
            mesh
        )  # called for its effect: processes join, if there are several
        if processes().count > 1:
            raise MeshError(
                explain_error(
                    "pipeline stages on a live mesh run in one process, but "
                    f"{processes().count} processes have its devices.",
                    mesh=str(mesh),
                    way_out=f"Take a mesh without the axis {mesh.stages!r}, or one process.",
                )
            )
        _meshes[mesh] = tuple(_stage_mesh(mesh, k) for k in range(mesh.num_stages))
    return _meshes[mesh]


def positions_on(mesh: Mesh, stage: int) -> Sequence[int]:
    """Returns the mesh positions of a stage, in the order of the mesh of the stage."""
    if mesh.num_stages == 1:
        return range(mesh.size)
    axis = mesh.axis_index[mesh.stages]
    return [p for p, coord in enumerate(mesh.coords) if coord[axis] == stage]


def stages_of(mesh: Mesh, placement: Placement) -> tuple[int, ...]:
    """Returns the stages that have a value with this placement."""
    if placement.stage is not None:
        return (placement.stage,)
    return tuple(range(mesh.num_stages))


def _stage_mesh(mesh: Mesh, stage: int) -> Mesh:
    """Returns the mesh of the devices of a stage."""
    stage_mesh = Mesh({**mesh.axes, mesh.stages: 1}, devices="spmd", stages=mesh.stages)
    devices = live_devices(mesh)
    use_devices(stage_mesh, [devices[p] for p in positions_on(mesh, stage)])
    return stage_mesh
