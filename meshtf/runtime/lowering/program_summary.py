"""What a program moves between devices, and what it holds on one: the same for every
runtime.

Example:

    collectives_of(program)      # ["all_reduce over model of [batch:64 d_model:16]"]
    memory_of(program, arguments).variables
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from meshtf.graph import Spec, Store
from meshtf.mesh import Placement
from meshtf.partition import MoveStep, Program, ReadStep, WriteStep, walk
from meshtf.partition.cost import local_bytes


class ProgramMemory(NamedTuple):
    """Bytes of one mesh position, that of each which has most, around a call of a
    program.

    Args:
      variables: what the program reads or writes.
      arguments: what a call is given.
      results: what a call returns.
    """

    variables: int
    arguments: int
    results: int


def collectives_of(program: Program) -> list[str]:
    """Returns all collectives of one call, in order, such as "all_reduce over model of
    [batch:64 d_model:16]".
    """
    return [
        f"{step.move.kind} over {step.move.axis} of {step.src.spec.shape!r}"
        for step, times in walk(program)
        for _ in range(times)
        if isinstance(step, MoveStep) and step.move.kind != "slice" and step.src.spec
    ]


def memory_of(program: Program, arguments: Sequence[Store]) -> ProgramMemory:
    """Returns what the shards take that a program takes and gives.

    Args:
      program: what runs.
      arguments: of a call.
    """
    variables: dict[Store, None] = {}
    for step, _ in walk(program):
        if isinstance(step, ReadStep) and step.store.kind in ("parameter", "state"):
            variables[step.store] = None
        elif isinstance(step, WriteStep):
            variables.update(dict.fromkeys(step.variables))
    most = _most_bytes(program)
    return ProgramMemory(
        most((store.spec, store.placement) for store in variables),
        most((store.spec, store.placement) for store in arguments),
        most((v.spec, v.placement) for v in program.results if v.spec is not None),
    )


def _most_bytes(program: Program) -> Callable[[Iterable[tuple[Spec, Placement]]], int]:
    """Returns what sums the shards of tensors at the position that holds most."""
    mesh = program.mesh

    def most(tensors: Iterable[tuple[Spec, Placement]]) -> int:
        held = [0.0] * mesh.size
        for spec, placement in tensors:
            size = local_bytes(spec, placement, mesh)
            for position, has_shard in enumerate(mesh.has(placement)):
                held[position] += size * has_shard
        return int(max(held))

    return most
