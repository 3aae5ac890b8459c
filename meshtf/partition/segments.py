"""The schedule: which computations form a segment, and which steps run between segments.

A *segment* is a sequence of computations without communication, which each device runs as
one TensorFlow function. Computations keep the order in which they were recorded. A
computation starts a new segment only if it needs a reshard of a value that the current
segment computes. Reads and reshards run as early as they can, so independent reshards are
next to each other.

For that, each step gets a *level*. The reads and reshards of a level run first, then its
segments:

    level 0   ReadStep x, w     segment: all computations up to the first reshard
    level 1   reshards          segment: the computations that need these reshards

If several mesh positions share one device (`split_by_axes=True`), computations that vary
along different axes of the mesh are in different segments of a level. A runtime can then run
a segment once for all positions that compute equal values.

If devices have separate memories (`bucket_bytes=`), a segment also ends once it has computed
`bucket_bytes` bytes of partial sums. Their reduction then overlaps with the rest of the
backward pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Sequence

from meshtf.mesh import Mesh
from meshtf.partition.buckets import Buckets
from meshtf.partition.cost import local_bytes
from meshtf.partition.steps import Compute, Program, Step, Value


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """A sequence of computations without communication, and the steps that run before
    it.

    Attributes:
      before: the reads, writes and reshards that run before the computations.
      computes: the computations, in order.
      stage: the pipeline stage on which they run; None: all stages.
      ins: the values of earlier steps that the computations use.
      outs: the computed values that later steps use.
    """

    before: tuple[Step, ...]
    computes: tuple[Compute, ...]
    stage: int | None = None
    ins: tuple[Value, ...] = ()
    outs: tuple[Value, ...] = ()

    def key(self) -> Hashable:
        """Returns a key that is equal for segments that one traced function can run:
        equal ops and plans, connected in the same way.
        """
        # Value -> its index among the values of the segment: inputs, then computed values.
        index = {value: i for i, value in enumerate(self.ins)}
        computes = []
        for compute in self.computes:
            computes.append(_compute_key(compute, index))
            for value in compute.outs:
                index[value] = len(index)
        return tuple(computes), tuple(index[value] for value in self.outs)


def _compute_key(compute: Compute, index: dict[Value, int]) -> Hashable:
    """Returns the key of a computation of a segment.

    Args:
      compute: the computation.
      index: {value: its index among the segment's values}, for values that exist before
        the computation.
    """
    return (
        compute.node.op,
        compute.plan,
        tuple(x.spec for x in compute.node.inputs),
        tuple(index[value] for value in compute.dependencies),
        # Which method of the op runs. Where shards exchange statistics, a node has two
        # computations: the first runs `statistics`, and the second, which has the `gathered`
        # statistics of all shards, runs `local_sharded`. All others run `local`.
        compute.makes_statistics,
        compute.gathered is None,
        # The spec and the placement determine the local shape of what it waits for. The other
        # parts of the key determine only the local shapes of the op's inputs.
        tuple((value.spec, value.placement) for value in compute.waits_for),
    )


def schedule(
    program: Program, split_by_axes: bool = False, bucket_bytes: int = 0
) -> list[Segment]:
    """Returns the segments of a program in order, with the inputs and outputs of each.

    Args:
      program: the program.
      split_by_axes: whether computations that vary along different axes of the mesh are
        in different segments.
      bucket_bytes: the number of bytes of partial sums that are reduced as one
        collective; 0: one collective for each partial sum.
    """
    segments = in_order(program, split_by_axes, bucket_bytes)
    return _with_inputs_and_outputs(segments, program.results)


def in_order(
    program: Program, split_by_axes: bool = False, bucket_bytes: int = 0
) -> list[Segment]:
    """Returns the segments of a program in order, without their inputs and outputs. The
    arguments are those of `schedule`.
    """
    reduced_values = set()
    if bucket_bytes:
        reduced_values = {x.src for step in program.steps for x in step.reductions}
    counter = _PartialSumCounter(program.mesh, bucket_bytes, reduced_values)
    segments = _segments(program, split_by_axes, counter)
    if bucket_bytes:
        segments = _with_buckets(segments, Buckets(program.mesh, bucket_bytes))
    return segments


def _segments(
    program: Program, split_by_axes: bool, counter: _PartialSumCounter
) -> list[Segment]:
    """Returns the segments of a program, without their inputs and outputs."""
    levels = _Levels(program.mesh, split_by_axes, counter)
    for step in program.steps:
        levels.add(step)
    return levels.segments()


@dataclasses.dataclass(eq=False)
class _Group:
    """Computations of one level that run on the same stage and vary along the same axes
    of the mesh; they become one segment.
    """

    stage: int | None
    axes: tuple[str, ...]
    computes: list[Compute]


@dataclasses.dataclass(eq=False)
class _PartialSumCounter:
    """Counts the bytes of partial sums that the current level computes, so that a new level
    starts when there are enough for a bucket.

    Attributes:
      mesh: the mesh of the program.
      limit: the bytes after which a new level starts; 0: no limit.
      reduced_values: the values that the program reduces.
      bytes: the bytes on one device, so far.
    """

    mesh: Mesh
    limit: int
    reduced_values: set[Value]
    bytes: float = 0.0

    def add(self, values: Iterable[Value]) -> None:
        """Adds the bytes of those of `values` that are reduced."""
        for value in values:
            # Exchanged statistics and local residuals have no spec, and are not reduced.
            if value.spec is not None and value in self.reduced_values:
                self.bytes += local_bytes(value.spec, value.placement, self.mesh)

    def reset_if_full(self) -> bool:
        """Returns whether the limit is reached; if so, the count starts at 0 again."""
        is_full = 0 < self.limit <= self.bytes
        if is_full:
            self.bytes = 0.0
        return is_full


class _Levels:
    """Assigns each step of a program to a level.

    Args:
      mesh: the mesh of the program.
      split_by_axes: whether computations that vary along different axes of the mesh are in
        different segments.
      counter: decides when partial sums start a new level.

    Attributes:
      before: for each level, the reads, writes and reshards that run before its segments.
      groups: for each level, its computations; each group becomes a segment.
      group_of: {value: the group that computes it}.
      available_from: {value: the first level before whose segments it exists}, for values
        that no segment computes. Values of the surrounding program exist from level 0.
      computed_at: {value: the level that computes it}.
      written_at: {store: the level of its last write}; the key None is for host ops.
    """

    def __init__(
        self, mesh: Mesh, split_by_axes: bool, counter: _PartialSumCounter
    ) -> None:
        self.mesh = mesh
        self.split_by_axes = split_by_axes
        self.counter = counter
        self.before: list[list[Step]] = [[]]
        self.groups: list[list[_Group]] = [[]]
        self.group_of: dict[Value, _Group] = {}
        self.available_from: dict[Value, int] = {}
        self.computed_at: dict[Value, int] = {}
        self.written_at: dict[object, int] = {}

    def add(self, step: Step) -> None:
        """Adds the next step of the program."""
        if step.computation is not None:
            self._add_compute(step.computation)
            return
        dependencies = [self._level_after(value) for value in step.dependencies]
        # Host ops, which write no variable, keep their order as well.
        written = step.writes or ((None,) if step.host_op else ())
        used = (*step.reads, *written)
        last_writes = [self.written_at.get(store, 0) for store in used]
        level = max([0, *dependencies, *last_writes])
        self.written_at.update(dict.fromkeys(written, level))
        self.available_from.update(dict.fromkeys(step.outputs, level))
        self._grow_before(level)
        self.before[level].append(step)

    def _add_compute(self, step: Compute) -> None:
        """Adds a computation to the current level, which is the last one, or to a new level
        if the computation needs a value that exists only there.
        """
        current_level = len(self.groups) - 1
        if self.counter.reset_if_full():
            current_level += 1
        level = max([current_level, *map(self._level_with, step.dependencies)])
        if level >= len(self.groups):
            self.counter.bytes = 0.0  # a new level starts
        self.counter.add(step.outs)
        self._grow_before(level)
        while len(self.groups) <= level:
            self.groups.append([])
        group = self._group_for(step, level)
        group.computes.append(step)
        for value in step.outs:
            self.group_of[value] = group
            self.computed_at[value] = level

    def _group_for(self, step: Compute, level: int) -> _Group:
        """Returns the group of a level to which a computation belongs: one that varies
        along the same axes, and runs after the groups whose values the computation needs.

        A new group comes before those that vary along more axes, which are likely to
        need it.
        """
        groups = self.groups[level]
        axes = self._varying_axes(step)
        # The index of the last group that computes an input; -1: there is none.
        last_needed = -1
        for value in step.dependencies:
            if self.computed_at.get(value) == level:
                index = groups.index(self.group_of[value])
                last_needed = max(last_needed, index)
        for group in groups[max(last_needed, 0) :]:
            if group.stage == step.plan.stage and group.axes == axes:
                return group
        index = last_needed + 1
        while index < len(groups) and len(groups[index].axes) <= len(axes):
            index += 1
        groups.insert(index, _Group(stage=step.plan.stage, axes=axes, computes=[]))
        return groups[index]

    def _varying_axes(self, step: Compute) -> tuple[str, ...]:
        """Returns the axes along which mesh positions compute different values; () where
        segments are not split by axes.
        """
        if not self.split_by_axes:
            return ()
        # `ins` are the inputs of the op. `inputs` would also include the gathered
        # statistics and the residuals.
        varying = step.plan.sharding_axes.union(
            *(x.placement.unreplicated for x in step.ins)
        )
        return tuple(axis for axis in self.mesh.axes if axis in varying)

    def _level_after(self, value: Value) -> int:
        """Returns the first level at which a read, write or reshard can use a value: these
        run before the segments of a level.
        """
        if value in self.computed_at:
            return self.computed_at[value] + 1
        return self.available_from.get(value, 0)

    def _level_with(self, value: Value) -> int:
        """Returns the first level at which a computation of a segment can use a value."""
        if value in self.computed_at:
            return self.computed_at[value]
        return self.available_from.get(value, 0)

    def _grow_before(self, level: int) -> None:
        """Extends `before` up to a level."""
        while len(self.before) <= level:
            self.before.append([])

    def segments(self) -> list[Segment]:
        """Returns the segments of all levels, without inputs and outputs."""
        while len(self.groups) < len(self.before):
            self.groups.append([])
        segments: list[Segment] = []
        for before, groups in zip(self.before, self.groups):
            if not groups:
                groups = [_Group(stage=None, axes=(), computes=[])]
            for group in groups:
                segments.append(
                    Segment(
                        before=tuple(before),
                        computes=tuple(group.computes),
                        stage=group.stage,
                    )
                )
                # The reads and reshards of a level run before its first segment only.
                before = []
        return segments


def _with_buckets(segments: Sequence[Segment], buckets: Buckets) -> list[Segment]:
    """Returns segments whose reductions are collected in buckets, and one more segment
    with the buckets that are still open at the end.
    """
    bucketed = []
    for segment in segments:
        needed_values = (
            value for compute in segment.computes for value in compute.dependencies
        )
        before = tuple(buckets.add(segment.before, needed_values))
        bucketed.append(dataclasses.replace(segment, before=before))
    open_buckets = tuple(buckets.close_all())
    bucketed.append(Segment(before=open_buckets, computes=()))
    return bucketed


def _with_inputs_and_outputs(
    segments: Sequence[Segment], results: Iterable[Value]
) -> list[Segment]:
    """Returns segments with their `ins` and `outs`: the values of earlier steps that a
    segment uses, and the values of the segment that later steps or `results` use.
    """
    needed_later = set(results)
    complete_segments: list[Segment] = []
    for segment in reversed(segments):
        computed_values = [out for compute in segment.computes for out in compute.outs]
        used_values = dict.fromkeys(
            value for compute in segment.computes for value in compute.dependencies
        )
        for value in computed_values:
            used_values.pop(value, None)
        inputs = tuple(used_values)
        outputs = tuple(value for value in computed_values if value in needed_later)
        complete_segments.append(dataclasses.replace(segment, ins=inputs, outs=outputs))
        needed_later.update(inputs)
        for step in segment.before:
            needed_later.update(step.dependencies)
    return complete_segments[::-1]
