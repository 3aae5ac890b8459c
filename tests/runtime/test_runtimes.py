"""Runtimes: mtf.function looks one up by name, and knows no more of it than the protocol."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.graph import ShardedValue
from meshtf.partition import build
from meshtf.runtime import runtimes
from meshtf.runtime.lowering.program_summary import ProgramSummary
from meshtf.runtime.storage.slot import TensorFlowSlot
from meshtf.runtime.variable import Variable
from meshtf.saved_model.single_device import SingleDevice
from tests.runtime.storage.test_slot import in_arrays, variable


class OneDevice(ProgramSummary):
    """An executable that runs op by op on a mesh of one position, without TensorFlow's
    graphs.
    """

    def __init__(self, recorded, arguments):
        self.program = build(recorded.nodes, recorded.results, recorded.mesh)
        self.stores = arguments
        self.calls = 0

    def __call__(self, arrays):
        self.calls += 1
        arrays_by_store = dict(zip(self.stores, arrays, strict=True))
        for step in self.program.steps:
            store = getattr(step, "store", None)
            if isinstance(store, Variable):
                arrays_by_store[store] = store.read()[0]
        results = SingleDevice(self.program, arrays_by_store).run()
        return [
            ShardedValue(value.placement, [y])
            for value, y in zip(self.program.results, results, strict=True)
        ]


class OneDeviceRuntime:
    """A runtime of the test's own."""

    def __init__(self):
        self.compiled = []

    def compile(self, recorded, arguments, jit):
        self.compiled.append(OneDevice(recorded, arguments))
        return self.compiled[-1]

    def slots(self, variable):
        return variable.slots()


def product(mesh, **options):
    """Returns a function of an array and a tensor, and the variable that it reads."""
    w = mtf.Variable(mesh, "d:4;d_ff:6", "normal", "w")

    @mtf.function(x="batch;d", **options)
    def layer(x, bias):
        h = mtf.einsum([x, w], "batch;d_ff") + bias
        return mtf.tanh(h), {"sum": mtf.reduce_sum(h, "d_ff")}

    return layer, w


def test_mtf_function_runs_on_any_runtime(monkeypatch):
    own = OneDeviceRuntime()
    monkeypatch.setitem(runtimes._RUNTIMES, "spmd", own)
    mesh = mtf.Mesh("", seed=1)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    bias = mtf.asarray(mesh, np.arange(6, dtype="float32"), "d_ff")
    results = []
    for name in ("placed", "spmd"):
        layer, w = product(mesh, runtime=name)
        y, others_out = layer(x, bias)
        layer(x, bias)
        dw, dbias = mtf.gradients([mtf.reduce_sum(y)], [w, bias])
        results.append([y, others_out["sum"], dw, dbias])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    assert [executable.calls for executable in own.compiled] == [2, 1]
    assert layer.lower(x, bias) is own.compiled[0] and layer.traces == 1


def test_an_executable_tells_collectives_and_memory():
    mesh = mtf.Mesh("data:2;model:2", "batch:data;d_ff:model")
    layer, _ = product(mesh)
    bias = mtf.asarray(mesh, np.ones(6, "float32"), "d_ff")
    executable = layer.lower(np.ones((2, 4), "float32"), bias)
    assert executable.collectives == ["all_reduce over model of [batch:2]"]
    w = 4 * 6 // 2
    x = 2 * 4 // 2
    b = 6 // 2
    y = 2 * 6 // 4
    total = 2 // 2
    assert executable.memory == (4 * w, 4 * (x + b), 4 * (y + total))


def test_memory_is_that_of_the_position_that_holds_most():
    mesh = mtf.Mesh("stage:2", stages="stage")
    with mtf.stage(1):
        small = mtf.Variable(mesh, "d:2", "zeros", "small")
    with mtf.stage(0):
        large = mtf.Variable(mesh, "d:6", "zeros", "large")

    @mtf.function(mesh=mesh)
    def change():
        small.assign(small + 1.0)
        large.assign(large + 1.0)

    assert change.lower().memory == (24, 0, 0)


def test_the_placed_runtime_brings_variables_into_its_slots():
    placed = runtimes.runtime_named("placed")
    v = in_arrays(variable())
    before = v.numpy()
    slots = placed.slots(v)
    assert all(isinstance(slot, TensorFlowSlot) for slot in slots)
    assert v.slots() is slots and placed.slots(v) is slots
    np.testing.assert_array_equal(v.numpy(), before)
    assert [slot.device[-5:] for slot in slots] == [f"CPU:{k}" for k in range(4)]


def test_a_placed_function_runs_on_variables_in_other_slots():
    v = in_arrays(variable())
    before = v.numpy()

    @mtf.function(mesh=v.mesh)
    def double():
        v.assign(v * 2.0)

    double()
    double()
    np.testing.assert_array_equal(v.numpy(), 4 * before)


def test_spmd_refuses_variables_and_calls():
    mesh = mtf.Mesh("")
    with pytest.raises(mtf.PlanError, match='Take runtime="placed"'):
        runtimes.runtime_named("spmd").slots(mtf.Variable(mesh, "d:2", "zeros", "v"))
    with pytest.raises(mtf.ArgumentError, match="spdm"):
        runtimes.runtime_named("spdm")


def test_an_exported_program_is_of_the_same_recorded_form():
    mesh = mtf.Mesh("data:2", "batch:data")
    layer, _ = product(mesh)
    bias = mtf.asarray(mesh, np.ones(6, "float32"), "d_ff")
    x = tf.TensorSpec([2, 4], tf.float32)
    names = [port.name for port in mtf.export(layer, x, bias).inputs]
    assert names == ["w", "x", "bias"]
