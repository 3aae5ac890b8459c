"""A whole training step on placed devices: ring, alias, one device and eight give the
same.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers, optimizers
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.placed.collectives import collectives_for, ring, shared_memory
from meshtf.runtime.placed.program.function_calls import called
from meshtf.runtime.tf_internals.run_records import graph_of


class Model(mtf.Module):
    """Embedding, a hidden layer with dropout, a softmax over the vocabulary."""

    def __init__(self, mesh):
        super().__init__("model")
        with self.scope():
            self.embed = layers.Embedding(mesh, "vocab:16", "d_model:8")
            self.inner = layers.Dense(mesh, "d_model:8", "d_ff:16", name="inner")
            self.outer = layers.Dense(mesh, "d_ff:16", "d_model:8", name="outer")

    def __call__(self, ids, labels):
        x = self.embed(ids)
        x = x + self.outer(mtf.dropout(mtf.gelu(self.inner(x)), 0.25))
        return mtf.reduce_mean(mtf.cross_entropy(self.embed.attend(x), labels, "vocab"))


def train(
    axes, layout="", variable_layout="", devices=None, jit=False, steps=2, **settings
):
    """Returns losses and variables after some steps, and the function."""
    mesh = mtf.Mesh(axes, layout, variable_layout, devices=devices, seed=7, **settings)
    model = Model(mesh)
    optimizer = optimizers.Adam(model.trainable_variables, 0.01)

    @mtf.function(
        mesh=mesh, jit=jit, ids="batch;length", labels="batch;length", step=""
    )
    def train_step(ids, labels, step):
        with mtf.seed(3, step):
            loss = model(ids, labels)
        variables = model.trainable_variables
        optimizer.apply_gradients(mtf.gradients([loss], variables), variables, step)
        return loss

    data = np.random.default_rng(0).integers(0, 16, (2, 8, 4)).astype("int32")
    losses = [float(train_step(*data, np.int32(step))) for step in range(steps)]
    return losses, {v.name: v.numpy() for v in model.variables}, train_step


def same(results, expected):
    """Losses and variables are equal but for rounding."""
    np.testing.assert_allclose(results[0], expected[0], rtol=2e-5)
    assert results[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        np.testing.assert_allclose(
            results[1][name], value, rtol=1e-3, atol=2e-5, err_msg=name
        )


@pytest.fixture(scope="module")
def one_device():
    losses, variables, f = train("")
    assert losses[-1] < losses[0]
    return losses, variables, f


LAYOUT = "batch:data;d_ff:model;vocab:model"


@pytest.mark.parametrize(
    "axes, devices", [("data:4;model:2", None), ("data:8", "logical:8")]
)
def test_eight_positions_equal_one(one_device, axes, devices):
    same(train(axes, LAYOUT, "d_model:data", devices=devices), one_device)


def test_a_ring_equals_alias(one_device, monkeypatch):
    used = []

    def counted(name, call):
        return lambda *args: used.append(name) or call(*args)

    for name in ("all_reduce", "reduce_scatter", "all_gather"):
        monkeypatch.setattr(ring, name, counted(name, getattr(ring, name)))
    same(
        train("data:2;model:2", LAYOUT, "d_model:data", devices="separate:4"),
        one_device,
    )
    assert set(used) == {"all_reduce", "reduce_scatter", "all_gather"}


@pytest.mark.sampled(5, each="axes variable_layout bucket_bytes")
@pytest.mark.parametrize("bucket_bytes", [0, 400, 2**20])
@pytest.mark.parametrize(
    "axes, variable_layout",
    [
        ("data:4", ""),
        ("data:2;model:2", ""),
        ("data:4", "d_model:data"),
        ("data:4", "d_ff:data"),
    ],
)
def test_buckets_of_any_size(one_device, axes, variable_layout, bucket_bytes):
    same(
        train(
            axes,
            LAYOUT,
            variable_layout,
            devices="separate:4",
            bucket_bytes=bucket_bytes,
        ),
        one_device,
    )


def test_shared_memory_takes_alias(monkeypatch):
    def fail(*args):
        raise AssertionError("a ring where memory is shared")

    for name in ("all_reduce", "reduce_scatter", "all_gather"):
        monkeypatch.setattr(ring, name, fail)
    mesh = mtf.Mesh("data:4", "batch:data", devices=[f"CPU:{i}" for i in range(4)])
    assert collectives_for(devices_of(mesh)) is shared_memory
    assert float(mtf.reduce_sum(mtf.ones(mesh, "batch:8"))) == 8


@pytest.mark.parametrize("axes", ["", "data:2", "model:2"])
def test_xla_equals_the_graph(one_device, axes):
    same(
        train(axes, LAYOUT.replace("vocab:model", "") if axes else "", jit=True),
        one_device,
    )


def test_ops_run_on_the_devices_of_the_mesh():
    mesh = mtf.Mesh("data:2", "batch:data", devices=["CPU:3", "CPU:5"])
    x = mtf.asarray(mesh, np.arange(4, dtype="float32"), "batch")
    y = mtf.exp(x)
    assert [v.device[-6:] for v in y.sharded_value.values] == [":CPU:3", ":CPU:5"]
    f = mtf.function(mtf.exp)
    np.testing.assert_array_equal(f(x).numpy(), y.numpy())
    calls = [n for n in f.lower(x).definition.node_def if called(n)]
    assert [n.device[-6:] for n in calls] == [":CPU:3", ":CPU:5"]


def test_positions_that_hold_the_same_on_one_device_compute_once():
    mesh = mtf.Mesh("data:4;model:2", "batch:data")
    x = mtf.asarray(mesh, np.arange(8, dtype="float32"), "batch")
    y = mtf.exp(x)
    assert len({id(v) for v in y.sharded_value.values}) == 4
    logical_mesh = mtf.Mesh("data:4;model:2", "batch:data", devices="logical:8")
    y = mtf.exp(mtf.asarray(logical_mesh, np.arange(8, dtype="float32"), "batch"))
    assert len({id(v) for v in y.sharded_value.values}) == 8


# Windows


class Around(mtf.graph.WindowedOp):
    """The sum of `before` rows above, the row itself, and `after` rows below."""

    dim: str
    before: int
    after: int

    def output_specs(self, x):
        return (x,)

    def window(self, input_index, dim):
        if dim != self.dim:
            return None
        return mtf.graph.Window(lambda a: a - self.before, lambda b: b + self.after)

    def local(self, context, x):
        axis = context.axis(0, self.dim)
        rows = context.local_size(self.dim)
        x = context.window(0, self.dim, x)
        windows = [
            tf.gather(x, tf.range(k, k + rows), axis=axis)
            for k in range(self.before + self.after + 1)
        ]
        return (tf.add_n(windows),)


@pytest.mark.parametrize(
    "before, after",
    [(0, 0), (1, 0), (0, 1), (2, 2), (3, 0), (0, 5), (7, 7), (12, 3), (-1, 1), (-9, 9)],
)
@pytest.mark.parametrize("axes", ["", "seq:2", "seq:4", "data:2;seq:4"])
def test_windows_may_be_longer_than_slices(before, after, axes, rng):
    x = rng.normal(size=(2, 8)).astype("float32")
    padded = np.pad(x, [(0, 0), (20, 20)])
    expected = sum(padded[:, 20 + k : 28 + k] for k in range(-before, after + 1))
    mesh = mtf.Mesh(axes, "batch:data;length:seq")
    named = mtf.asarray(mesh, x, "batch;length")
    y = mtf.graph.apply(Around("length", before, after), named)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)
    if "seq" in axes:
        assert y.placement.axes_of("length") == ("seq",)
        assert y.placement.unreplicated == set(mesh.axes)


@pytest.mark.parametrize("devices", ["logical:4", "separate:4", None])
def test_each_position_slices_its_own_piece(devices, rng):
    mesh = mtf.Mesh("x:2;y:2", "", devices=devices)
    array = rng.normal(size=(4, 6)).astype("float32")
    sharded = mtf.shard(mtf.asarray(mesh, array, "b;d"), {"b": "y", "d": "x"})
    for (i, j), piece in zip(mesh.coords, sharded.sharded_value.values, strict=True):
        np.testing.assert_array_equal(
            piece, array[2 * j : 2 * j + 2, 3 * i : 3 * i + 3]
        )


def test_results_stay_on_the_devices_that_made_them():
    mesh = mtf.Mesh("data:8", "batch:data", devices="logical:8")
    double = mtf.function(lambda x: x * 2.0, mesh=mesh, x="batch")
    y = double(double(np.ones(8, "float32")))
    assert [
        tf.DeviceSpec.from_string(v.backing_device).device_index
        for v in y.sharded_value.values
    ] == [*range(8)]
    np.testing.assert_array_equal(y.numpy(), np.full(8, 4))


@pytest.mark.parametrize("jit", [False, True])
def test_programs_of_cpus_are_not_searched_for_what_they_cannot_have(jit):
    mesh = mtf.Mesh("x:2", "batch:x")
    double = mtf.function(lambda x: x + x, mesh=mesh, jit=jit, x="batch")
    np.testing.assert_array_equal(
        double(np.ones(4, "float32")).numpy(), np.full(4, 2.0)
    )
    config = tf.compat.v1.ConfigProto.FromString(
        double.lower(np.ones(4, "float32")).config
    )
    assert config.graph_options.rewrite_options.disable_meta_optimizer
    searched = config.experimental.mlir_bridge_rollout == 0
    assert searched is jit
    assert (config.graph_options.optimizer_options.opt_level == 0) is jit


def test_what_groups_of_one_memory_hold_alike_is_added_once_and_no_slice_is_brought():
    """The sums over data and model are one for all devices."""
    mesh = mtf.Mesh("data:4;model:2", "batch:data;h:model", devices="logical:8")
    total = mtf.function(lambda x: mtf.reduce_sum(x * x), mesh=mesh, x="batch;h")
    x = np.arange(32, dtype="float32").reshape(8, 4)
    assert float(total(x).numpy()) == (x * x).sum()
    ((compiled, _),) = total._compiled.values()
    ops = graph_of(compiled.executable.definition).get_operations()
    assert Counter(op.type for op in ops)["AddN"] == 1
    assert not [
        op for op in ops if op.type == "Identity" and op.name.startswith("load/")
    ]


def test_an_argument_that_is_returned_is_of_use():
    mesh = mtf.Mesh("x:4", "batch:x", devices="logical:4")
    same = mtf.function(lambda x: x, mesh=mesh, x="batch")(
        np.arange(4, dtype="float32")
    )
    np.testing.assert_array_equal(same.numpy(), np.arange(4))
    np.testing.assert_array_equal((same + same).numpy(), 2 * np.arange(4))
