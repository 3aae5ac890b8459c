"""Order and memory of a pipeline, read from TensorFlow's graph and from the program's
steps.
"""

from __future__ import annotations

import collections
import re

import numpy as np
import pytest

import meshtf as mtf
from meshtf.partition import CallStep
from meshtf.pipeline import Task
from meshtf.runtime.placed.program.function_calls import called
from meshtf.runtime.tf_internals.run_records import graph_of

CASES = [  # stages, microbatches, schedule, chunks, recompute
    (2, 4, "gpipe", 1, False),
    (2, 4, "1f1b", 1, False),
    (4, 6, "gpipe", 1, True),
    (4, 6, "1f1b", 1, True),
    (2, 4, "1f1b", 2, False),
]


class Layer(mtf.Module):
    """A layer that keeps something for its gradient."""

    def __init__(self, mesh, k):
        super().__init__(f"layer_{k}")
        with self.scope():
            self.dense = mtf.layers.Dense(mesh, "d:4", "d_ff:8", name="dense")
            self.back = mtf.layers.Dense(mesh, "d_ff:8", "d:4", name="back")

    def __call__(self, x):
        return x + self.back(mtf.sigmoid(self.dense(x)))


def compiled(stages, microbatches, schedule, chunks, recompute):
    """Returns a pipeline, and what became of a step of its training."""
    mesh = mtf.Mesh(f"stage:{stages}")
    pipe = mtf.pipeline.GPipe(
        [Layer(mesh, k) for k in range(stages * chunks)],
        stages,
        microbatches,
        schedule,
        chunks,
        recompute=recompute,
    )

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        loss = pipe.loss(lambda y: mtf.reduce_mean(mtf.square(y)), x)
        for v, dv in zip(
            pipe.trainable_variables, mtf.gradients([loss], pipe.trainable_variables)
        ):
            v.assign(v - 0.1 * dv)
        return loss

    x = np.ones((2 * microbatches, 4), "float32")
    step(x)
    return pipe, step.lower(x)


def task_of(name, stages):
    """Returns the task that an op of TensorFlow's graph is part of."""
    found = re.match(r"call/(forward|backward)\.(\d+)\.(\d+)/", name)
    if found is None:
        return None
    kind, chunk, number = found[1], int(found[2]), int(found[3])
    return Task(chunk % stages, number, kind, chunk // stages)


def before(graph):
    """Returns by op all ops that it waits for, by data or by control dependencies."""
    found = {}

    def waits(op):
        if op not in found:
            direct = {*(x.op for x in op.inputs), *op.control_inputs}
            found[op] = direct.union(*map(waits, direct))
        return found[op]

    return {op: waits(op) for op in graph.get_operations()}


def order_in(graph, stages):
    """Returns the tasks of each stage, in the only order in which they can run."""
    calls = collections.defaultdict(list)
    for op in graph.get_operations():
        if called(op.node_def) and task_of(op.name, stages):
            calls[task_of(op.name, stages)].append(op)
    waits = before(graph)
    rank = {
        task: sum(
            other.stage == task.stage and all(waits[op] >= {*others} for op in ops)
            for other, others in calls.items()
        )
        for task, ops in calls.items()
    }
    for stage in range(stages):  # each waits for another number of them: it is a chain
        ranks = sorted(rank[task] for task in calls if task.stage == stage)
        assert ranks == list(range(len(ranks)))
    return tuple(
        tuple(sorted((t for t in calls if t.stage == stage), key=rank.__getitem__))
        for stage in range(stages)
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_graph_runs_each_stage_in_the_order_of_the_schedule(case):
    pipe, program = compiled(*case)
    assert order_in(graph_of(program.definition), case[0]) == pipe.schedule.tasks


def test_bodies_are_traced_once_and_a_microbatch_adds_calls_alone():
    ops, functions, steps = [], [], []
    for microbatches in (2, 4, 6):
        _, program = compiled(2, microbatches, "1f1b", 1, False)
        nodes = program.definition.node_def  # that run
        calls = [n for n in nodes if task_of(n.name, 2) and n.op != "Const"]
        ops.append(len(nodes))
        steps.append(len(program.program.steps))
        functions.append({*filter(None, map(called, calls))})
        assert len(calls) == len(functions[-1]) * microbatches
    assert [*map(len, functions)] == [4, 4, 4]  # forward and backward of two chunks
    assert ops[2] - ops[1] == ops[1] - ops[0] <= 2 * 8  # of two microbatches
    assert steps[2] - steps[1] == steps[1] - steps[0] <= 2 * 12


def held(program, stages):
    """Returns how many microbatches' activations each stage holds at most, and their
    shapes.

    What a forward call makes is held from then on until the last backward call that
    takes it.
    """
    steps = [s for s in program.program.steps if isinstance(s, CallStep)]
    last = {
        v: i
        for i, step in enumerate(steps)
        for v in step.dependencies
        if step.op.call_id.backward
    }
    spans, shapes = ([[] for _ in range(stages)] for _ in range(2))
    for i, step in enumerate(steps):
        if not step.op.call_id.backward:
            kept = [v for v in step.outs if v in last]
            spans[step.op.call_id.chunk].append((i, max(last[v] for v in kept)))
            shapes[step.op.call_id.chunk].append({repr(v.spec.shape) for v in kept})
    return [
        max(sum(start <= i <= end for start, end in mine) for i in range(len(steps)))
        for mine in spans
    ], shapes


@pytest.mark.parametrize("stages", [2, 4])
def test_how_many_microbatches_are_held(stages):
    for schedule, want in (
        ("1f1b", [stages - k for k in range(stages)]),
        ("gpipe", [6] * stages),
    ):
        pipe, program = compiled(stages, 6, schedule, 1, False)
        most, shapes = held(program, stages)
        assert (
            most == want == list(mtf.pipeline.peak_activations(pipe.schedule.order()))
        )
        assert all(
            "[batch:2 d_ff:8]" in kept for mine in shapes for kept in mine
        )  # inside of layers


def test_with_recompute_inputs_of_chunks_are_all_that_is_held():
    _, program = compiled(2, 6, "gpipe", 1, True)
    for step in program.program.steps:
        if isinstance(step, CallStep) and not step.op.call_id.backward:
            last = step.op.call_id.chunk == 1
            assert [repr(v.spec.shape) for v in step.outs] == [
                "[]" if last else "[batch:2 d:4]"
            ]
