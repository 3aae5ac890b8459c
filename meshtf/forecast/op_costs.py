"""What one device computes when it runs an op: FLOPs, redundant FLOPs, and outputs.

    costs = OpCosts(mesh, tensors)
    costs.of(step).flops

A deep model repeats its layers. The ops of the repeated layers share their plans, and so
their costs are computed once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from meshtf.forecast.placed_tensors import PlacedTensors
from meshtf.forecast.report_data import PlacedTensor
from meshtf.graph import Node
from meshtf.mesh import Mesh
from meshtf.mesh.shard_sizes import is_padded, sizes_by_axis
from meshtf.partition import Compute, NodePlan, Program, walk


class OpCost(NamedTuple):
    """What one device computes when it runs an op once."""

    local_flops: float  # the FLOPs of a device that runs the op
    mean_flops: float  # the mean over the stages of a pipeline
    stages: range  # the stages that run the op
    repeated: int  # how many devices compute the same
    outputs: tuple[PlacedTensor, ...]


class OpCosts:
    """Computes the costs of the ops of one program.

    Args:
      mesh: the mesh of the program.
      tensors: describes the outputs.
    """

    def __init__(self, mesh: Mesh, tensors: PlacedTensors) -> None:
        self._mesh = mesh
        self._tensors = tensors
        # By the id of the plan: the steps of the program keep all plans alive.
        self._costs: dict[int, OpCost] = {}

    def of(self, step: Compute) -> OpCost:
        """Returns the cost of a step.

        The planner returns the same plan object for nodes with equal ops, whose inputs and
        outputs have equal shapes and placements (see `plan_node`). The cost depends on
        nothing else.
        """
        key = id(step.plan)
        if key not in self._costs:
            self._costs[key] = self._cost(step)
        return self._costs[key]

    def _cost(self, step: Compute) -> OpCost:
        axes = self._mesh.axes
        # A factor is a dimension of the op's iteration space.
        num_shards = math.prod(axes[axis] for axis in step.plan.sharding_axes)
        local_flops = _global_node_flops(step.node) / num_shards
        local_flops *= self._padding(step.plan)
        mean_flops = local_flops
        stages = range(self._mesh.num_stages)
        stage = step.plan.stage
        if stage is not None:
            mean_flops = local_flops / len(stages)
            stages = range(stage, stage + 1)
        return OpCost(
            local_flops=local_flops,
            mean_flops=mean_flops,
            stages=stages,
            repeated=math.prod(axes[axis] for axis in redundant_axes(step, self._mesh)),
            outputs=self._tensors.of_values(step.outs),
        )

    def _padding(self, plan: NodePlan) -> float:
        """Returns the elements that an op computes, with the padding of shards, divided by
        those without.
        """
        result = 1.0
        for factor, size in plan.sizes:
            axis_sizes = [self._mesh.axes[axis] for axis in plan.axes_of(factor)]
            if is_padded(size, axis_sizes):
                stored = sizes_by_axis(size, axis_sizes)[-1] * math.prod(axis_sizes)
                result *= stored / size
        return result


def redundant_axes(step: Compute, mesh: Mesh) -> list[str]:
    """Returns the mesh axes along which all devices compute the same: no input and no
    factor of the op is sharded along them.
    """
    used = step.plan.sharding_axes.union(*(x.placement.unreplicated for x in step.ins))
    if step.plan.stage is not None:
        used |= {mesh.stages}
    return [axis for axis in mesh.axes if axis not in used]


def global_flops(body: Program) -> float:
    """Returns the FLOPs of a body on all devices; a loop counts as one iteration, and all
    calls of one body as one.
    """
    computes = (step.computation for step, _ in walk(body))
    return sum(_global_node_flops(step.node) for step in computes if step is not None)


def _global_node_flops(node: Node) -> float:
    """Returns the FLOPs of an op on tensors of global shape."""
    return node.op.flops(*(x.spec for x in node.inputs))
