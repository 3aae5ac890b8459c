"""The body of a loop, computed in two halves of a dimension: see `halves`.

body = HalvedBody(loop, "batch")
results = body.compute(arguments)            # body.steps
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from meshtf.graph import Node, OpWithStatistics, Role, factor_of, window_of
from meshtf.partition.steps.bodies import LoopStep
from meshtf.partition.steps.collectives import ReshardStep
from meshtf.partition.steps.halved_steps import (
    half_of_compute,
    half_of_node,
    halves_of_value,
    take_halves,
)
from meshtf.partition.steps.local import BarrierStep, Compute, Half, JoinHalvesStep
from meshtf.partition.steps.step import Step, Value

_HALVES = (0, 1)
Pair: TypeAlias = tuple[Value, Value]  # the two halves of a value


class NotHalvable(Exception):
    """A loop cannot be computed in halves, or need not be."""


def has_dim(value: Value, dim: str) -> bool:
    """Returns whether a value has a dimension."""
    return value.spec is not None and dim in value.spec.shape


@dataclasses.dataclass
class _Chunk:
    """Steps between two sums that are waited for, in the order of the plan.

    Attributes:
      steps: those that run once, before both halves or in the first one, and those of halves.
      behind: those that need both halves.
      begins_with: the sums that the chunk before ends with.
    """

    steps: list[Step] = dataclasses.field(default_factory=list)
    behind: list[Step] = dataclasses.field(default_factory=list)
    begins_with: frozenset[Value] = frozenset()


class HalvedBody:
    """The body of a loop in halves.

    Args:
      loop: the loop.
      dim: the name of the dimension.

    Attributes:
      steps: the steps of the body, once `compute` has run.
    """

    def __init__(self, loop: LoopStep, dim: str) -> None:
        self.loop = loop
        self.dim = dim
        self.steps: list[Step] = []
        # Which steps run for each half, and what they compute: values of which each half has its
        # own, and terms that are to be added to those of the other half.
        self._steps_of_halves: set[Step] = set()
        self._of_halves: set[Value] = set()
        self._terms: set[Value] = set()
        # What is computed from the terms of both halves.
        self._of_both: set[Value] = set()
        # The halves of values so far, and the values that were made of their halves.
        self._pairs: dict[Value, Pair] = {}
        self._joined: set[Value] = set()
        # The nodes of steps of halves, by that of the planned step.
        self._nodes: dict[Node | None, Node] = {}
        self._size = 0  # of the dimension; 0: not known yet

    def compute(self, arguments: Mapping[Value, Pair]) -> list[tuple[Value, ...]]:
        """Returns the results of the body: one value, or the halves of each.

        Args:
          arguments: the halves of arguments that are halved.

        Raises:
          NotHalvable: a step does not map along the dimension, or no sum is waited for.
        """
        self._pairs.update(arguments)
        self._of_halves.update(arguments)
        chunks = self._chunks()
        if len(chunks) < 2:
            raise NotHalvable
        self._check_carries()
        self._take_halves(self._read_first(chunks[0]))
        schedule = [(chunk, index) for chunk in chunks for index in _HALVES]
        for (chunk, index), following in zip(schedule, [*schedule[1:], None]):
            self._add_half(chunk, index, following)
            if index == _HALVES[-1]:
                for step in chunk.behind:
                    self._join(step.inputs)
                    self._add_once(step)
        return [
            self._result(result, k) for k, result in enumerate(self.loop.body.results)
        ]

    # Which steps are computed in halves.

    def _chunks(self) -> list[_Chunk]:
        """Returns the steps of the body in chunks."""
        chunks = [_Chunk()]
        sums: set[Value] = set()  # those of the last chunk
        for step in self.loop.body.steps:
            kind = self._kind(step)
            if kind == "both":
                chunks[-1].behind.append(step)
                continue
            if kind == "half":
                if not sums.isdisjoint(step.inputs):
                    chunks.append(_Chunk(begins_with=frozenset(sums)))
                    sums.clear()
                sums.update(reduction.out for reduction in step.reductions)
                self._steps_of_halves.add(step)
            chunks[-1].steps.append(step)
        return chunks

    def _kind(self, step: Step) -> str:
        """Returns "once": a step does not depend on halves; "half": it runs for each half;
        "both": it needs both halves. Records what it computes.
        """
        inputs = step.inputs
        needs_both = any(x in self._terms or x in self._of_both for x in inputs)
        is_half = any(self._is_halved(x) for x in (*inputs, *step.outputs))
        if needs_both:
            if is_half:
                raise NotHalvable
            self._of_both.update(step.outputs)
            return "both"
        if not is_half:
            return "once"
        if any(x in self._terms or x in self._of_both for x in step.dependencies):
            raise NotHalvable
        if step.computation is not None:
            self._check_compute(step.computation)
            node = step.computation.node
            self._nodes[node] = half_of_node(node, self.dim)
        elif step.reshards == (step,):
            self._check_reshard(step.reshards[0])
            self._of_halves.update(step.outputs)
        else:
            raise NotHalvable
        return "half"

    def _is_halved(self, value: Value) -> bool:
        """Returns whether each half has its own value."""
        return value in self._of_halves or has_dim(value, self.dim)

    def _check_size(self, values: Iterable[Value]) -> None:
        """Raises NotHalvable if the dimension has several sizes, or shards that are not even."""
        for value in values:
            if not has_dim(value, self.dim):
                continue
            assert value.spec is not None
            size = value.spec.shape[self.dim]
            self._size = self._size or size
            axes = value.placement.axes_of(self.dim)
            num_shards = self.loop.body.mesh.group_size(*axes)
            if size != self._size or size % (2 * num_shards):
                raise NotHalvable

    def _check_compute(self, step: Compute) -> None:
        """Records what the halves of a step compute. Raises NotHalvable if the op does not map
        along the dimension, nor sums over it.
        """
        op = step.node.op
        dim = self.dim
        if step.makes_statistics or step.gathered is not None:
            raise NotHalvable
        if isinstance(op, OpWithStatistics) and dim in op.statistics_dims():
            raise NotHalvable
        self._check_size((*step.ins, *step.outs))
        has_input = False
        for i, x in enumerate(step.node.inputs):
            if dim in x.shape:
                has_input = True
                if factor_of(op, dim) != dim or window_of(op, i, dim) is not None:
                    raise NotHalvable
        role = op.role(dim)
        if role not in (Role.MAP, Role.SUM):
            raise NotHalvable
        for out in step.outs:
            if has_dim(out, dim) or not has_input:
                self._of_halves.add(out)
            elif role is Role.SUM:
                self._terms.add(out)
            else:
                raise NotHalvable

    def _check_reshard(self, step: ReshardStep) -> None:
        """Raises NotHalvable if a reshard changes which devices have an entry of the dimension."""
        self._check_size((step.src, step.out))
        before, after = step.src.placement, step.out.placement
        if before.axes_of(self.dim) != after.axes_of(self.dim) or step.is_transfer:
            raise NotHalvable

    def _check_carries(self) -> None:
        """Raises NotHalvable if a carry is halved and its next value is not, or the reverse."""
        for carry, result in zip(self.loop.carries, self.loop.body.results):
            if has_dim(carry, self.dim) and result in self._of_both:
                raise NotHalvable

    # The steps of halves.

    def _half_of(self, value: Value, index: int) -> Value:
        """Returns what a half has of a value."""
        if not self._is_halved(value) and value not in self._terms:
            return value
        if value not in self._pairs:
            self._pairs[value] = halves_of_value(value, self.dim)
        return self._pairs[value][index]

    def _add_half(
        self, chunk: _Chunk, index: int, following: tuple[_Chunk, int] | None
    ) -> None:
        """Adds the steps of one half of a chunk, and the barrier between it and the next one.

        Args:
          chunk: the chunk.
          index: the index of the half.
          following: the chunk that runs next, and of which half; None: none does.
        """
        sums: list[Step] = []
        for step in chunk.steps:
            if step not in self._steps_of_halves:
                if index == 0:
                    self._add_once(step)
                continue
            self._take_halves(step.dependencies)
            if step.reductions:
                sums.append(step)
            else:
                self.steps.append(self._half_of_step(step, index))
        if following is not None:
            next_chunk, next_index = following
            needed = [(x, next_index) for x in self._read_first(next_chunk)]
            reduced = [(step.inputs[0], index) for step in sums]
            self._add_barrier([*reduced, *needed])
        for step in sums:
            self.steps.append(self._half_of_step(step, index))

    def _read_first(self, chunk: _Chunk) -> list[Value]:
        """Returns what the steps of a chunk are behind: the sums that the chunk before it ends
        with, or the arguments of the body, if it is the first chunk.
        """
        computed: set[Value] = set()
        reads: dict[Value, None] = {}
        for step in chunk.steps:
            if step in self._steps_of_halves:
                reads.update(dict.fromkeys(step.inputs))
                computed.update(step.outputs)
        if chunk.begins_with:
            return [x for x in reads if x in chunk.begins_with]
        return [x for x in reads if has_dim(x, self.dim) and x not in computed]

    def _add_barrier(self, values: Sequence[tuple[Value, int]]) -> None:
        """Adds a barrier for values of halves; `values`: each with the index of its half."""
        before = [self._half_of(value, index) for value, index in values]
        behind = [Value(x.spec, x.placement) for x in before]
        for (value, index), out in zip(values, behind):
            first, second = self._pairs[value]
            self._pairs[value] = (first, out) if index else (out, second)
        node = self.loop.node
        self.steps.append(BarrierStep(tuple(before), tuple(behind), node))

    def _add_once(self, step: Step) -> None:
        """Adds a step that both halves share. It waits as the first half does."""
        changes: dict[str, Any] = {}
        if step.waits_for:
            changes["waits_for"] = tuple(self._half_of(x, 0) for x in step.waits_for)
        if step.reshards and step.node in self._nodes:
            changes["node"] = self._nodes[step.node]  # which needs the result
        self.steps.append(dataclasses.replace(step, **changes) if changes else step)  # type: ignore[type-var]

    def _take_halves(self, values: Iterable[Value]) -> None:
        """Adds the steps that take halves of what is not halved outside of the body."""
        for value in values:
            if has_dim(value, self.dim) and value not in self._pairs:
                steps = take_halves(value, self.dim, self.loop.node)
                self._pairs[value] = (steps[0].out, steps[1].out)
                self.steps.extend(steps)

    def _half_of_step(self, step: Step, index: int) -> Step:
        """Returns the step that computes a half of what a step computes."""
        if step.reshards:
            (reshard,) = step.reshards
            return self._half_of_reshard(reshard, index)
        compute = step.computation
        assert compute is not None
        new_step = half_of_compute(
            compute,
            self._nodes[compute.node],
            Half(self.dim, index),
            lambda value: self._half_of(value, index),
        )
        waits_for = tuple(self._half_of(x, index) for x in step.waits_for)
        return dataclasses.replace(new_step, waits_for=waits_for)

    def _half_of_reshard(self, step: ReshardStep, index: int) -> ReshardStep:
        """Returns the reshard of a half."""
        return dataclasses.replace(
            step,
            src=self._half_of(step.src, index),
            out=self._half_of(step.out, index),
            node=self._nodes.get(step.node, step.node),
            waits_for=tuple(self._half_of(x, index) for x in step.waits_for),
        )

    # What needs both halves.

    def _join(self, values: Iterable[Value]) -> None:
        """Adds the steps that add terms, and join halves, of some values."""
        for value in values:
            is_halved = value in self._terms or has_dim(value, self.dim)
            if is_halved and value not in self._joined:
                self._joined.add(value)
                dim = self.dim if has_dim(value, self.dim) else ""
                pair = self._pairs[value]
                self.steps.append(JoinHalvesStep(dim, pair, value, self.loop.node))

    def _result(self, result: Value, index: int) -> tuple[Value, ...]:
        """Returns a result of the body, or its halves.

        Args:
          result: the planned result.
          index: its index among the results.
        """
        is_term = len(self.loop.carries) <= index < self.loop.num_unstacked
        self._take_halves([result])
        if has_dim(result, self.dim) and not is_term:
            return self._half_of(result, 0), self._half_of(result, 1)
        if result in self._terms or has_dim(result, self.dim):
            self._join([result])
            return (result,)
        return (self._half_of(result, 0),)
