"""Buckets: reductions side by side become one collective of a few large messages.

Each of many small gradients would cost a collective's latency. So they wait for each
other, in the order in which they come, up to a number of bytes, while the backward pass
goes on (as in Li et al., "PyTorch Distributed: Experiences on Accelerating Data
Parallel Training", 2020, 3.2.3).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeGuard

from meshtf.mesh import Mesh, OnStage, Partial
from meshtf.partition.cost import local_bytes
from meshtf.partition.steps import Bucket, ReshardStep, Step, Value, dependencies_of


def is_reduction(step: Step) -> TypeGuard[ReshardStep]:
    """Whether a step finishes an unfinished sum by communication."""
    return isinstance(step, ReshardStep) and step.reshard.kind in (
        "all_reduce",
        "reduce_scatter",
    )


class Buckets:
    """Puts the steps of one segment after the other in order, reductions of them as
    buckets.

    Args:
      mesh: where they run.
      limit: a bucket goes once a device holds so many bytes of what is in it, or when
        something in it is needed.
    """

    def __init__(self, mesh: Mesh, limit: int) -> None:
        self.mesh, self.limit = mesh, limit
        self._filling: dict[Hashable, list[ReshardStep]] = {}

    def sort(self, steps: Iterable[Step], needed: Iterable[Value]) -> list[Step]:
        """Returns the steps before a segment, of which it needs some values, and those
        left over.
        """
        out: list[Step] = []
        for step in steps:
            self._close_for(dependencies_of(step), out)
            if not is_reduction(step) or step.wait_for is not None:
                out.append(step)
                continue
            reductions = self._filling.setdefault(_kind(step), [])
            reductions.append(step)
            if sum(self._bytes(reshard) for reshard in reductions) >= self.limit:
                self._close(_kind(step), out)
        self._close_for(needed, out)
        return out

    def rest(self) -> list[Step]:
        """Returns the buckets that are not full."""
        out: list[Step] = []
        for kind in list(self._filling):
            self._close(kind, out)
        return out

    def _close_for(self, values: Iterable[Value], out: list[Step]) -> None:
        wanted = set(values)
        needed = [
            kind
            for kind, reductions in self._filling.items()
            if any(reshard.out in wanted for reshard in reductions)
        ]
        for kind in needed:
            self._close(kind, out)

    def _close(self, kind: Hashable, out: list[Step]) -> None:
        reductions = self._filling.pop(kind)
        out.append(Bucket(tuple(reductions)) if len(reductions) > 1 else reductions[0])

    def _bytes(self, step: ReshardStep) -> float:
        assert step.src.spec is not None
        return local_bytes(step.src.spec, step.src.placement, self.mesh)


def _kind(step: ReshardStep) -> Hashable:
    """Returns what reductions must have in common to be one collective."""
    reshard, src = step.reshard, step.src
    assert src.spec is not None and isinstance(reshard.before, Partial)
    stages = tuple(state for state in src.placement if isinstance(state, OnStage))
    return reshard.kind, reshard.axis, reshard.before.kind, src.spec.dtype, stages
