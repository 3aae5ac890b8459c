"""The collectives of a program, and the memory of its variables, arguments and results on
one device. They do not depend on the runtime. A store is a variable or an argument: where a
program reads shards from.

    executable.collectives       # ["all_reduce over model of [batch:64 d_model:16]"]
    executable.memory.variables
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from meshtf.graph import Store
from meshtf.mesh import Mesh
from meshtf.partition import Program, Value, walk
from meshtf.partition.cost import local_bytes


class ProgramMemory(NamedTuple):
    """Bytes on one device: each count is that of the mesh position which has the most.

    Attributes:
      variables: the bytes of all variables that the program reads or writes.
      arguments: the bytes of the arguments of a call.
      results: the bytes of the results of a call.
    """

    variables: int
    arguments: int
    results: int


class ProgramSummary:
    """The base class of executables of all runtimes.

    Attributes:
      program: the planned program.
      stores: the stores of the arguments, in order; each call fills them from its tensors.
    """

    program: Program
    stores: Sequence[Any]

    @property
    def collectives(self) -> list[str]:
        """All collectives of one call, such as "all_reduce over model of [batch:64
        d_model:16]", in order; those of pipeline stages come last.
        """
        collectives: list[str] = []
        for step, times in walk(self.program):
            reshard = step.collective
            # A slice needs no communication. The statistics of an op have no one shape.
            if reshard is None or reshard.kind in ("slice", "keep"):
                continue
            if not reshard.src.spec:
                continue
            axes = "+".join(reshard.axes)
            shape = reshard.src.spec.shape
            collectives += [f"{reshard.kind} over {axes} of {shape!r}"] * times
        return collectives

    @property
    def memory(self) -> ProgramMemory:
        """The bytes of variables, arguments and results on one device."""
        program = self.program
        return ProgramMemory(
            variables=_peak_bytes(program.variables, program.mesh),
            arguments=_peak_bytes(self.stores, program.mesh),
            results=_peak_bytes(program.results, program.mesh),
        )

    def fill_stores(self, tensors: Sequence[Any]) -> None:
        """Fills the stores of the arguments; each takes its tensors from the list."""
        remaining_tensors = list(tensors)
        for store in self.stores:
            store.fill(remaining_tensors)


def _peak_bytes(tensors: Iterable[Store | Value], mesh: Mesh) -> int:
    """Returns the bytes of the shards of tensors on the position with the most bytes."""
    bytes_of_positions = [0.0] * mesh.size
    for tensor in tensors:
        if tensor.spec is None:
            continue
        shard_bytes = local_bytes(tensor.spec, tensor.placement, mesh)
        for position, has_shard in enumerate(mesh.has(tensor.placement)):
            if has_shard:
                bytes_of_positions[position] += shard_bytes
    return int(max(bytes_of_positions))
