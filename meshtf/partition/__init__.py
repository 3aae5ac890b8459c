"""Partition: from nodes to a program of segments and moves. Knows no op by name, and no
TensorFlow.

Contents:

    plan      states and cuts of one node: the planner's rules
    moves     the table of communication
    cost      bytes of a move
    steps     loads, moves, computations and stores, on values
    build     a graph as a list of steps
    builder   plans node after node, and writes the steps
    wanted_placement    where outputs should lie, and at which stage ops run
    loops_and_branches  the same for bodies of loops and branches
    calls     the same for a body that is called many times
    waiting   what waits for what, beside data, to save memory
    schedule  which of them run together in a segment
    buckets   which reductions are one collective
"""

from meshtf.partition.build import build
from meshtf.partition.planner import NodePlan, plan_node
from meshtf.partition.reshard_table import Move, moves
from meshtf.partition.segments import Segment, schedule
from meshtf.partition.steps import (
    BranchStep,
    Bucket,
    CallStep,
    Compute,
    Load,
    LoopStep,
    MoveStep,
    Program,
    Put,
    Step,
    Tell,
    Value,
    WindowStep,
    walk,
    walked_only,
)

__all__ = [
    "BranchStep",
    "Bucket",
    "CallStep",
    "Compute",
    "Load",
    "LoopStep",
    "Move",
    "MoveStep",
    "NodePlan",
    "Program",
    "Put",
    "Segment",
    "Step",
    "Tell",
    "Value",
    "WindowStep",
    "build",
    "moves",
    "plan_node",
    "schedule",
    "walk",
    "walked_only",
]
