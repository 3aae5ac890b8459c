"""The FLOPs that a model needs, whatever its layout: those of its matmuls, each of them once.

model_flops(program, durations) / positions / peak / seconds      # the MFU of a step

What `mtf.recompute` computes again does not count, and what several devices compute identically
counts once: so the utilization by these FLOPs ("MFU", Chowdhery et al. 2022, arXiv:2204.02311,
section 4.1) compares layouts, where that by the FLOPs of a device does not.
"""

from __future__ import annotations

from meshtf.forecast.time.durations import Durations
from meshtf.graph import Call, Node
from meshtf.partition import Program


def model_flops(program: Program, durations: Durations) -> float:
    """Returns the FLOPs of all matmuls of a program, of all devices together.

    Args:
      program: the planned program.
      durations: its durations.
    """
    of_bodies: dict[Program, float] = {}

    def of_body(body: Program) -> float:
        if body not in of_bodies:
            of_bodies[body] = of_steps(body)
        return of_bodies[body]

    def of_steps(body: Program) -> float:
        total = 0.0
        for step in body.steps:
            if step.node is None or _is_again(step.node):
                continue
            compute = step.computation
            if compute is not None and compute.computes_node:
                if durations.matmul_shape(compute) is not None:
                    total += step.node.op.flops(*(x.spec for x in step.node.inputs))
            for inner in step.bodies_by(of_body):
                total += of_body(inner.program) * inner.runs
        return total

    return of_steps(program)


def _is_again(node: Node) -> bool:
    """Returns whether the backward pass runs an op of the forward pass again."""
    if not node.primals:
        return False
    op, first = node.op, node.primals[0].node.op
    if isinstance(op, Call) and isinstance(first, Call):
        return op.body is first.body
    return op is first
