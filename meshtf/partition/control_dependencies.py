"""Control dependencies: which steps wait for which values, so that device memory is
freed before more is allocated.

Nodes that are recomputed wait for the cotangent that needs them. A gathered variable
waits for the op that used the gathered variables before it. Both wait for a value that
exists on the devices where they run.
"""

from __future__ import annotations

import collections
from typing import Protocol

from meshtf.graph import Node, Tensor
from meshtf.mesh import Mesh, OnStage, Placement, Replicated, State
from meshtf.partition.preferred_placement import PreferredPlacement
from meshtf.partition.steps import Value

PREFETCH = 2  # ops that may have gathered variables at once: one runs, one is next


class AvailableTensors(Protocol):
    """The tensors that exist while a program is planned, as `Builder` knows them."""

    mesh: Mesh
    preferred: PreferredPlacement

    def placement_of(self, tensor: Tensor) -> Placement:
        """Returns the placement of a tensor."""

    def available_values(
        self, tensor: Tensor, node: Node | None
    ) -> dict[Placement, Value]:
        """Returns the values of a tensor, by placement, that a node may use."""

    def reshard_to(self, tensor: Tensor, target: Placement, node: Node | None) -> Value:
        """Returns a tensor in a placement."""


class ControlDependencies:
    """Finds the values for which the steps of a program wait."""

    def __init__(self, builder: AvailableTensors) -> None:
        self.builder = builder
        # By stage: the outputs of ops that used gathered variables.
        self.users: dict[State, list[Value]] = collections.defaultdict(list)

    def of_node(self, node: Node) -> Value | None:
        """Returns the value that a node waits for, on the stage where it runs; None: it
        does not wait.
        """
        builder = self.builder
        tensor = node.wait_for
        if tensor is None:
            return None
        placement = builder.placement_of(tensor)
        stage = builder.preferred.stage(node)
        if not is_on_stage(builder.mesh, placement, stage):
            available = builder.available_values(tensor, node)
            suitable = [p for p in available if is_on_stage(builder.mesh, p, stage)]
            if suitable:
                placement = suitable[0]
            else:
                placement = with_stage(builder.mesh, placement, stage)
        return builder.reshard_to(tensor, placement, node)

    def of_gathering(self, placement: Placement) -> Value | None:
        """Returns the value that the gathering of a variable waits for, so that gathered
        variables do not pile up; None: it does not wait.
        """
        users = self.users[stage_state(self.builder.mesh, placement)]
        if len(users) >= PREFETCH:
            return users[-PREFETCH]
        return None

    def add_user(self, output: Value) -> None:
        """Records an output of an op that used gathered variables."""
        self.users[stage_state(self.builder.mesh, output.placement)].append(output)


def stage_state(mesh: Mesh, placement: Placement) -> State:
    """Returns the state along the mesh's axis of stages; Replicated without such an
    axis.
    """
    if mesh.stages not in mesh.axes:
        return Replicated
    return placement[mesh.axis_index[mesh.stages]]


def is_on_stage(mesh: Mesh, placement: Placement, stage: int | None) -> bool:
    """Returns whether a tensor exists where a stage runs; None: on all stages."""
    state = stage_state(mesh, placement)
    return state == Replicated or stage is not None and state == OnStage(stage)


def with_stage(mesh: Mesh, placement: Placement, stage: int | None) -> Placement:
    """Returns a placement, but on this stage; None: on all stages."""
    new_state: State = Replicated
    if stage is not None:
        new_state = OnStage(stage)
    return tuple(
        new_state if axis == mesh.stages else state
        for axis, state in zip(mesh.axes, placement)
    )
