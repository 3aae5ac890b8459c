"""What waits for what, beside data: so that memory is free again before more of it is
taken.

Nodes that are recomputed wait for the cotangent that needs them. Gathered variables
wait for the op that used those before them. Either waits for a value that is there on
the devices where it runs.
"""

from __future__ import annotations

import collections
from typing import Protocol

from meshtf.graph import Node, Tensor
from meshtf.mesh import Mesh, OnStage, Placement, Replicated, State
from meshtf.partition.preferred_placement import PreferredPlacement
from meshtf.partition.steps import Value

PREFETCH = 2  # ops whose gathered variables may be there at once: one runs, one comes


class AvailableTensors(Protocol):
    """What is known of tensors while a program is planned, and how one is brought to a
    placement.
    """

    mesh: Mesh
    wanted: PreferredPlacement

    def state(self, tensor: Tensor) -> Placement:
        """Returns where a tensor lies."""

    def at_hand(self, tensor: Tensor, node: Node | None) -> dict[Placement, Value]:
        """Returns the versions of a tensor that a node may use."""

    def reshard_to(self, tensor: Tensor, target: Placement, node: Node | None) -> Value:
        """Returns a tensor in a placement."""


class Waiting:
    """Finds the values for which the steps of a program wait."""

    def __init__(self, builder: AvailableTensors) -> None:
        self.builder = builder
        # By stage: what ops with gathered variables made.
        self.users: dict[State, list[Value]] = collections.defaultdict(list)

    def before(self, node: Node) -> Value | None:
        """Returns what a node must not run before, at the stage where it runs."""
        builder, after = self.builder, node.wait_for
        if after is None:
            return None
        place = builder.state(after)
        stage = builder.wanted.stage(node)
        if not is_at(builder.mesh, place, stage):
            there = (
                p for p in builder.at_hand(after, node) if is_at(builder.mesh, p, stage)
            )
            place = next(there, restaged(builder.mesh, place, stage))
        return builder.reshard_to(after, place, node)

    def before_gathering(self, placement: Placement) -> Value | None:
        """Returns what a gathering of variables must wait for, so that they do not pile
        up.
        """
        users = self.users[stage_of(self.builder.mesh, placement)]
        return users[-PREFETCH] if len(users) >= PREFETCH else None

    def used_gathered(self, value: Value) -> None:
        """Takes note of what an op with gathered variables made."""
        self.users[stage_of(self.builder.mesh, value.placement)].append(value)


def stage_of(mesh: Mesh, placement: Placement) -> State:
    """Returns the state along the mesh's axis for stages; Replicated if there is no such
    axis.
    """
    return (
        placement[mesh.axis_index[mesh.stages]]
        if mesh.stages in mesh.axes
        else Replicated
    )


def is_at(mesh: Mesh, placement: Placement, stage: int | None) -> bool:
    """Returns whether a tensor is there for what runs at a stage; None: at all
    of them.
    """
    state = stage_of(mesh, placement)
    return state == Replicated or stage is not None and state == OnStage(stage)


def restaged(mesh: Mesh, placement: Placement, stage: int | None) -> Placement:
    """Returns a placement at a stage; None: at all of them."""
    state = Replicated if stage is None else OnStage(stage)
    return tuple(
        state if axis == mesh.stages else s for axis, s in zip(mesh.axes, placement)
    )
