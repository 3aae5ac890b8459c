"""Where the outputs of ops should lie, and at which stage ops run.

An output lies where the layout says; a cotangent lies where its primal does, so that
what follows needs no reshard. An op runs at the stage of its region, or where its
inputs lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from meshtf.graph import (
    Node,
    ReshardOp,
    Tensor,
)
from meshtf.mesh import Mesh, OnStage, Placement, Replicated, Sharded


class PlacedTensors(Protocol):
    """What is known of where tensors lie while a program is planned."""

    states: dict[Tensor, Placement]

    def state(self, tensor: Tensor) -> Placement:
        """Returns where a tensor lies."""


class PreferredPlacement:
    """Answers, for one program, where outputs should lie and at which stage nodes run.

    Args:
      mesh: the program's.
      tensors: where tensors lie.
      notes: what is legal but worth knowing is added to them, each once.
    """

    def __init__(
        self, mesh: Mesh, tensors: PlacedTensors, notes: dict[str, None]
    ) -> None:
        self.mesh = mesh
        self.tensors = tensors
        self.notes = notes

    def placement(self, node: Node, y: Tensor) -> Placement:
        """The placement that an output should have: a cotangent's is its primal's."""
        primals = () if isinstance(node.op, ReshardOp) else node.primals
        same = [x for x in primals if set(x.shape.names) == set(y.shape.names)]
        more = [x for x in primals if set(x.shape.names) > set(y.shape.names)]
        if same or more:
            return self._like((same or more)[0], y)
        placement, conflicts = self.mesh.place(y.shape, node.layout, self.stage(node))
        for conflict in conflicts:
            note = (
                f"{y.shape!r}, made for {node.source}, keeps {conflict.dim} whole: "
                f"{conflict.axis} "
                + (
                    f"already cuts {conflict.other}."
                    if conflict.kind == "axis"
                    else "does not divide it."
                )
            )
            self.notes[note] = None
        return placement

    def stage(self, node: Node) -> int | None:
        """Returns the stage at which a node runs: its region's; else, if an input lies
        at a stage, that of its largest primal, so that cotangents are added up where
        they end, or of its largest input.
        """
        if self.mesh.axes.get(self.mesh.stages, 1) == 1:
            return None
        if node.stage is not None:
            return node.stage
        inputs = self._coordinates((x, self.tensors.state(x)) for x in node.inputs)
        primals = self._coordinates((x, self._state_or_wish(x)) for x in node.primals)
        return (
            max(primals or inputs)[1] if inputs else None
        )  # of equally large ones the latest

    def _coordinates(
        self, placed: Iterable[tuple[Tensor, Placement]]
    ) -> list[tuple[int, int]]:
        """Returns of tensors that lie at a stage their sizes and stages."""
        return [
            (x.shape.size, state.coordinate)
            for x, placement in placed
            for state in placement
            if isinstance(state, OnStage)
        ]

    def _state_or_wish(self, primal: Tensor) -> Placement:
        """Where a primal is; where it would have been, if nothing but its gradient
        needs it.
        """
        if primal in self.tensors.states or primal.sharded_value is not None:
            return self.tensors.state(primal)
        return self.mesh.place(primal.shape, primal.node.layout, primal.node.stage)[0]

    def _like(self, primal: Tensor, y: Tensor) -> Placement:
        """The primal's placement, for a tensor with some of its names."""
        states = self._state_or_wish(primal)
        return tuple(
            s
            if isinstance(s, OnStage)
            or isinstance(s, Sharded)
            and s.dim in y.shape
            and y.shape[s.dim] % self.mesh.axes[axis] == 0
            else Replicated
            for axis, s in zip(self.mesh.axes, states)
        )
