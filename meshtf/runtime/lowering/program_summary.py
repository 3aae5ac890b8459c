"""The collectives of a program, and the memory of its variables, arguments and results on
one device. They do not depend on the runtime.

    collectives_of(program)      # ["all_reduce over model of [batch:64 d_model:16]"]
    memory_of(program, arguments).variables
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from meshtf.graph import Spec, Store
from meshtf.mesh import Mesh, Placement
from meshtf.partition import Program, ReadStep, ReshardStep, WriteStep, walk
from meshtf.partition.cost import local_bytes


class ProgramMemory(NamedTuple):
    """Bytes on the mesh position that has most of them.

    Attributes:
      variables: of all variables that the program reads or writes.
      arguments: of the arguments of a call.
      results: of the results of a call.
    """

    variables: int
    arguments: int
    results: int


def collectives_of(program: Program) -> list[str]:
    """Returns all collectives of one call, in order, such as "all_reduce over model of
    [batch:64 d_model:16]".
    """
    return [
        f"{step.reshard.kind} over {step.reshard.axis} of {step.src.spec.shape!r}"
        for step, times in walk(program)
        for _ in range(times)
        if isinstance(step, ReshardStep)
        and step.reshard.kind != "slice"
        and step.src.spec
    ]


def memory_of(program: Program, arguments: Sequence[Store]) -> ProgramMemory:
    """Returns the memory of a program's variables, arguments and results.

    Args:
      program: the program.
      arguments: the stores of its arguments.
    """
    variables: dict[Store, None] = {}
    for step, _ in walk(program):
        if isinstance(step, ReadStep) and step.store.kind in ("parameter", "state"):
            variables[step.store] = None
        elif isinstance(step, WriteStep):
            variables.update(dict.fromkeys(step.variables))
    results = [(v.spec, v.placement) for v in program.results if v.spec is not None]
    return ProgramMemory(
        _peak_bytes([(s.spec, s.placement) for s in variables], program.mesh),
        _peak_bytes([(s.spec, s.placement) for s in arguments], program.mesh),
        _peak_bytes(results, program.mesh),
    )


def _peak_bytes(tensors: Iterable[tuple[Spec, Placement]], mesh: Mesh) -> int:
    """Returns the bytes of the shards of tensors on the position with most bytes."""
    bytes_of_positions = [0.0] * mesh.size
    for spec, placement in tensors:
        size = local_bytes(spec, placement, mesh)
        for position, has_shard in enumerate(mesh.has(placement)):
            bytes_of_positions[position] += size * has_shard
    return int(max(bytes_of_positions))
