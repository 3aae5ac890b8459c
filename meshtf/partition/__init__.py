"""Partition: from nodes to a program of segments and reshards. Knows no op by name, and
no TensorFlow.

Contents:

    planner                 states and sharded names of one node: the planner's rules
    preferred_placement     where outputs should lie, and at which stage ops run
    reshard_table           the table of communication
    cost                    bytes of a reshard
    steps                   loads, reshards, computations and stores, on values
    builder                 plans node after node, and writes the steps
    loops_and_branches      the same for bodies of loops and branches
    calls                   the same for a body that is called many times
    build                   a graph as a list of steps
    control_dependencies    what waits for what, beside data, to save memory
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
