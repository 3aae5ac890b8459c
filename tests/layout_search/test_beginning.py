"""The beginning of a program ends where its name says, and is planned on any mesh."""

from __future__ import annotations

import functools

import pytest

import meshtf as mtf
from meshtf.graph import Loop, WriteOp
from meshtf.hardware import as_hardware
from meshtf.layout_search.beginning import (
    Beginning,
    Recordings,
    Stores,
    forward_nodes,
    nodes_before_updates,
)
from meshtf.layout_search.problem import Problem
from meshtf.mesh import Placement
from meshtf.partition import LoopStep, ReadStep
from tests.layout_search.programs import STACK_ARGUMENTS, stack

PROBLEM = Problem(stack, STACK_ARGUMENTS, 4, as_hardware("h100"), memory=2**40)


def nodes_of(**choices):
    """Returns the nodes of the training step, recorded on a mesh without axes."""
    return PROBLEM.record("", {}, choices).nodes


def test_the_forward_pass_of_microbatches_is_the_body_of_a_loop():
    *before, last = forward_nodes(nodes_of(microbatches=2))
    assert isinstance(last.op, Loop) and not last.outputs
    body = last.op.body
    assert not any(node.primals for node in [*before, *body.nodes])
    # Without microbatches, the last node is the loop over layers, without its residuals.
    loop = forward_nodes(nodes_of())[-1]
    assert isinstance(loop.op, Loop) and len(loop.outputs) == 1
    assert body.nodes[-1].op.num_iterations == loop.op.num_iterations == 4


def test_nothing_is_updated_before_updates():
    nodes = nodes_of(microbatches=2)
    gradient = list(nodes_before_updates(nodes))
    assert not any(isinstance(node.op, WriteOp) for node in gradient)
    (loop,) = [node for node in gradient if isinstance(node.op, Loop)]
    assert loop.outputs and len(gradient) < len(nodes)


def test_a_beginning_is_planned_on_another_mesh():
    nodes = nodes_of(microbatches=2)
    mesh = mtf.Mesh("data:4", "batch:data", variable_layout="d_model:data")
    program = Beginning(nodes_before_updates(nodes), Stores(nodes)).plan(mesh)
    reads = [step for step in program.steps if isinstance(step, ReadStep)]
    placements = {step.store.name: step.out.placement for step in reads}
    weights = [name for name in placements if name.endswith("kernel")]
    assert placements["x"] == Placement("batch:data")
    assert {placements[name] for name in weights} == {Placement("d_model:data")}
    assert any(isinstance(step, LoopStep) for step in program.steps)


def test_recordings_are_compared_by_their_ops():
    def forward(**choices):
        nodes = nodes_of(**choices)
        return Beginning(forward_nodes(nodes), Stores(nodes))

    assert forward(recompute=True).is_like(forward())
    assert not forward(microbatches=2).is_like(forward())


@pytest.mark.parametrize("optimizer", ["AdamW", "Adafactor", "SGD"])
def test_meshes_share_recordings_with_slots_that_are_sharded_apart(
    optimizer, monkeypatch
):
    make_optimizer = getattr(mtf.optimizers, optimizer)
    build = functools.partial(stack, make_optimizer=make_optimizer)
    problem = Problem(build, STACK_ARGUMENTS, 4, as_hardware("h100"), memory=2**40)
    meshes = [
        ("data:4", {"layout": "batch:data", "optimizer_layout": "d_model:data"}),
        ("a:2;b:2", {"layout": "batch:a", "optimizer_layout": "d_model:a"}),
        ("a:2;b:2", {"layout": "batch:a;d_ff:b", "optimizer_layout": "d_model:a"}),
        ("data:4", {"layout": "batch:data", "optimizer_layout": "d_ff:data"}),
        ("data:4", {"layout": "batch:data"}),
    ]
    own = [problem.record(*mesh, {}) for mesh in meshes]
    made = []
    record = Problem.record

    def counted(*args):
        made.append(args)
        return record(*args)

    monkeypatch.setattr(Problem, "record", counted)
    recordings = Recordings(problem)
    for mesh, recorded in zip(meshes, own):
        assert problem.outline(recordings.of(*mesh, {})) == problem.outline(recorded)
        recordings.compare(recorded, {})
        assert recordings.are_shared
    assert len(made) < len(meshes)


def test_a_state_that_is_placed_in_another_way_is_not_shared():
    def build(mesh):
        kernel = mtf.Variable(mesh, "d_model:16;d_ff:64", "normal", "kernel")
        # It has the name of a slot, and the layout of a variable.
        mean = mtf.Variable(
            mesh, "d_model:16;d_ff:64", "zeros", "own/kernel/mean", trainable=False
        )

        @mtf.function(mesh=mesh, x="batch;d_model", step="")
        def train_step(x, step):
            mean.assign(0.9 * mean + 0.1 * kernel)
            return mtf.reduce_sum(mtf.einsum([x, kernel], "batch;d_ff"))

        return train_step

    problem = Problem(build, STACK_ARGUMENTS, 4, as_hardware("h100"), memory=2**40)
    recordings = Recordings(problem)
    settings = {"layout": "batch:data", "optimizer_layout": "d_model:data"}
    recordings.compare(problem.record("data:4", settings, {}), {})
    assert not recordings.are_shared
