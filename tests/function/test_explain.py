"""`mtf.explain`: forecasts of calls, on meshes with and without hardware, of broken
programs.
"""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import layers, optimizers


class Mlp:
    """A step of training of two layers."""

    def __init__(self, axes, layout, **settings):
        self.mesh = mtf.Mesh(axes, layout, **settings)
        self.first = layers.Dense(self.mesh, "d_model:16", "d_ff:32", name="first")
        self.second = layers.Dense(self.mesh, "d_ff:32", "d_model:16", name="second")
        self.variables = (
            *self.first.trainable_variables,
            *self.second.trainable_variables,
        )
        self.optimizer = optimizers.Adam(
            self.variables, optimizers.warmup_cosine(1e-3, 2, 9)
        )

        @mtf.function(mesh=self.mesh, x="batch;d_model", step="")
        def step(x, step):
            loss = mtf.reduce_mean(mtf.square(self.second(mtf.relu(self.first(x))) - x))
            self.optimizer.apply_gradients(
                mtf.gradients([loss], self.variables), self.variables, step
            )
            return loss

        self.step = step


X = tf.TensorSpec([64, 16], tf.float32)


def test_phases():
    forecast = mtf.explain(
        Mlp("data:4;model:2", "batch:data;d_ff:model").step, X, np.int32(0)
    )
    phases = [op.phase for op in forecast.ops]
    assert [
        p for i, p in enumerate(phases) if p != "update" and p not in phases[:i]
    ] == ["forward", "backward"]
    of = {
        phase: {op.title for op in forecast.ops if op.phase == phase}
        for phase in set(phases)
    }
    assert (
        "adamupdate" in of["update"] and "cos" in of["update"]
    )  # what serves updates alone
    assert "einsum" in of["forward"] & of["backward"] and "einsum" not in of["update"]
    # a backward op has the line of the op whose gradient it makes
    lines = {
        p: {op.line for op in forecast.ops if (op.phase, op.title) == (p, "einsum")}
        for p in ("forward", "backward")
    }
    assert lines["forward"] == lines["backward"] and len(lines["forward"]) == 1
    # a gradient is reduced in the backward pass, though it is the update that needs it
    assert {
        m.phase
        for m in forecast.collectives
        if m.kind == "all_reduce" and len(m.tensor.shape) == 2 and m.axis == "data"
    } == {"backward"}


def test_an_abstract_mesh_gives_the_forecast_of_a_real_one_and_runs_nothing():
    real = Mlp("data:4", "batch:data", variable_layout="d_model:data")
    abstract = Mlp(
        "data:4", "batch:data", variable_layout="d_model:data", devices="abstract"
    )
    array = np.zeros(X.shape, "float32")
    forecast = mtf.explain(abstract.step, X, np.int32(0))
    assert forecast == mtf.explain(real.step, array, np.int32(0))
    assert forecast.bytes_moved() > 0
    with pytest.raises(
        mtf.MeshError, match='(?s)it is abstract.*devices="abstract".*mtf.explain'
    ):
        abstract.step(array, np.int32(0))
    for use in (
        abstract.first.kernel.numpy,
        abstract.first.kernel.read,
        (mtf.ones(abstract.mesh, "batch:4") * 2.0).numpy,
    ):
        with pytest.raises(mtf.MeshError, match="it is abstract"):
            use()
    assert "float32 [batch:4]" in repr(mtf.ones(abstract.mesh, "batch:4"))


def test_only_shape_and_type_of_arguments_are_used():
    mesh = mtf.Mesh("data:4", "batch:data", devices="abstract")
    huge = np.broadcast_to(np.float32(1), [2**20, 2**20])  # 4 TiB, were it copied
    step = mtf.function(lambda x: mtf.reduce_sum(x), mesh=mesh, x="batch;d")
    assert mtf.explain(step, huge).memory.arguments == 2**40
    with pytest.raises(mtf.ShapeError, match="names do not fit"):
        mtf.explain(step, tf.TensorSpec([4], tf.float32))


def test_a_plain_function_of_tensors():
    mesh = mtf.Mesh("data:2", "batch:data")
    x = mtf.ones(mesh, "batch:4;d:8")
    forecast = mtf.explain(lambda x: mtf.reduce_sum(x, "batch"), x)
    assert [(m.kind, m.axis, m.bytes) for m in forecast.collectives] == [
        ("all_reduce", "data", 32.0)
    ]
    assert forecast.results == forecast.collectives and forecast.memory.arguments == 64


def test_functions_without_a_name():
    mesh = mtf.Mesh("data:2", "batch:data")
    x = mtf.ones(mesh, "batch:4;d:8")
    scaled = functools.partial(lambda scale, x: mtf.reduce_sum(x * scale, "batch"), 2.0)
    assert len(mtf.explain(scaled, x).collectives) == 1
    nothing = functools.partial(lambda scale: mtf.zeros(None, "d:4"), 2.0)
    with pytest.raises(mtf.MeshError, match="determines the mesh that it runs on"):
        mtf.function(nothing)()
    with pytest.raises(mtf.PlanError, match="has no such argument"):
        mtf.function(scaled, z="batch")


def test_a_broken_program_shows_what_was_planned_and_where_it_broke():
    mesh = mtf.Mesh("data:2", "batch:data;length:data", devices="abstract")

    @mtf.function(mesh=mesh, x="batch;d")
    def fn(x):
        y = mtf.exp(x)
        z = mtf.broadcast(y, "batch:4;d:8;length:6")
        return mtf.reduce_sum(z)

    forecast = mtf.explain(fn, np.zeros((4, 8), "float32"))
    assert [op.title for op in forecast.ops] == ["exp"]
    assert forecast.error.startswith("LayoutError: two dimensions") and __file__.rsplit(
        "/"
    )[-1] in (forecast.error)
    assert (
        mtf.explain(
            mtf.function(lambda x: mtf.exp(x), mesh=mesh, x="batch;d"),
            np.zeros((4, 8), "float32"),
        ).error
        is None
    )


def test_repeated_work_is_reported():
    mesh = mtf.Mesh("data:4;model:2", "batch:data", devices="abstract")
    w = mtf.Variable(mesh, "d:8;e:16", layers.initializers.zeros, "w")
    step = mtf.function(lambda x: mtf.einsum([x, w], "batch;e"), mesh=mesh, x="batch;d")
    forecast = mtf.explain(step, tf.TensorSpec([32, 8], tf.float32))
    op = forecast.ops[-1]
    assert (op.title, op.repeated, op.flops) == ("einsum", 2, 2 * 32 * 8 * 16 / 4)
    assert forecast.repeated_flops() == op.flops / 2


def test_a_forecast_prints_and_saves_itself(tmp_path):
    mesh = mtf.Mesh("data:2", "batch:data", devices="abstract")
    forecast = mtf.explain(
        mtf.function(lambda x: mtf.reduce_sum(x), mesh=mesh, x="batch"),
        tf.TensorSpec([4], tf.float32),
    )
    assert "all_reduce data" in str(forecast)
    forecast.save_json(tmp_path / "new" / "plan.json")
    forecast.save_html(tmp_path / "new" / "plan.html")
    assert json.loads((tmp_path / "new" / "plan.json").read_text())["axes"] == [
        ["data", 2]
    ]
    assert "<!doctype html>" in (tmp_path / "new" / "plan.html").read_text().lower()
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "plan.html",
        "plan.json",
    ]


def test_memory_is_that_of_the_runtime_which_is_named():
    step = Mlp("data:4;model:2", "batch:data;d_ff:model", devices="abstract").step
    peaks = {}
    for name, settings in {
        "plain": {},
        "cpu": {"hardware": "cpu"},  # without XLA
        "h100": {"hardware": "h100"},
        "spmd": {"runtime": "spmd"},
        "placed": {"runtime": "placed", "hardware": "h100"},
    }.items():
        forecast = mtf.explain(step, X, np.int32(0), **settings)
        assert f"under the {forecast.runtime} runtime:" in str(forecast).replace(
            "\n    ", " "
        )
        peaks[name] = forecast.runtime, forecast.memory.peak
    assert peaks["plain"] == peaks["cpu"] == peaks["placed"]
    assert peaks["h100"] == peaks["spmd"]
    assert peaks["plain"][0] == "placed" and peaks["spmd"][0] == "spmd"
    with pytest.raises(mtf.ArgumentError, match="runtime"):
        mtf.explain(step, X, np.int32(0), runtime="xla")


@pytest.mark.parametrize("layout", ["batch:data;dff:model", "bach:data;d_ff:model"])
def test_misspelt_rules_are_told_as_a_call_tells_them(layout):
    mlp = Mlp("data:2;model:1", layout)
    with pytest.warns(mtf.LayoutWarning, match="which the program never has"):
        assert mtf.explain(mlp.step, X, np.int32(0)).error is None
    strict = Mlp("data:2;model:1", layout, strict=True)
    x = np.zeros([64, 16], "float32")
    for fails in (
        lambda: mtf.explain(strict.step, X, np.int32(0)),
        lambda: strict.step.explain(X, np.int32(0)),
        lambda: strict.step(x, np.int32(0)),
    ):
        with pytest.raises(mtf.LayoutError, match="(?s)never has.*Did you mean"):
            fails()


@pytest.mark.parametrize("recompute", [False, True])
def test_mfu_compares_layouts_with_and_without_recomputation(recompute):
    def time_of(axes, layout):
        mesh = mtf.Mesh(axes, layout, devices="abstract")
        first = layers.Dense(mesh, "d:64", "e:128", name="first")
        second = layers.Dense(mesh, "e:128", "f:64", name="second")
        variables = (*first.trainable_variables, *second.trainable_variables)

        @mtf.function(mesh=mesh, x="batch;d")
        def step(x):
            def net(x):
                return second(mtf.relu(first(x)))

            y = mtf.recompute(net)(x) if recompute else net(x)
            return mtf.gradients([mtf.reduce_mean(mtf.square(y))], variables)

        x = tf.TensorSpec([64, 64], tf.float32)
        return mtf.explain(step, x, hardware="h100").time

    # Forward, and the gradients of both kernels and of the hidden layer.
    flops = 2 * 64 * (2 * 64 * 128) * 2 + 2 * 64 * 64 * 128
    shares = set()
    for axes, layout in (("data:4", "batch:data"), ("data:4", "f:data")):
        time = time_of(axes, layout)
        shares.add(round(time.mfu * time.seconds / flops, 25))
        assert time.peak_share >= time.mfu * (1 - 1e-9)
        if recompute or layout != "batch:data":
            assert time.peak_share > 1.1 * time.mfu
    assert len(shares) == 1  # the model needs the same in all layouts
