"""Gradients leave in few buckets, while the backward pass goes on: read from
TensorFlow's graph.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.runtime.placed.collectives import ring
from meshtf.runtime.placed.program.function_calls import BRANCH_OPS, CALL_OPS
from meshtf.runtime.tf_internals.run_records import graph_of
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

BATCH = {"tokens": np.ones([8, 8], np.int32), "targets": np.ones([8, 8], np.int32)}


def step_graph(monkeypatch, bucket_bytes, **mesh):
    """Returns the graph of a step of a language model, and how many reductions
    it has.
    """
    calls = []
    for name in ("all_reduce", "reduce_scatter"):
        own = getattr(ring, name)
        monkeypatch.setattr(
            ring, name, lambda *args, own=own: calls.append(args) or own(*args)
        )
    made = mtf.Mesh(bucket_bytes=bucket_bytes, devices="separate:4", **mesh)
    trainer = Trainer(
        LanguageModel(
            made, Architecture(vocab=16, d_model=16, d_ff=32, heads=2, d_kv=8, blocks=3)
        )
    )
    trainer.step(BATCH)
    ((compiled, _),) = trainer._step._compiled.values()
    return graph_of(compiled.executable.definition), len(calls)


def before(op):
    """Returns all that must be done before an op."""
    seen = set()
    todo = [op]
    while todo:
        one = todo.pop()
        new = {*(x.op for x in one.inputs), *one.control_inputs} - seen
        seen |= new
        todo += new
    return seen


def collective_sizes(graph, kind="all_reduce"):
    """Returns the calls of segments on the first device, in order, and where buckets
    are packed.
    """
    calls = [
        op
        for op in graph.get_operations()
        if op.type in (BRANCH_OPS[0], CALL_OPS[0]) and op.device.endswith("CPU:0")
    ]
    packed = [
        op
        for op in graph.get_operations()
        if op.name.startswith(f"move/{kind}/data/")
        and op.type == "ConcatV2"
        and op.device.endswith("CPU:0")
        and {x.op.type for x in list(op.inputs)[:-1]} == {"Reshape"}
    ]
    return calls, packed


def test_one_collective_instead_of_one_for_each_gradient(monkeypatch):
    _, unbucketed = step_graph(monkeypatch, 0, axes="data:4", layout="batch:data")
    assert unbucketed > 25
    monkeypatch.undo()
    graph, bucketed_losses = step_graph(
        monkeypatch, 2**20, axes="data:4", layout="batch:data"
    )
    assert bucketed_losses <= 2  # gradients, and what the loss is divided by
    assert len(collective_sizes(graph)[0]) <= 3


@pytest.mark.parametrize(
    "kind, variable_layout", [("all_reduce", ""), ("reduce_scatter", "d_model:data")]
)
def test_sums_do_not_wait_for_the_rest_of_the_backward_pass(
    kind, variable_layout, monkeypatch
):
    graph, _ = step_graph(
        monkeypatch,
        8 * 2**10,
        axes="data:4",
        layout="batch:data",
        variable_layout=variable_layout,
    )
    calls, packed = collective_sizes(graph, kind)
    assert len(calls) >= 4 and 3 <= len(packed) <= 8
    waits = [sum(call in before(op) for call in calls) for op in packed]
    assert min(waits) < max(waits) - 1  # some leave well before others
    waiting = [bool(before(call) & set(packed)) for call in calls]
    assert sum(waiting) <= 3 and waiting == sorted(
        waiting
    )  # but for the norm of all gradients
