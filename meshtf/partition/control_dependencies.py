"""Control dependencies: which steps of a program wait for which values, so that device
memory is freed before more is allocated.

A node that the backward pass recomputes (`mtf.recompute`) waits for a cotangent, so that it
does not run before the backward pass gets there. The all_gather of a variable waits for an
earlier op that used a gathered variable, so that few gathered variables exist at once. In
both cases the awaited value is on the devices where the waiting step runs.
"""

from __future__ import annotations

import collections
from typing import Protocol

from meshtf.graph import Node, ReadOp, Tensor
from meshtf.mesh import Mesh, Placement
from meshtf.partition.preferred_placement import PreferredPlacement, is_on_stage
from meshtf.partition.steps import Value

# The number of ops whose gathered variables exist at once: one op runs, and the variables
# of the next one are being gathered.
PREFETCH = 2


class AvailableTensors(Protocol):
    """The part of `Builder` that `ControlDependencies` uses: the tensors that exist while
    a program is planned.
    """

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
    """Finds the values that the steps of a program wait for.

    Args:
      builder: the builder of the program.

    Attributes:
      users: {stage, or None: outputs of ops that used gathered variables, in order}.
    """

    def __init__(self, builder: AvailableTensors) -> None:
        self.builder = builder
        self.users: dict[int | None, list[Value]] = collections.defaultdict(list)

    def of_node(self, node: Node) -> tuple[Value, ...]:
        """Returns the value that a node waits for, if there is one; resharded to the stage
        where the node runs if necessary.
        """
        builder = self.builder
        tensor = node.wait_for
        if tensor is None:
            return ()
        placement = builder.placement_of(tensor)
        stage = builder.preferred.stage(node)
        if not is_on_stage(placement, stage):
            placements_on_stage = [
                candidate
                for candidate in builder.available_values(tensor, node)
                if is_on_stage(candidate, stage)
            ]
            if placements_on_stage:
                placement = placements_on_stage[0]
            else:
                placement = placement.with_stage(builder.mesh.stages, stage)
        return (builder.reshard_to(tensor, placement, node),)

    def of_all_gather(self, placement: Placement) -> tuple[Value, ...]:
        """Returns the value that the all_gather of a variable to `placement` waits for, if
        there is one, so that few gathered variables exist at once.
        """
        users = self.users[placement.stage]
        if len(users) >= PREFETCH:
            # After this op has run, the variables that it used are freed.
            return (users[-PREFETCH],)
        return ()

    def add_user(self, output: Value) -> None:
        """Records an output of an op that used gathered variables."""
        self.users[output.placement.stage].append(output)


def is_freed(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter, or computed from one by ops with one input of the
    same shape such as a cast, whose gathered values are freed when no op uses them: the mesh
    does not say `keep_gathered`.
    """
    node = tensor.node
    mesh = tensor.mesh
    while len(node.inputs) == 1 and node.inputs[0].shape == tensor.shape:
        node = node.inputs[0].node
    return (
        isinstance(node.op, ReadOp)
        and node.op.store.kind == "parameter"
        and mesh is not None
        and not mesh.keep_gathered
    )
