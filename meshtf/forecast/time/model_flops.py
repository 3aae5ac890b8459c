"""The FLOPs that a model needs, whatever its layout: those of its matmuls, each of them once.

model_flops(program, durations) / positions / peak / seconds      # the MFU of a step

What `mtf.recompute` computes again does not count, nor does the bubble of a pipeline, and what
several devices compute identically counts once: so the utilization by these FLOPs ("MFU",
Chowdhery et al. 2022, arXiv:2204.02311, section 4.1) compares layouts, where that by the FLOPs of
a device does not.
"""

from __future__ import annotations

from meshtf.forecast.time.durations import Durations
from meshtf.graph import Call, Loop, Node
from meshtf.graph.control_flow.scan_dimension import TICK
from meshtf.graph.op_kinds import FusedMatmulsOp
from meshtf.partition import Body, Program


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
                    total += _flops(step.node)
            for inner in step.bodies_by(of_body):
                times = _runs(inner) * program.mesh.group_size(*inner.axes)
                total += of_body(inner.program) * times
        return total

    return of_steps(program)


def _flops(node: Node) -> float:
    """Returns the FLOPs of an op, without those of products that another op has computed."""
    flops = float(node.op.flops(*(x.spec for x in node.inputs)))
    if isinstance(node.op, FusedMatmulsOp):
        repeated = node.op.num_repeated_products / node.op.num_products
        flops *= 1 - repeated
    return flops


def _runs(body: Body) -> int:
    """Returns how often a device runs a body to some purpose: of the ticks of a pipeline those in
    which it has a microbatch.
    """
    if body.dim != TICK:
        return body.runs
    runs = body.runs
    for step in body.program.steps:
        if step.loop and step.loop.axes and step.loop.op.dim:
            runs = body.runs - step.loop.op.dim.size + 1
    return runs


def _is_again(node: Node) -> bool:
    """Returns whether the backward pass runs an op of the forward pass again."""
    if not node.primals:
        return False
    op, first = node.op, node.primals[0].node.op
    if isinstance(op, Call) and isinstance(first, Call):
        return op.body is first.body
    if isinstance(op, Loop) and isinstance(first, Loop):
        # One of the two may return residuals in addition.
        return op.body.recorded_nodes == first.body.recorded_nodes
    return op is first
