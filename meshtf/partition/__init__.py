"""Partition: from nodes to a program of segments and moves. Knows no op by name, and no TensorFlow.

    plan      states and cuts of one node: the planner's rules
    moves     the table of communication
    cost      bytes of a move
    steps     loads, moves, computations and stores, on values
    program   a graph as a list of steps
    nested    the same for bodies of loops and branches
    waiting   what waits for what, beside data, to save memory
    schedule  which of them run together in a segment
    buckets   which reductions are one collective
"""

from meshtf.partition.moves import Move, moves
from meshtf.partition.plan import NodePlan, plan_node
from meshtf.partition.program import build
from meshtf.partition.schedule import Segment, schedule
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

__all__ = ["BranchStep", "Bucket", "CallStep", "Compute", "Load", "LoopStep", "Move", "MoveStep",
           "NodePlan", "Program", "Put", "Segment", "Step", "Tell", "Value", "WindowStep", "build",
           "moves", "plan_node", "schedule", "walk", "walked_only"]
