"""What a device stores when: a list of allocations, each from a first to a last step of a program,
and what is read off such a list.

    timeline = timeline_of(steps, allocations)
    timeline.peak.everything == sum(live.bytes for live in timeline.live())
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from meshtf.graph import Spec
from meshtf.mesh import Placement
from meshtf.partition import Step, Value


class Bytes(NamedTuple):
    """Bytes on one device."""

    everything: float
    activations: float  # everything except the gradients that updates use


class Allocation(NamedTuple):
    """Memory that a device needs from a first to a last step of a program.

    Attributes:
      first, last: the indices of these steps; the memory is live from the start of the first to
        the end of the last. Results of the program live until `len(steps)`.
      size: the bytes of one shard.
      step: the step that computes the tensor, or that the buffer is for.
      spec: the shape and dtype of the tensor; None for statistics and residuals of an op, for
        packed buffers, and for bodies.
      placement: the placement of the tensor on the mesh.
      value: the value of the program; None: a buffer, such as the workspace of an op.
      used_by: the last step that reads the value; None: the value is a result.
      title: what the buffer is, such as "transposed stack"; "" for values.
      body: the body of a loop, branch or call, whose peak this is; None for tensors.
      has_outputs: whether the outputs of the step are among what the body stores.
    """

    first: int
    last: int
    size: Bytes
    step: Step
    spec: Spec | None
    placement: Placement
    value: Value | None = None
    used_by: Step | None = None
    title: str = ""
    body: Timeline | None = None
    has_outputs: bool = False

    @property
    def bytes(self) -> float:
        """All bytes of one shard."""
        return self.size.everything


@dataclasses.dataclass(frozen=True)
class Timeline:
    """What a device of one pipeline stage stores while a program runs.

    Attributes:
      allocations: values in the order in which they are computed, then buffers.
      peak: the most bytes that are live at once, of each kind by itself.
      peak_step: the index of the step at which all bytes peak.
    """

    allocations: Sequence[Allocation]
    peak: Bytes
    peak_step: int

    def live(self) -> Iterator[Allocation]:
        """Yields the values and buffers that are live while the step runs at which all bytes
        peak, those of bodies at the peaks of these.
        """
        index = self.peak_step
        live = [x for x in self.allocations if x.first <= index <= x.last and x.bytes]
        in_body = {value for x in live if x.has_outputs for value in x.step.outputs}
        for allocation in live:
            if allocation.body is not None:
                yield from allocation.body.live()
            elif allocation.value not in in_body:
                yield allocation


def timeline_of(steps: Sequence[Step], allocations: Sequence[Allocation]) -> Timeline:
    """Returns the timeline of a stage.

    Args:
      steps: the steps of the program, in order.
      allocations: those of the stage, at least one.
    """
    # Bytes that a step allocates, less those that the step before has freed: [steps, kinds].
    # Results live until len(steps), and are freed one later.
    changes = np.zeros([len(steps) + 2, len(Bytes._fields)])
    sizes = np.array([allocation.size for allocation in allocations])
    starts = [allocation.first for allocation in allocations]
    ends = [allocation.last + 1 for allocation in allocations]
    np.add.at(changes, starts, sizes)
    np.subtract.at(changes, ends, sizes)
    live = np.cumsum(changes, axis=0)
    peak = Bytes(*live.max(axis=0).tolist())
    peak_step = int(live[:, 0].argmax())
    return Timeline(allocations, peak, peak_step)


def total_of(sizes: Sequence[Bytes]) -> Bytes:
    """Returns the sum of some bytes."""
    return Bytes(sum(x.everything for x in sizes), sum(x.activations for x in sizes))


def beyond(size: Bytes, allocations: Sequence[Allocation]) -> Bytes:
    """Returns the bytes that a buffer needs beyond those of allocations that are stored in it."""
    within = total_of([x.size for x in allocations])
    everything = max(size.everything - within.everything, 0.0)
    return Bytes(everything, max(size.activations - within.activations, 0.0))
