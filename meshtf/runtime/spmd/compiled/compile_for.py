"""Programs compiled for devices that are not there: what XLA makes of a plan.

compiled = compile_for(recorded, arguments, "h100:8")
compiled.peak, compiled.collectives, compiled.hlo
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshtf.errors import MeshError, explain_error
from meshtf.graph import Spec, Store
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh, Placement
from meshtf.runtime.spmd.compiled.absent_devices import absent_devices
from meshtf.runtime.spmd.compiled.hlo_collectives import (
    HloCollective,
    collectives_of_hlo,
)
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.module_call import ModuleCall
from meshtf.runtime.spmd.module.stablehlo_module import lower


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """What XLA makes of a program for devices that need not be there.

    Attributes:
      topology: the devices, such as "h100:8".
      mesh: the mesh.
      peak: the bytes of a device at the peak.
      arguments: the bytes of variables and arguments on a device.
      collectives: the collectives of the compiled program.
      seconds: the time of lowering and compiling.
      hlo: the scheduled program of one device, as text.
    """

    topology: str
    mesh: Mesh
    peak: int
    arguments: int
    collectives: tuple[HloCollective, ...]
    seconds: float
    hlo: str = dataclasses.field(repr=False)


def compile_for(
    recorded: Recorded, arguments: Sequence[Store], topology: str
) -> CompiledProgram:
    """Returns what XLA makes of a recorded function.

    Args:
      recorded: the function.
      arguments: the stores of its arguments, in order.
      topology: the devices; see `absent_devices`.

    Raises:
      MeshError: the topology is unknown, has another number of devices than the mesh, or
        its compiler is not installed.
      PlanError: XLA cannot compile one of its ops, or it runs on pipeline stages.
    """
    mesh = recorded.mesh
    device_mesh = _device_mesh(mesh, topology)
    start = time.perf_counter()
    lowered = lower(recorded, arguments)

    def layout(spec: Spec, placement: Placement) -> ArrayLayout:
        return ArrayLayout(spec, placement, mesh, device_mesh)

    results = [*lowered.program.results]
    results += [value for step in lowered.host_steps for value in step.values]
    outputs = [layout(v.spec, v.placement) for v in results if v.spec is not None]
    outputs += [layout(store.spec, store.placement) for store in lowered.written]
    call = ModuleCall(
        name=recorded.name,
        module=lowered.module,
        inputs=[layout(store.spec, store.placement) for store in lowered.inputs],
        outputs=outputs,
        mesh=device_mesh,
        donated=[lowered.variables.index(store) for store in lowered.written],
    )
    memory = call.compiled.memory_analysis()
    return CompiledProgram(
        topology=topology,
        mesh=mesh,
        peak=call.peak_memory,
        arguments=memory.argument_size_in_bytes,
        collectives=tuple(collectives_of_hlo(call.hlo)),
        seconds=time.perf_counter() - start,
        hlo=call.hlo,
    )


def _device_mesh(mesh: Mesh, topology: str) -> Any:
    """Returns jax's mesh of devices that are not there."""
    devices = absent_devices(topology)
    if len(devices) != mesh.size:
        raise MeshError(
            explain_error(
                f"{topology!r} has {len(devices)} devices, but the mesh has {mesh.size} "
                "positions.",
                mesh=mesh,
                way_out="Change the axes of the mesh, or the topology.",
            )
        )
    array = np.array(devices, dtype=object).reshape(tuple(mesh.axes.values()))
    return load_jax().sharding.Mesh(array, tuple(mesh.axes))
