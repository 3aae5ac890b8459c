"""Runtimes by name. A runtime compiles a recorded function to an executable.

    runtime = runtime_named("placed")
    executable = runtime.compile(recorded, arguments, jit=False)
    executable(arrays)                       # a `ShardedValue` for each result
    executable.collectives, executable.memory

"placed" drives all devices of TensorFlow from one program. "spmd" is for *live* meshes, whose
devices belong to jax: each device runs the same program.

This is the only file that imports all runtimes. They share the planner, the steps of
programs and `lowering/`, and do not import each other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from meshtf.errors import MeshError, PlanError, explain_error
from meshtf.graph import ShardedValue, Store
from meshtf.graph.context import current
from meshtf.graph.recorder import Recorded
from meshtf.hardware import Hardware
from meshtf.mesh import Mesh
from meshtf.names.arguments import as_choice
from meshtf.partition import Program
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.lowering.program_summary import ProgramMemory
from meshtf.runtime.placed.runtime import PlacedRuntime
from meshtf.runtime.spmd.live.jax_host import platform_of
from meshtf.runtime.spmd.runtime import SpmdRuntime
from meshtf.runtime.storage.slot import Slot
from meshtf.runtime.variable import Variable

RuntimeName: TypeAlias = Literal["placed", "spmd"]


class Executable(Protocol):
    """A program for arguments of fixed shapes, ready to run."""

    @property
    def program(self) -> Program:
        """The planned program of the recorded function."""

    def __call__(self, arrays: Sequence[Any], /) -> list[ShardedValue]:
        """Runs the program and returns the shards of its results.

        Args:
          arrays: the tensors of all arguments, in order: the global array for an
            `ArrayStore`, the distinct shards for a `ShardsStore`.
        """

    @property
    def collectives(self) -> list[str]:
        """All collectives of one call, such as "all_reduce over model of [batch:64
        d_model:16]".
        """

    @property
    def memory(self) -> ProgramMemory:
        """The bytes of variables, arguments and results on one device."""


class Runtime(Protocol):
    """A way to run recorded functions on the devices of a mesh."""

    def compile(
        self,
        recorded: Recorded,
        arguments: Sequence[Store],
        jit: bool,
    ) -> Executable:
        """Compiles a recorded function.

        Args:
          recorded: the recorded function.
          arguments: the stores of the function's arguments, in order.
          jit: whether XLA compiles local computations, if the runtime has a choice.

        Raises:
          PlanError: the runtime cannot run the function on these devices.
        """

    def slots(self, variable: Variable) -> Sequence[Slot | None]:
        """Returns the slot of each mesh position: the storage of its shard, an object of this
        runtime's class of slots. None: the position has no shard.

        If the variable is stored in slots of another class, its shards are moved to
        slots of this class, and stay there.
        """


class _LiveRuntime:
    """The runtime of live meshes: the SPMD runtime. Under `mtf.check_numerics` the placed
    runtime runs programs op by op on the host instead.
    """

    def __init__(self) -> None:
        self._spmd_runtime = SpmdRuntime()
        self._host_runtime = PlacedRuntime()

    def compile(
        self,
        recorded: Recorded,
        arguments: Sequence[Store],
        jit: bool,
    ) -> Executable:
        """Returns a program for the devices of a live mesh; see `Runtime`."""
        live_executable = self._spmd_runtime.compile(recorded, arguments, jit)
        compile_for_host = functools.partial(
            self._host_runtime.compile, recorded, arguments, jit=False
        )
        return _LiveExecutable(live_executable, compile_for_host)

    def slots(self, variable: Variable) -> Sequence[Slot | None]:
        """Returns the slot of each mesh position, on its device."""
        return self._spmd_runtime.slots(variable)


class _LiveExecutable:
    """A program on the devices of a live mesh; on the host under `mtf.check_numerics`.

    Args:
      live_executable: the program on the devices of the live mesh.
      compile_for_host: returns the same program, on the host.

    Attributes:
      live_executable: the program on the devices of the live mesh.
    """

    def __init__(
        self, live_executable: Executable, compile_for_host: Callable[[], Executable]
    ) -> None:
        self.live_executable = live_executable
        self._compile_for_host = compile_for_host

    def __call__(self, arrays: Sequence[Any], /) -> list[ShardedValue]:
        if current().check_numerics:
            host_executable = self._compile_for_host()
            return host_executable(arrays)
        return self.live_executable(arrays)

    @property
    def program(self) -> Program:
        """The planned program of the recorded function."""
        return self.live_executable.program

    @property
    def collectives(self) -> list[str]:
        """All collectives of one call."""
        return self.live_executable.collectives

    @property
    def memory(self) -> ProgramMemory:
        """The bytes of variables, arguments and results on one device."""
        return self.live_executable.memory


_RUNTIMES: Mapping[str, Runtime] = {
    "placed": PlacedRuntime(),
    "spmd": _LiveRuntime(),
}


def runtime_of(mesh: Mesh, name: RuntimeName | None = None) -> Runtime:
    """Returns the runtime of the devices of a mesh.

    Args:
      mesh: the mesh.
      name: the runtime that the user has asked for; None: the default.

    Raises:
      PlanError: the placed runtime is asked for, and the mesh is live.
    """
    if name == "placed" and mesh.live:
        raise PlanError(
            explain_error(
                'runtime="placed" drives devices of TensorFlow, and this mesh is live: its '
                "devices are those of jax.",
                mesh=mesh,
                way_out="Leave runtime out, or make the mesh without "
                f"devices={mesh.devices!r}. To look for NaN op by op: mtf.check_numerics().",
            )
        )
    if name is not None:
        return _RUNTIMES[name]
    return _RUNTIMES["spmd" if mesh.live else "placed"]


def xla_of_forecast(
    mesh: Mesh, hardware: Hardware | None, under_xla: bool | None
) -> tuple[bool, str]:
    """Returns whether functions run in the SPMD runtime, by which a forecast counts memory, and for
    what XLA compiles them: "cpu", "cuda" or "tpu"; "": any devices, or not XLA.

    Args:
      mesh: the mesh.
      hardware: the profile of the devices; None: there is none.
      under_xla: the runtime that the user has asked for; None: that of a live mesh, or of the
        devices of the profile if the mesh is abstract.
    """
    if under_xla is None:
        under_xla = mesh.live
        if mesh.abstract and hardware is not None:
            under_xla = hardware.fuses
    if not under_xla:
        return False, ""
    if hardware is not None and hardware.platform:
        return True, hardware.platform
    return True, _known_platform(mesh)


def _known_platform(mesh: Mesh) -> str:
    """Returns what the devices of a mesh are; "": they are not live, or not here."""
    try:
        return platform_of(mesh) if mesh.live else ""
    except MeshError:
        return ""


def runs_on_cpus(mesh: Mesh | None) -> bool:
    """Returns whether the devices of a mesh are known to be CPUs."""
    if mesh is None or mesh.abstract:
        return False
    return platform_of(mesh) == "cpu" if mesh.live else only_cpus(devices_of(mesh))


def as_runtime_name(name: Any) -> RuntimeName:
    """Returns the name of a runtime. Raises ArgumentError if there is no such runtime."""
    choice: RuntimeName = as_choice("runtime", name, _RUNTIMES)  # type: ignore[assignment]
    return choice


def runtime_named(name: Any) -> Runtime:
    """Returns a runtime by its name. Raises ArgumentError if there is no such runtime."""
    return _RUNTIMES[as_runtime_name(name)]
