"""Ops outside of functions on live meshes: with much data they run on the devices, as small
programs; values, gradients and errors are those of the host.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.runtime.spmd import eager_programs
from meshtf.runtime.spmd.live.device_arrays import DeviceShards

LAYOUT = "batch:data; d:model"
X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")


@pytest.fixture(autouse=True)
def small_data(monkeypatch):
    """Has all data count as much data."""
    monkeypatch.setattr(eager_programs, "_MIN_BYTES", 0)


@pytest.fixture
def compiled(monkeypatch):
    """The ops of which a program was compiled, in order."""
    ops = []

    class Program(eager_programs._EagerProgram):
        def __init__(self, node):
            super().__init__(node)
            ops.append(node.op.display_name)

    monkeypatch.setattr(eager_programs, "_EagerProgram", Program)
    return ops


def mesh_of(devices):
    """Returns a mesh with the layout of the tests."""
    return mtf.Mesh("data:2;model:2", LAYOUT, devices=devices)


def on_devices(devices, shape="batch;d", x=X):
    """Returns an array on a mesh, where a function has computed it.

    Args:
      devices: the devices, or a mesh.
      shape: the dimensions of the array.
      x: the array.
    """
    mesh = devices if isinstance(devices, mtf.Mesh) else mesh_of(devices)
    return mtf.function(lambda x: x + 0, mesh=mesh, x=shape)(x)


def results_of(x):
    """Returns results of various ops, and a gradient."""
    v = mtf.Variable(x.mesh, x.shape, "ones", "v")
    v.assign_add(x)
    y = mtf.softmax(x * 2.0 + v, "d")
    loss = mtf.reduce_sum(y * y)
    values, indices = mtf.top_k(y, "d", "top:2")
    return [
        y,
        y["batch", 3],
        y["d", 1:3],
        mtf.rename(y, {"d": "e"}),
        mtf.einsum([x, mtf.rename(v.value, {"batch": "b"})], "batch;b"),
        values,
        indices,
        *mtf.gradients([loss], [x]),
    ]


def test_results_are_those_of_the_host(compiled):
    placed = results_of(on_devices(None))
    assert not compiled
    live = results_of(on_devices("spmd:cpu"))
    assert compiled
    for a, b in zip(live, placed, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-5, atol=1e-6)


def test_equal_ops_are_compiled_once(compiled):
    x = on_devices("spmd:cpu")
    y = x * 3.0
    z = y * 3.0
    assert compiled == ["multiply"] or len(compiled) == 1
    assert isinstance(z.sharded_value.values, DeviceShards)
    np.testing.assert_allclose(z.numpy(), X * 9.0, rtol=1e-6)


def test_programs_do_not_keep_the_values_of_inputs():
    x = on_devices("spmd:cpu")
    y = mtf.stop_gradient(x) * 2.0
    (programs,) = (
        list(p.values()) for m, p in eager_programs._programs.items() if m is y.mesh
    )
    assert programs
    for program in programs:
        assert all(len(store.shards) == 0 for store in program._stores)
        nodes = program._program.program.steps
        assert nodes


def test_indices_are_checked_at_once_with_the_line_of_each_op():
    mesh = mesh_of("spmd:cpu")
    ids = on_devices(mesh, "batch", np.arange(8, dtype="int32"))
    table = on_devices(mesh, "d;e", X.T)
    messages = []
    for _ in range(2):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="7 is not in"
        ) as first:
            mtf.gather(table, ids, "d")
        messages.append(str(first.value))
    with pytest.raises(tf.errors.InvalidArgumentError, match="7 is not in") as other:
        mtf.gather(table, ids, "d")
    assert messages[0] == messages[1] != str(other.value)


def test_little_data_stays_on_the_host(monkeypatch, compiled):
    monkeypatch.setattr(eager_programs, "_MIN_BYTES", 1 << 20)
    x = on_devices("spmd:cpu")
    np.testing.assert_array_equal((x * 2.0).numpy(), X * 2.0)
    assert not compiled


def test_a_variable_that_was_read_keeps_its_value():
    v = mtf.Variable(
        mtf.Mesh("data:2", "batch:data", devices="spmd:cpu"), "batch:8", "ones", "v"
    )
    add = mtf.function(lambda: v.assign_add(1.0), mesh=v.mesh)
    before = v.value
    add()
    np.testing.assert_array_equal(before.numpy(), np.ones(8))
    np.testing.assert_array_equal(v.numpy(), np.full(8, 2.0))


def test_what_xla_cannot_compile_runs_on_the_host(monkeypatch):
    attempts = []

    class Refused(eager_programs._EagerProgram):
        def __init__(self, node):
            attempts.append(node)
            raise mtf.PlanError("XLA cannot compile it")

    x = on_devices("spmd:cpu")
    monkeypatch.setattr(eager_programs, "_EagerProgram", Refused)
    for _ in range(2):
        np.testing.assert_array_equal((x * 2.0).numpy(), X * 2.0)
    assert len(attempts) == 1


def test_an_op_on_the_result_of_a_failed_call_raises_its_error():
    mesh = mesh_of("spmd:cpu")
    table = on_devices(mesh, "d;e", X.T)
    look_up = mtf.function(lambda ids: mtf.gather(table, ids, "d"), ids="batch")
    failed = look_up(np.full(8, 9, "int32"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="9 is not in"):
        (failed * 2.0).numpy()
