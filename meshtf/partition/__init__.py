"""Partition: from nodes to a program of segments and moves. Knows no op by name, and no TensorFlow.

    plan      states and cuts of one node: the planner's rules
    moves     the table of communication
    cost      bytes of a move
    program   a graph as a list of loads, moves, computations and stores
    schedule  which of them run together in a segment
"""

from meshtf.partition.moves import Move, moves
from meshtf.partition.plan import NodePlan, plan_node
from meshtf.partition.program import (
  Compute,
  Load,
  MoveStep,
  Program,
  Put,
  Tell,
  Value,
  WindowStep,
  build,
)
from meshtf.partition.schedule import Segment, schedule

__all__ = ["Compute", "Load", "Move", "MoveStep", "NodePlan", "Program", "Put", "Segment", "Tell",
           "Value", "WindowStep", "build", "moves", "plan_node", "schedule"]
