"""Ahead-of-time compilation for devices that this machine does not have: the memory and the
collectives that XLA's compiled program has, and what of their time is exposed.

compiled = compile_for(recorded, arguments, "h100:8")
compiled.peak, compiled.schedule.collectives, compiled.schedule.exposed_seconds, compiled.hlo
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from meshtf.errors import MeshError, PlanError, explain_error
from meshtf.graph import Spec, Store
from meshtf.graph.recorder import Recorded
from meshtf.mesh import Mesh, Placement
from meshtf.runtime.spmd.compiled.absent_devices import absent_devices, hardware_of
from meshtf.runtime.spmd.compiled.hlo_schedule import HloSchedule, schedule_of_hlo
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout
from meshtf.runtime.spmd.live.jax_host import (
    mesh_of_devices,
    platform_of_device,
)
from meshtf.runtime.spmd.live.jax_module import load_jax, nothing_cached
from meshtf.runtime.spmd.live.module_call import ModuleCall
from meshtf.runtime.spmd.module.stablehlo_module import lower


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program that XLA compiled for devices that this machine need not have.

    Attributes:
      topology: the devices, such as "h100:8".
      mesh: the mesh.
      peak: the peak memory of a device, in bytes.
      arguments: the memory of variables and arguments on a device, in bytes.
      schedule: the collectives of the compiled program, and the modelled time of a step.
      seconds: the time to lower and compile the program.
      hlo: the optimized HLO of one device, scheduled, as text.
    """

    topology: str
    mesh: Mesh
    peak: int
    arguments: int
    schedule: HloSchedule
    seconds: float
    hlo: str = dataclasses.field(repr=False)


def check_topology(topology: str) -> None:
    """Raises MeshError if the topology is unknown, or its compiler is not installed."""
    absent_devices(topology)


def compile_for(
    recorded: Recorded, arguments: Sequence[Store], topology: str
) -> CompiledProgram:
    """Returns a recorded function, compiled by XLA for the devices of a topology.

    Args:
      recorded: the function.
      arguments: the stores of its arguments, in order.
      topology: the devices; see `absent_devices`.

    Raises:
      MeshError: the topology is unknown, has another number of devices than the mesh, or
        its compiler is not installed.
      PlanError: XLA cannot compile it or one of its ops, or it runs on pipeline stages.
    """
    mesh = recorded.mesh
    device_mesh = _device_mesh(mesh, topology)
    start = time.perf_counter()
    platform = platform_of_device(device_mesh.devices.flat[0])
    lowered = lower(recorded, arguments, platform)

    def layout(spec: Spec, placement: Placement) -> ArrayLayout:
        return ArrayLayout(spec, placement, mesh, device_mesh)

    # The outputs of the module: results, inputs of steps on the host, new variables.
    results = [*lowered.program.results]
    results += [value for step in lowered.host_steps for value in step.inputs]
    outputs = [
        layout(value.spec, value.placement)
        for value in results
        if value.spec is not None
    ]
    outputs += [layout(store.spec, store.placement) for store in lowered.written]
    with _explained_errors(recorded.name, topology), _dump(platform) as dump:
        call = ModuleCall(
            name=recorded.name,
            module=lowered.module,
            inputs=[layout(store.spec, store.placement) for store in lowered.inputs],
            outputs=outputs,
            mesh=device_mesh,
            donated=[lowered.variables.index(store) for store in lowered.written],
            options=dump.options,
        )
        hlo = dump.hlo() or call.hlo
    memory = call.compiled.memory_analysis()
    return CompiledProgram(
        topology=topology,
        mesh=mesh,
        peak=call.peak_memory,
        arguments=memory.argument_size_in_bytes,
        schedule=schedule_of_hlo(hlo, hardware_of(topology)),
        seconds=time.perf_counter() - start,
        hlo=hlo,
    )


class _Dump(NamedTuple):
    """The files that XLA writes about a program while it compiles it.

    Attributes:
      folder: the folder of the files; None: XLA writes none.
    """

    folder: Path | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of XLA."""
        if self.folder is None:
            return {}
        return {"xla_dump_to": str(self.folder), "xla_dump_hlo_as_text": True}

    def hlo(self) -> str:
        """Returns the optimized HLO of one partition as text; "" if there is no file."""
        if self.folder is None:
            return ""
        for path in self.folder.glob("*.after_optimizations.txt"):
            return path.read_text(encoding="utf-8")
        return ""


@contextlib.contextmanager
def _dump(platform: str) -> Iterator[_Dump]:
    """A context in which nothing is cached, and XLA for TPUs writes what it compiles to files.

    jax reads a program of TPUs before it prints it, and jaxlib refuses instructions that
    libtpu, another version of XLA, makes of gathers on sparse cores: an async-update with
    several operands.

    Args:
      platform: what the devices are, such as "tpu".
    """
    with nothing_cached():
        if platform != "tpu":
            yield _Dump()
            return
        with tempfile.TemporaryDirectory() as folder:
            yield _Dump(Path(folder))


@contextlib.contextmanager
def _explained_errors(name: str, topology: str) -> Iterator[None]:
    """A context in which an error of XLA is raised as a `PlanError` that names the program.

    Args:
      name: the name of the program.
      topology: the devices for which XLA compiles it.
    """
    try:
        yield
    except load_jax().errors.JaxRuntimeError as error:
        raise PlanError(
            explain_error(
                f"XLA does not compile {name} for {topology!r}.",
                xla=str(error).splitlines()[0],
                way_out="If it names a size, try another one, such as a multiple of 128.",
            )
        ) from None


def _device_mesh(mesh: Mesh, topology: str) -> Any:
    """Returns jax's mesh of the devices of a topology, with the axes of `mesh`."""
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
    return mesh_of_devices(devices, mesh)
