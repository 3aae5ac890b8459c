"""Buckets: successive reductions of small tensors become one collective.

Each collective costs a latency, so many collectives of small gradients are slow. So a
reduction waits in a bucket until the reductions after it have filled the bucket, while
the backward pass goes on (as in Li et al., "PyTorch Distributed: Experiences on
Accelerating Data Parallel Training", 2020, section 3.2.3).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from meshtf.mesh import Mesh, Partial
from meshtf.partition.cost import local_bytes
from meshtf.partition.steps import Bucket, ReshardStep, Step, Value


class Buckets:
    """Collects the reductions among the steps of a program, segment by segment. A segment is
    a sequence of computations without communication; reductions run before segments.

    Args:
      mesh: the mesh on which the steps run.
      limit: the bytes on one device at which a bucket is closed. A bucket is also closed
        when a step needs the result of one of its reductions.
    """

    def __init__(self, mesh: Mesh, limit: int) -> None:
        self.mesh = mesh
        self.limit = limit
        # The reductions of each open bucket, by `_bucket_key`.
        self._open: dict[Hashable, list[ReshardStep]] = {}

    def add(self, steps: Iterable[Step], needed_values: Iterable[Value]) -> list[Step]:
        """Adds the steps before a segment, and returns the steps to run there: the buckets
        that are closed, and all steps that are not reductions in open buckets.

        Args:
          steps: the steps before the segment.
          needed_values: the values that the segment needs.
        """
        ready_steps: list[Step] = []
        for step in steps:
            self._close_for(step.dependencies, ready_steps)
            # A reduction with a control dependency is not delayed any further.
            if not step.reductions or step.waits_for:
                ready_steps.append(step)
                continue
            key = _bucket_key(*step.reductions)
            reductions = self._open.setdefault(key, [])
            reductions += step.reductions
            if sum(map(self._bytes, reductions)) >= self.limit:
                self._close(key, ready_steps)
        self._close_for(needed_values, ready_steps)
        return ready_steps

    def close_all(self) -> list[Step]:
        """Closes and returns the buckets that are still open."""
        closed: list[Step] = []
        for key in list(self._open):
            self._close(key, closed)
        return closed

    def _close_for(self, values: Iterable[Value], steps: list[Step]) -> None:
        """Closes the buckets that compute one of `values`; appends them to `steps`."""
        if not self._open:
            return
        needed = set(values)
        for key, reductions in list(self._open.items()):
            if any(reduction.out in needed for reduction in reductions):
                self._close(key, steps)

    def _close(self, key: Hashable, steps: list[Step]) -> None:
        """Closes a bucket and appends it to `steps`; a single reduction needs none."""
        reductions = self._open.pop(key)
        if len(reductions) == 1:
            steps.append(reductions[0])
        else:
            steps.append(Bucket(tuple(reductions)))

    def _bytes(self, step: ReshardStep) -> float:
        """Returns the bytes that one device contributes to a reduction."""
        assert step.src.spec is not None
        return local_bytes(step.src.spec, step.src.placement, self.mesh)


def _bucket_key(step: ReshardStep) -> Hashable:
    """Returns the attributes in which all reductions of a bucket agree."""
    before = step.reshard.before
    assert step.src.spec is not None
    assert isinstance(before, Partial)
    stage = step.src.placement.stage
    return step.kind, step.axes, before.kind, step.src.spec.dtype, stage
