"""Partition: from nodes to a program of segments and reshards. It knows no op by name,
and imports no TensorFlow.

Contents:

    planner                 placements and sharded factors of one node: the rules
    preferred_placement     the placement that outputs should have; the stage of a node
    reshard_table           all communication between two placements
    cost                    bytes of a reshard
    steps                   the steps of a program, on values
    builder                 plans node after node, and appends the steps
    loops_and_branches      the same for bodies of loops and branches
    calls                   the same for a body that is called many times
    build                   a graph as a program
    control_dependencies    which steps wait for which values, to save device memory
    segments                which steps run together
    buckets                 which reductions are one collective
"""

from meshtf.partition.build import build
from meshtf.partition.planner import NodePlan, plan_node
from meshtf.partition.reshard_table import Reshard, reshards
from meshtf.partition.segments import Segment, schedule
from meshtf.partition.steps import (
    BranchStep,
    Bucket,
    CallStep,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Step,
    Value,
    WindowStep,
    WriteStep,
    unstacked_values,
    walk,
)

__all__ = [
    "BranchStep",
    "Bucket",
    "CallStep",
    "Compute",
    "ReadStep",
    "LoopStep",
    "Reshard",
    "ReshardStep",
    "NodePlan",
    "Program",
    "WriteStep",
    "Segment",
    "Step",
    "GatherStatisticsStep",
    "Value",
    "WindowStep",
    "build",
    "reshards",
    "plan_node",
    "schedule",
    "walk",
    "unstacked_values",
]
