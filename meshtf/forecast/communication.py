"""The communication of a program: for which op each move is, and to which phase it
belongs.

A move that reduces a partial sum belongs to the phase of the op that made the sum, even
where ops that leave it partial, or the end of a loop, lie between. Any other move
belongs to the op that needs it. What runs inside of a backward loop is backward.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from meshtf.forecast.report_data import Collective, Phase, PlacedTensor
from meshtf.graph import Node
from meshtf.mesh import Partial
from meshtf.partition import Compute, MoveStep, Value


class Communication:
    """Collects moves while the steps of a program are walked.

    Args:
      phase: of each node.
    """

    def __init__(self, phase: Mapping[Node, Phase]) -> None:
        self._phase = phase
        self._around: Phase = "forward"  # of the loop around a step
        self._maker: dict[Value, Node] = {}
        self._moves: dict[Node | None, list[Collective]] = {}  # not yet taken by an op

    @contextlib.contextmanager
    def inside(self, node: Node) -> Iterator[None]:
        """Within this context steps are those of the bodies of a node."""
        around, self._around = self._around, self.phase_of(node)
        yield
        self._around = around

    def phase_of(self, node: Node | None) -> Phase:
        """Returns the phase of what is done for a node."""
        if self._around != "forward" or node is None:
            return self._around
        return self._phase.get(node, "forward")

    def made(self, step: Compute) -> None:
        """Takes note of what made the outputs of an op: partial sums that stay so are
        its input's.

        But a cotangent that is made of a partial sum of the forward pass is the
        backward pass's.
        """
        backward = self.phase_of(step.node) == "backward"
        for out in step.outs:
            makers = [
                self._maker[v]
                for v in step.ins
                if v in self._maker and _stays_partial(v, out)
            ]
            taken_over = [
                n
                for n in makers
                if not (backward and self._phase.get(n, "forward") == "forward")
            ]
            self._maker[out] = taken_over[0] if taken_over else step.node

    def handed_out(self, results: Iterable[Value], outs: Iterable[Value]) -> None:
        """Takes note of which results of a body the outputs of its loop, branch or call
        are.
        """
        self._maker.update(
            (out, self._maker[result])
            for result, out in zip(results, outs)
            if result in self._maker
        )

    def move(
        self,
        step: MoveStep,
        before: PlacedTensor,
        after: PlacedTensor,
        received: float,
        times: int,
    ) -> None:
        """Adds a collective."""
        maker = self._maker.get(step.src)
        self.add(
            step.node,
            maker if isinstance(step.move.before, Partial) else step.node,
            (step.move.kind, step.move.axis, before, after, received),
            times,
        )
        if maker is not None:
            self._maker[step.out] = maker

    def add(
        self,
        node: Node | None,
        origin: Node | None,
        move: tuple[str, str, PlacedTensor, PlacedTensor, float],
        times: int,
    ) -> None:
        """Adds a move for the node that it is made for; its phase is that
        of `origin`.
        """
        self._moves.setdefault(node, []).append(
            Collective(*move, phase=self.phase_of(origin), times=times)
        )

    def take(self, node: Node | None) -> tuple[Collective, ...]:
        """Returns the moves that were made for a node, once; None: for the results of
        the program.
        """
        return tuple(self._moves.pop(node, ()))


def _stays_partial(before: Value, after: Value) -> bool:
    return any(
        isinstance(b, Partial) and b == a
        for b, a in zip(before.placement, after.placement)
    )
