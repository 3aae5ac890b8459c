"""The schedule: which computations form a segment, and which steps run between segments.

Between two reshards, all devices run one program: a *segment*. Computations keep the
order in which they were recorded. One starts a new segment only if it needs a reshard
of something that the current one computes. Reads and reshards run as early as they can,
so independent reshards are next to each other.

    level 0   ReadStep x, w     segment: all computations up to the first reshard
    level 1   reshards          segment: the computations that need them

Where several positions share one device (`split_by_axes=True`), computations that vary
along different axes of the mesh are in different segments. A runtime can then run a
segment once for all positions that compute the same.

Where devices have separate memories (`bucket_bytes=`), a segment also ends once it has
made so many bytes of partial sums. Their reduction then overlaps with the rest of the
backward pass.
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
    """A maximal sequence of local computations, and the steps that run before it."""

    before: tuple[Step, ...]
    computes: tuple[Compute, ...]
    stage: int | None = None  # where it runs; None: on all stages
    ins: tuple[Value, ...] = ()
    outs: tuple[Value, ...] = ()

    def key(self) -> Hashable:
        """Returns a key that is equal for segments that are the same program: equal ops
        and plans, connected in the same way.
        """
        index = {value: i for i, value in enumerate(self.ins)}
        computes = []
        for compute in self.computes:
            computes.append(_compute_key(compute, index))
            for value in compute.outs:
                index[value] = len(index)
        return tuple(computes), tuple(index[value] for value in self.outs)


def _compute_key(compute: Compute, index: dict[Value, int]) -> Hashable:
    """Returns a key of a computation in a segment, whose values have these indices."""
    wait_for = compute.wait_for
    return (
        compute.node.op,
        compute.plan,
        tuple(x.spec for x in compute.node.inputs),
        tuple(index[value] for value in compute.inputs),
        compute.makes_statistics,
        compute.gathered is None,
        # It may have any shape, so neither op nor plan determine it.
        None if wait_for is None else (wait_for.spec, wait_for.placement),
    )


def schedule(
    program: Program, split_by_axes: bool = False, bucket_bytes: int = 0
) -> list[Segment]:
    """Returns the segments of a program in order, with the inputs and outputs of each.

    Args:
      program: the program.
      split_by_axes: whether computations that vary along different axes of the mesh are
        in different segments.
      bucket_bytes: bytes of partial sums that are reduced as one collective; 0: each by
        a collective.
    """
    if not bucket_bytes:
        bucket = _OpenBucket(program.mesh, 0, set())
        segments = _segments(program, split_by_axes, bucket)
    else:
        reduced = {step.src for step in program.steps if is_reduction(step)}
        bucket = _OpenBucket(program.mesh, bucket_bytes, reduced)
        segments = _segments(program, split_by_axes, bucket)
        segments = _with_buckets(segments, Buckets(program.mesh, bucket_bytes))
    return _with_inputs_and_outputs(segments, program.results)


def _segments(
    program: Program, split_by_axes: bool, bucket: _OpenBucket
) -> list[Segment]:
    levels = _Levels(program.mesh, split_by_axes, bucket)
    for step in program.steps:
        levels.add(step)
    return levels.segments()


@dataclasses.dataclass(eq=False)
class _Group:
    """Computations of one level that run on one stage and vary along the same axes of
    the mesh.
    """

    stage: int | None
    axes: tuple[str, ...]
    computes: list[Compute]


@dataclasses.dataclass(eq=False)
class _OpenBucket:
    """The bytes of partial sums that the current level makes."""

    mesh: Mesh
    limit: int  # bytes; 0: no limit
    reduced: set[Value]  # the values that are reduced later
    bytes: float = 0.0

    def add(self, values: Iterable[Value]) -> None:
        for value in values:
            if value.spec is not None and value in self.reduced:
                self.bytes += local_bytes(value.spec, value.placement, self.mesh)

    def empty_if_full(self) -> bool:
        """Returns whether the limit is reached; then the bucket is empty again."""
        is_full = 0 < self.limit <= self.bytes
        if is_full:
            self.bytes = 0.0
        return is_full


class _Levels:
    """Assigns each step to a level."""

    def __init__(self, mesh: Mesh, split_by_axes: bool, bucket: _OpenBucket) -> None:
        self.mesh = mesh
        self.split_by_axes = split_by_axes
        self.bucket = bucket
        self.before: list[list[Step]] = [[]]  # by level: the steps before its segment
        self.groups: list[list[_Group]] = [[]]  # by level: its computations
        self.group_of: dict[Value, _Group] = {}  # the group that computes a value
        # The first level before whose segment a value exists. Values of the surrounding
        # program exist from level 0 on.
        self.available_from: dict[Value, int] = {}
        self.computed_at: dict[Value, int] = {}  # the level whose segment computes it
        self.written_at: dict[object, int] = {}  # by store; None: host ops

    def add(self, step: Step) -> None:
        if isinstance(step, Compute):
            self._add_compute(step)
            return
        dependencies = [self._level_after(value) for value in dependencies_of(step)]
        level = max(dependencies, default=0)
        if isinstance(step, WriteStep):
            # Host ops, which write no variable, keep their order as well.
            stores = step.variables or (None,)
            last_writes = [self.written_at.get(store, 0) for store in stores]
            level = max([level, *last_writes])
            self.written_at.update(dict.fromkeys(stores, level))
        elif isinstance(step, ReadStep):
            level = self.written_at.get(step.store, 0)
        self.available_from.update(dict.fromkeys(outputs_of(step), level))
        self._grow_before(level)
        self.before[level].append(step)

    def _add_compute(self, step: Compute) -> None:
        current = len(self.groups) - 1
        if self.bucket.empty_if_full():
            current += 1
        input_levels = [self._level_with(value) for value in step.inputs]
        level = max([current, *input_levels])
        if level >= len(self.groups):
            self.bucket.bytes = 0.0
        self.bucket.add(step.outs)
        self._grow_before(level)
        while len(self.groups) <= level:
            self.groups.append([])
        group = self._group(step, level)
        group.computes.append(step)
        self.group_of.update(dict.fromkeys(step.outs, group))
        self.computed_at.update(dict.fromkeys(step.outs, level))

    def _group(self, step: Compute, level: int) -> _Group:
        """Returns the group of a level to which a computation belongs: one that varies
        along the same axes, and runs after the groups that it needs.

        A new group comes before those that vary along more axes, which are likely to
        need it.
        """
        groups = self.groups[level]
        axes = self._varying_axes(step)
        last_needed = -1
        for value in step.inputs:
            if self.computed_at.get(value) == level:
                index = groups.index(self.group_of[value])
                last_needed = max(last_needed, index)
        for group in groups[max(last_needed, 0) :]:
            if group.stage == step.plan.stage and group.axes == axes:
                return group
        index = last_needed + 1
        while index < len(groups) and len(groups[index].axes) <= len(axes):
            index += 1
        groups.insert(index, _Group(step.plan.stage, axes, []))
        return groups[index]

    def _varying_axes(self, step: Compute) -> tuple[str, ...]:
        """Returns the axes along which positions compute different values; none where
        segments are not split by axes.
        """
        if not self.split_by_axes:
            return ()
        sharded = {axis for axis, _ in step.plan.sharded_factors}
        varying = []
        for i, axis in enumerate(self.mesh.axes):
            input_states = [value.placement[i] for value in step.ins]
            if axis in sharded or any(state != Replicated for state in input_states):
                varying.append(axis)
        return tuple(varying)

    def _level_after(self, value: Value) -> int:
        """Returns the first level before whose segment a step can use a value."""
        if value in self.computed_at:
            return self.computed_at[value] + 1
        return self.available_from.get(value, 0)

    def _level_with(self, value: Value) -> int:
        """Returns the first level whose segment can use a value."""
        if value in self.computed_at:
            return self.computed_at[value]
        return self.available_from.get(value, 0)

    def _grow_before(self, level: int) -> None:
        while len(self.before) <= level:
            self.before.append([])

    def segments(self) -> list[Segment]:
        """Returns the segments of all levels, without inputs and outputs."""
        while len(self.groups) < len(self.before):
            self.groups.append([])
        segments: list[Segment] = []
        for before, groups in zip(self.before, self.groups):
            for group in groups or [_Group(None, (), [])]:
                computes = tuple(group.computes)
                segments.append(Segment(tuple(before), computes, group.stage))
                before = []  # they run before the first segment of the level
        return segments


def _with_buckets(segments: Sequence[Segment], buckets: Buckets) -> list[Segment]:
    """Returns segments whose reductions are buckets, and one more for those that are
    left.
    """
    bucketed = []
    for segment in segments:
        needed = (v for compute in segment.computes for v in compute.inputs)
        before = tuple(buckets.add(segment.before, needed))
        bucketed.append(dataclasses.replace(segment, before=before))
    remaining = tuple(buckets.close_all())
    bucketed.append(Segment(remaining, ()))
    return bucketed


def _with_inputs_and_outputs(
    segments: Sequence[Segment], results: Iterable[Value]
) -> list[Segment]:
    """Returns segments with the values that each needs of earlier steps, and the values
    of it that later steps need.
    """
    needed_later = set(results)
    complete: list[Segment] = []
    for segment in reversed(segments):
        computed = [out for compute in segment.computes for out in compute.outs]
        used = dict.fromkeys(v for compute in segment.computes for v in compute.inputs)
        for value in computed:
            used.pop(value, None)
        inputs = tuple(used)
        outputs = tuple(value for value in computed if value in needed_later)
        complete.append(dataclasses.replace(segment, ins=inputs, outs=outputs))
        needed_later.update(inputs)
        for step in segment.before:
            needed_later.update(dependencies_of(step))
    return complete[::-1]
