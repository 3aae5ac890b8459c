"""The communication of a program: for which op each collective is, and in which phase.

A collective that reduces a partial sum belongs to the phase of the op that computed the
sum, even if ops that keep it partial, or the end of a loop, lie between them. Any other
collective belongs to the phase of the op that needs it. Everything in the body of a
backward loop is backward.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from meshtf.forecast.report_data import (
    Collective,
    Phase,
    PlacedTensor,
    without_indices,
)
from meshtf.graph import Node
from meshtf.mesh import Partial
from meshtf.partition import Compute, ReshardStep, Value


class Communication:
    """Collects collectives while the steps of a program are visited in order.

    Args:
      phases: of each node.
    """

    def __init__(self, phases: Mapping[Node, Phase]) -> None:
        self._phases = phases
        self._enclosing_phase: Phase = "forward"  # of the innermost enclosing loop
        self._origins: dict[Value, Node] = {}  # the op that computed a partial sum
        self._pending: dict[Node | None, list[Collective]] = {}

    @contextlib.contextmanager
    def body_of(self, node: Node) -> Iterator[None]:
        """Within this context, steps are those of the body of a loop, branch or call."""
        outer_phase = self._enclosing_phase
        self._enclosing_phase = self.phase_of(node)
        yield
        self._enclosing_phase = outer_phase

    def phase_of(self, node: Node | None) -> Phase:
        """Returns the phase of steps of a node; None: of the results."""
        if self._enclosing_phase != "forward" or node is None:
            return self._enclosing_phase
        return self._phases.get(node, "forward")

    def record_origins(self, step: Compute) -> None:
        """Records which op the outputs of a step originate from.

        A partial sum that stays partial keeps the origin of the input, unless the step
        is backward and the input is of the forward pass.
        """
        backward = self.phase_of(step.node) == "backward"
        for out in step.outs:
            self._origins[out] = step.node
            for value in step.ins:
                origin = self._origins.get(value)
                if origin is None or not _stays_partial(value, out):
                    continue
                if backward and self._phases.get(origin, "forward") == "forward":
                    continue
                self._origins[out] = origin
                break

    def pass_origins(self, results: Iterable[Value], outs: Iterable[Value]) -> None:
        """Gives the outputs of a loop, branch or call the origins of its body's
        results.
        """
        for result, out in zip(results, outs):
            if result in self._origins:
                self._origins[out] = self._origins[result]

    def add_reshard(
        self,
        step: ReshardStep,
        before: PlacedTensor,
        after: PlacedTensor,
        received: float,
        times: int,
    ) -> None:
        """Adds the collective of one step.

        Args:
          step: the step.
          before: the tensor before it.
          after: the tensor after it.
          received: bytes received per device, each time.
          times: how often it runs in one call.
        """
        origin = self._origins.get(step.src)
        self.add(
            step.node,
            origin if isinstance(step.reshard.before, Partial) else step.node,
            (step.reshard.kind, step.reshard.axis, before, after, received),
            times,
        )
        if origin is not None:
            self._origins[step.out] = origin

    def add(
        self,
        node: Node | None,
        origin: Node | None,
        reshard: tuple[str, str, PlacedTensor, PlacedTensor, float],
        times: int,
    ) -> None:
        """Adds a collective.

        Args:
          node: the op that needs it; None: the results of the program.
          origin: the op whose phase it has.
          collective: the fields of `Collective` up to `bytes`.
          times: how often it runs in one call.
        """
        module = origin or node
        path = "" if module is None else without_indices("/".join(module.path))
        collective = Collective(
            *reshard, phase=self.phase_of(origin), times=times, path=path
        )
        self._pending.setdefault(node, []).append(collective)

    def pop(self, node: Node | None) -> tuple[Collective, ...]:
        """Removes and returns the collectives that were added for a node; None: for the
        results of the program.
        """
        return tuple(self._pending.pop(node, ()))


def merge_equal(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    """Returns different collectives once each, with the sum of their `times`."""
    counts: collections.Counter[Collective] = collections.Counter()
    for reshard in collectives:
        counts[dataclasses.replace(reshard, times=1)] += reshard.times
    return tuple(dataclasses.replace(reshard, times=n) for reshard, n in counts.items())


def _stays_partial(before: Value, after: Value) -> bool:
    """Returns whether both are partial in the same way along some mesh axis."""
    return any(
        isinstance(state, Partial) and state == state_after
        for state, state_after in zip(before.placement, after.placement)
    )
