"""The schedule: which computations form a segment, and what runs between segments.

Between two moves all devices run the same program: a *segment*. Computations keep the
order in which they were recorded: one starts a new segment only if it needs a move of
something that the present one computes. Loads and moves run as early as they can, so
unrelated moves end up side by side.

    level 0   ReadStep x, w     segment: everything up to the first move
    level 1   moves          segment: what needs them

Where several positions share one device (`split_by_axes=True`), work that is the same along
some axes of the mesh is kept apart from work that is not, so that the runtime can do it
once for all of them.

Where devices have memories of their own (`bucket_bytes=`), a segment ends once it has
made so many bytes of unfinished sums, so that gradients are on their way while the
backward pass goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

from meshtf.mesh import Mesh, Replicated
from meshtf.partition.buckets import Buckets, is_reduction
from meshtf.partition.cost import local_bytes
from meshtf.partition.steps import (
    Compute,
    Program,
    ReadStep,
    Step,
    Value,
    WriteStep,
    dependencies_of,
    outputs_of,
)


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """A maximal run of local work, and the steps that come before it."""

    before: tuple[Step, ...]
    computes: tuple[Compute, ...]
    stage: int | None = None  # where it runs; None: on all stages
    ins: tuple[Value, ...] = ()
    outs: tuple[Value, ...] = ()

    def key(self) -> Hashable:
        """Returns what makes two segments the same program: ops, plans, and how values
        meet.
        """
        number = {v: i for i, v in enumerate(self.ins)}
        lines = []
        for c in self.computes:
            reads = tuple(number[v] for v in c.inputs)
            for v in c.outs:
                number[v] = len(number)
            specs = tuple(x.spec for x in c.node.inputs)
            # What is waited for may be of any shape, which neither op nor plan tells.
            after = (
                None if c.wait_for is None else (c.wait_for.spec, c.wait_for.placement)
            )
            lines.append(
                (
                    c.node.op,
                    c.plan,
                    specs,
                    reads,
                    c.makes_statistics,
                    c.gathered is None,
                    after,
                )
            )
        return tuple(lines), tuple(number[v] for v in self.outs)


def schedule(
    program: Program, split_by_axes: bool = False, bucket_bytes: int = 0
) -> list[Segment]:
    """Returns the segments of a program in order, with what goes in and out of each.

    Args:
      program: what is cut into segments.
      split_by_axes: whether work that varies along different axes is kept apart.
      bucket_bytes: the bytes of unfinished sums that are reduced together; 0: each by itself.
    """
    reduced = (
        {step.src for step in program.steps if is_reduction(step)}
        if bucket_bytes
        else set()
    )
    levels = _Levels(
        program.mesh, split_by_axes, _Fill(program.mesh, bucket_bytes, reduced)
    )
    for step in program.steps:
        levels.add(step)
    segments = levels.finish()
    if bucket_bytes:
        segments = _with_buckets(segments, Buckets(program.mesh, bucket_bytes))
    return _with_borders(segments, program.results)


@dataclasses.dataclass(eq=False)
class _Part:
    """Computations of one level that run at one stage and vary along the same axes of
    the mesh.
    """

    stage: int | None
    along: tuple[str, ...]
    computes: list[Compute]


@dataclasses.dataclass(eq=False)
class _Fill:
    """How full the bucket of the present level is."""

    mesh: Mesh
    limit: int
    reduced: set[Value]  # what is to be reduced
    bytes: float = 0.0

    def add(self, values: Iterable[Value]) -> None:
        self.bytes += sum(
            local_bytes(v.spec, v.placement, self.mesh)
            for v in values
            if v.spec is not None and v in self.reduced
        )

    def take(self) -> bool:
        """Returns whether it is full; then it is empty again."""
        full = 0 < self.limit <= self.bytes
        self.bytes = 0.0 if full else self.bytes
        return full


class _Levels:
    """Assigns each step to a level."""

    def __init__(self, mesh: Mesh, apart: bool, fill: _Fill) -> None:
        self.mesh, self.apart, self.fill = mesh, apart, fill
        self.before: list[list[Step]] = [[]]
        self.computes: list[list[_Part]] = [[]]
        self.part: dict[Value, _Part] = {}  # which of a level's lists computes a value
        # The first level before whose segment a value exists; values from outside are
        # there at once.
        self.ready: dict[Value, int] = {}
        self.made: dict[Value, int] = {}  # the level whose segment computes it
        self.written: dict[object, int] = {}

    def add(self, step: Step) -> None:
        if isinstance(step, Compute):
            level = max(
                [
                    len(self.computes) - 1 + self.fill.take(),
                    *(self._at_hand(v) for v in step.inputs),
                ]
            )
            if level >= len(self.computes):
                self.fill.bytes = 0.0
            self.fill.add(step.outs)
            self._grow_before(level)
            self.computes.extend([] for _ in range(level + 1 - len(self.computes)))
            self._place(step, level)
            self.made.update(dict.fromkeys(step.outs, level))
            return
        level = max([0, *(self._before_a_segment(v) for v in dependencies_of(step))])
        if isinstance(step, WriteStep):
            # What tells the world keeps its order, too.
            written = step.variables or (None,)
            level = max([level, *(self.written.get(s, 0) for s in written)])
            self.written.update(dict.fromkeys(written, level))
        elif isinstance(step, ReadStep):
            level = self.written.get(step.store, 0)
        self.ready.update(dict.fromkeys(outputs_of(step), level))
        self._grow_before(level)
        self.before[level].append(step)

    def _place(self, step: Compute, level: int) -> None:
        """Adds a computation to a list of its level that varies along the same axes.

        A new list comes before those that vary along more axes, which are likely to
        need it.
        """
        lists, along = self.computes[level], self._varies(step)
        needed = [self.part[v] for v in step.inputs if self.made.get(v) == level]
        first = max(
            [0, *(i for i, part in enumerate(lists) if any(part is n for n in needed))]
        )
        stage = step.plan.stage
        found = next(
            (p for p in lists[first:] if (p.stage, p.along) == (stage, along)), None
        )
        if found is None:
            found = _Part(stage, along, [])
            after = first + 1 if needed else 0
            wider = (
                i for i in range(after, len(lists)) if len(lists[i].along) > len(along)
            )
            lists.insert(next(wider, len(lists)), found)
        found.computes.append(step)
        self.part.update(dict.fromkeys(step.outs, found))

    def _varies(self, step: Compute) -> tuple[str, ...]:
        """Returns the axes along which positions compute different things."""
        if not self.apart:
            return ()
        cut = {axis for axis, _ in step.plan.sharded_factors}
        return tuple(
            axis
            for i, axis in enumerate(self.mesh.axes)
            if axis in cut or any(v.placement[i] != Replicated for v in step.ins)
        )

    def _before_a_segment(self, value: Value) -> int:
        """Returns the first level before whose segment a step can use a value."""
        return self.made[value] + 1 if value in self.made else self.ready.get(value, 0)

    def _at_hand(self, value: Value) -> int:
        """Returns the first level whose segment can use a value."""
        return self.made[value] if value in self.made else self.ready.get(value, 0)

    def _grow_before(self, level: int) -> None:
        self.before.extend([] for _ in range(level + 1 - len(self.before)))

    def finish(self) -> list[Segment]:
        """Returns the levels as segments without borders."""
        self.computes.extend([] for _ in range(len(self.before) - len(self.computes)))
        segments: list[Segment] = []
        for before, lists in zip(self.before, self.computes):
            first, *others = lists or [_Part(None, (), [])]
            segments.append(Segment(tuple(before), tuple(first.computes), first.stage))
            segments += [Segment((), tuple(p.computes), p.stage) for p in others]
        return segments


def _with_buckets(segments: Sequence[Segment], buckets: Buckets) -> list[Segment]:
    """Returns segments whose reductions are buckets, and one more for the rest."""
    sorted_segments = []
    for segment in segments:
        needed = (v for compute in segment.computes for v in compute.inputs)
        before = tuple(buckets.sort(segment.before, needed))
        sorted_segments.append(dataclasses.replace(segment, before=before))
    return [*sorted_segments, Segment(tuple(buckets.rest()), ())]


def _with_borders(
    segments: Sequence[Segment], results: Iterable[Value]
) -> list[Segment]:
    """Returns segments with what each needs from outside, and what others need of
    it.
    """
    wanted = set(results)
    complete: list[Segment] = []
    for segment in reversed(segments):
        outputs = [out for c in segment.computes for out in c.outs]
        own = set(outputs)
        used = dict.fromkeys(v for c in segment.computes for v in c.inputs)
        inputs = tuple(v for v in used if v not in own)
        needed = tuple(out for out in outputs if out in wanted)
        complete.append(dataclasses.replace(segment, ins=inputs, outs=needed))
        wanted.update(inputs)
        wanted.update(v for step in segment.before for v in dependencies_of(step))
    return complete[::-1]
