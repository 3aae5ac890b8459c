"""Partition: turns recorded nodes into a program of local computations and reshards.

A node is one application of an op to global tensors. The program says what each device
computes on its shards, and which collectives run in between. No file here imports TensorFlow
or names a particular op.

Contents:

    planner                 the rules that choose placements and sharded factors of a node
    preferred_placement     the placement that outputs should have, and a node's stage
    reshard_table           the collectives between any two placements of a tensor
    cost                    sizes of shards, and the bytes that reshards communicate
    steps                   the steps of a program: what each says of itself
    builder                 plans one node after another, and appends its steps
    loops_and_branches      plans loops and branches, with their bodies
    calls                   plans calls of a body that many calls share
    build                   turns a graph into a program
    control_dependencies    which steps wait for which values, to save device memory
    segments                which computations run as one TensorFlow function
    buckets                 which reductions share one collective
"""

from meshtf.partition.build import build
from meshtf.partition.planner import NodePlan, plan_node
from meshtf.partition.reshard_table import Reshard, reshards
from meshtf.partition.segments import Segment, schedule
from meshtf.partition.steps import (
    Addend,
    BarrierStep,
    Body,
    BranchStep,
    Bucket,
    CallStep,
    CollectiveStep,
    Compute,
    FirstEntryStep,
    GatherStatisticsStep,
    Half,
    JoinHalvesStep,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Step,
    TakeHalfStep,
    Value,
    WindowStep,
    WriteEntryStep,
    WriteStep,
    ZerosStep,
    added_in_place,
    values_in_sums,
    walk,
    with_overlap,
)

__all__ = [
    "Addend",
    "BarrierStep",
    "Body",
    "BranchStep",
    "Bucket",
    "CallStep",
    "CollectiveStep",
    "Compute",
    "FirstEntryStep",
    "Half",
    "JoinHalvesStep",
    "ReadStep",
    "LoopStep",
    "Reshard",
    "ReshardStep",
    "NodePlan",
    "Program",
    "WriteEntryStep",
    "WriteStep",
    "ZerosStep",
    "Segment",
    "Step",
    "TakeHalfStep",
    "GatherStatisticsStep",
    "Value",
    "WindowStep",
    "added_in_place",
    "build",
    "reshards",
    "plan_node",
    "schedule",
    "values_in_sums",
    "walk",
    "with_overlap",
]
