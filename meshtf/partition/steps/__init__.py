"""The steps of a program: what devices compute, and the collectives in between. All devices
run the same steps, and the number of devices does not change them.

    ReadStep      w, x
    Compute       einsum(w, x) -> h            each device on its shards
    ReshardStep   h: Partial -> Replicated     all_reduce over the mesh axis "model"
    Compute       relu(h) -> y
    WriteStep     y

Contents:

    step                what each step says of itself, and programs, which are steps in order
    collectives         steps in which devices communicate
    local               steps without communication: ops, and reads and writes of variables
    bodies              steps that run programs: loops, branches and calls
    sums_in_place       which terms of a sum are added in place
    before_pipelines    which sums a pipeline waits for
    late_sums           sums of an iteration that devices add up during the next one
    halves              layers in two halves of the batch, which hide each other's sums
    halved_body         the body of a loop in halves
    halved_steps        steps that compute a half
    overlap             rewrites for devices that communicate while they compute

A step answers for itself: what it reads, computes, waits for, communicates and runs. So whoever
wants to know something of a program, such as its memory or its time, asks each step, and need
not know its class. Only the runtimes, which do something else for each kind of step, have a
table by class (`runtime.lowering.step_executor`).
"""

from meshtf.partition.steps.bodies import BranchStep, CallStep, LoopStep
from meshtf.partition.steps.collectives import (
    Bucket,
    CollectiveStep,
    GatherStatisticsStep,
    ReshardStep,
    ShardSizes,
    WindowStep,
)
from meshtf.partition.steps.local import (
    BarrierStep,
    Compute,
    FirstEntryStep,
    Half,
    JoinHalvesStep,
    ReadStep,
    TakeHalfStep,
    WriteEntryStep,
    WriteStep,
    ZerosStep,
)
from meshtf.partition.steps.overlap import with_overlap
from meshtf.partition.steps.step import Body, Program, Step, Value, walk
from meshtf.partition.steps.sums_in_place import (
    Addend,
    added_in_place,
    values_in_sums,
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
    "GatherStatisticsStep",
    "Half",
    "JoinHalvesStep",
    "LoopStep",
    "Program",
    "ReadStep",
    "ReshardStep",
    "ShardSizes",
    "Step",
    "TakeHalfStep",
    "Value",
    "WindowStep",
    "WriteEntryStep",
    "WriteStep",
    "ZerosStep",
    "added_in_place",
    "values_in_sums",
    "walk",
    "with_overlap",
]
