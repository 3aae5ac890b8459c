"""The collectives of a program, and the memory of its variables, arguments and results on
one device. They do not depend on the runtime. A store is a variable or an argument: where a
program reads shards from.

    collectives_of(program)      # ["all_reduce over model of [batch:64 d_model:16]"]
    memory_of(program, arguments).variables
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from meshtf.graph import Spec, Store
from meshtf.mesh import Mesh, Placement
from meshtf.partition import Program, walk
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


def collectives_of(program: Program) -> list[str]:
    """Returns all collectives of one call, such as "all_reduce over model of [batch:64
    d_model:16]", in order; those of pipeline stages come last.
    """
    collectives: list[str] = []
    for step, times in walk(program):
        collective = step.collective
        # A slice needs no communication. The statistics of an op have no one shape.
        if collective is None or collective.kind in ("slice", "keep"):
            continue
        if not collective.src.spec:
            continue
        axes = "+".join(collective.axes)
        shape = collective.src.spec.shape
        collectives += [f"{collective.kind} over {axes} of {shape!r}"] * times
    return collectives


def memory_of(program: Program, arguments: Sequence[Store]) -> ProgramMemory:
    """Returns the memory of a program's variables, arguments and results.

    Args:
      program: the program.
      arguments: the stores of the program's arguments.
    """
    results = [(v.spec, v.placement) for v in program.results if v.spec is not None]
    mesh = program.mesh
    return ProgramMemory(
        variables=_peak_bytes([(s.spec, s.placement) for s in program.variables], mesh),
        arguments=_peak_bytes([(s.spec, s.placement) for s in arguments], mesh),
        results=_peak_bytes(results, mesh),
    )


def _peak_bytes(tensors: Iterable[tuple[Spec, Placement]], mesh: Mesh) -> int:
    """Returns the bytes of the shards of tensors on the position with the most bytes."""
    bytes_of_positions = [0.0] * mesh.size
    for spec, placement in tensors:
        shard_bytes = local_bytes(spec, placement, mesh)
        for position, has_shard in enumerate(mesh.has(placement)):
            if has_shard:
                bytes_of_positions[position] += shard_bytes
    return int(max(bytes_of_positions))
