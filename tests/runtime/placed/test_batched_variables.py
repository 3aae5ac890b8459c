"""Reads and updates of variables: one call for each device that does alike, results as
before.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from meshtf.runtime.placed.program import function_calls
from meshtf.runtime.placed.program.function_calls import BRANCH_OPS, CALL_OPS, called
from meshtf.runtime.tf_internals.onednn_names import onednn_rewrites
from meshtf.runtime.tf_internals.run_records import graph_of
from meshtf.runtime.tf_internals.switches import private

by_handles = pytest.mark.skipif(
    not (private("bare_handles") and private("packed_handles")),
    reason="calls by packed handles are switched off: MESHTF_PUBLIC_TENSORFLOW",
)

DEVICES = 4


def program(mesh):
    """Returns a training step of three variables, which two ops write in turn, and
    these.
    """
    ws = [
        mtf.Variable(mesh, shape, initializers.normal(0.5), f"w{k}")
        for k, shape in enumerate(("d:8;e:4", "e:4;d:8", "d:8"))
    ]
    adam = optimizers.AdamW(ws, 0.25, weight_decay=0.5)

    @mtf.function(mesh=mesh, x="batch;d", step="")
    def train(x, step):
        h = mtf.einsum([x, ws[0]], "batch;e")
        loss = mtf.reduce_mean(mtf.square(mtf.einsum([h, ws[1]], "batch;d") + ws[2]))
        adam.apply_gradients(mtf.gradients([loss], ws), ws, step)
        return loss

    return train, ws


def ran(mesh):
    """Returns the losses of three steps, the variables after them, and the ops of the
    graph.
    """
    train, ws = program(mesh)
    x = np.random.default_rng(0).standard_normal((8, 8), "float32")
    losses = [float(train(x, np.int32(step)).numpy()) for step in range(3)]
    ((compiled, _),) = train._compiled.values()
    ops = Counter(node.op for node in compiled.executable.definition.node_def)
    return losses, [w.numpy() for w in ws], ops


def onednn(monkeypatch, rewrites, left):
    """Sets whether TensorFlow has oneDNN compute products, and whether all are left to
    it.
    """
    monkeypatch.setattr(function_calls, "onednn_rewrites", lambda: rewrites)
    if left:
        monkeypatch.setattr(function_calls, "needs_graph_optimizer", lambda graph: True)
        monkeypatch.setattr(function_calls, "use_onednn_ops", lambda definition: None)


@by_handles
@pytest.mark.parametrize("layout", ["batch:data", "e:data"])
def test_devices_that_do_the_same_make_one_call_each(layout):
    devices = [f"CPU:{k}" for k in range(DEVICES)]
    one = ran(mtf.Mesh(""))
    many = ran(mtf.Mesh(f"data:{DEVICES}", layout, devices=devices))
    assert many[2]["Case"] == 2 * DEVICES  # one reads, one updates
    assert not [
        op
        for op in many[2]
        if op.startswith(("ReadVariable", "ResourceApply", "Assign"))
    ]
    assert (
        many[2]["Placeholder"] <= 3 + DEVICES
    )  # arguments, and handles of each device
    assert one[2]["ReadVariableOp"] and not one[2]["Case"]
    for a, b in zip((*one[0], *one[1]), (*many[0], *many[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@by_handles
@pytest.mark.parametrize("devices", [None, "logical:4"])
def test_segments_are_the_same_whether_their_device_runs_them_alone_or_not(
    devices, monkeypatch
):
    results = []
    for left in (False, True):
        onednn(monkeypatch, left or onednn_rewrites(), left)
        results.append(ran(mtf.Mesh("data:4", "batch:data", devices=devices)))
    (plain_losses, *_, ops), (optimised, *_, other_ops) = results
    assert plain_losses == optimised
    assert (
        ops[BRANCH_OPS[0]] == other_ops[CALL_OPS[0]] > 0
        and not ops[CALL_OPS[0]]
        and not other_ops[BRANCH_OPS[0]]
    )
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(a, b)


@by_handles
@pytest.mark.parametrize("devices", [None, "logical:4"])
def test_sharded_variables_beside_replicated_ones(devices):
    """w0 and w1 have four shards; w2, and slots of it, are held by all, on one device
    by one.
    """
    one = ran(mtf.Mesh(""))
    many = ran(mtf.Mesh("model:4", "e:model", devices=devices))
    assert not [
        op
        for op in many[2]
        if op.startswith(("ReadVariable", "ResourceApply", "Assign"))
    ]
    for a, b in zip((*one[0], *one[1]), (*many[0], *many[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@by_handles
@pytest.mark.parametrize("devices", [None, "logical:4"])
def test_slots_of_another_layout_are_updated_by_few_calls(devices):
    one = ran(mtf.Mesh(""))
    many = ran(
        mtf.Mesh(
            f"data:{DEVICES}", "batch:data", optimizer_layout="d:data", devices=devices
        )
    )
    assert not [
        op
        for op in many[2]
        if op.startswith(("ReadVariable", "ResourceApply", "Assign"))
    ]
    assert (
        many[2]["Slice"] <= DEVICES
    )  # w2 alone: w0 and w1, which decay first, in one call
    for a, b in zip((*one[0], *one[1]), (*many[0], *many[1]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_read_after_a_write_reads_what_was_written():
    """Twice, in one program: the handles of a position come in one tensor, so order is
    at stake.
    """
    mesh = mtf.Mesh("data:4", "batch:data", devices="logical:4")
    v, w = (mtf.Variable(mesh, "d:4", initializers.ones, name) for name in "vw")

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        before = v + w
        v.assign(v * 2.0 + mtf.reduce_sum(x, "batch"))
        w.assign(v + w)
        v.assign(w * 10.0)
        return before, v.tensor(), w.tensor()

    x = np.ones((8, 4), "float32")
    for v_then, w_then in ((1, 1), (110, 11)):
        before, v_now, w_now = (y.numpy()[0] for y in step(x))
        w_next = v_then * 2 + 8 + w_then
        assert (before, v_now, w_now) == (v_then + w_then, w_next * 10, w_next)


def test_constants_of_a_segment_are_made_once():
    mesh = mtf.Mesh("data:2", "batch:data")

    @mtf.function(mesh=mesh, x="batch;d")
    def softened(x):
        for _ in range(5):
            x = mtf.reduce_mean(x * 0.5, "d") * 0.5 + x
        return x

    softened(np.ones((4, 6), "float32"))
    ((compiled, _),) = softened._compiled.values()
    (callee,) = compiled.executable.graph_functions
    values = [
        node.attr["value"].SerializeToString()
        for node in callee.definition.node_def
        if node.op == "Const"
    ]
    assert values and len(values) == len(set(values))


def test_constants_between_segments_are_created_once_but_captured_ones_stay_separate():
    mesh = mtf.Mesh("data:2", "d:data", devices=["CPU:0", "CPU:1"])
    ones, same = (mtf.asarray(mesh, np.ones(4, "float32"), "d") for _ in range(2))

    @mtf.function(mesh=mesh, x="d")
    def f(x):
        gathered = [mtf.replicate(y) for y in (x + ones, x * 2.0 + same, x - 1.0)]
        return sum(mtf.reduce_sum(y * y) for y in gathered) + mtf.reduce_sum(
            ones - same
        )

    x = np.arange(4, dtype="float32")
    expected = sum(((a * x + b) ** 2).sum() for a, b in ((1, 1), (2, 1), (1, -1)))
    assert float(f(x).numpy()) == expected
    ((compiled, _),) = f._compiled.values()
    created = [
        (node.device, node.attr["value"].SerializeToString())
        for node in compiled.executable.definition.node_def
        if node.op == "Const"
    ]
    assert created and len(created) == len(set(created))


@by_handles
def test_what_writes_runs_whoever_takes_its_results():
    train, _ = program(mtf.Mesh("data:4", "batch:data", devices="logical:4"))
    train(np.ones((8, 8), "float32"), np.int32(0))
    ((compiled, _),) = train._compiled.values()
    graph = graph_of(compiled.executable.definition)
    writes = {
        op.name
        for op in graph.get_operations()
        if called(op.node_def) and not op.outputs
    }
    definition = compiled.executable.definition
    assert len(writes) >= DEVICES and writes <= set(definition.control_ret.values())
    assert set(definition.control_ret) == set(definition.signature.control_output)
