"""Stages: what is made at one lies there and nowhere else, and the numbers stay the
same.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.partition import ReshardStep, walk

MESHES = {
    "stage:2": "",
    "stage:2;data:2": "batch:data",
    "data:2;stage:2": "batch:data",
    "stage:2;data:2;model:2": "batch:data;d_ff:model",
    "model:2;stage:4": "d_ff:model",
}


class Net(mtf.Module):
    """A feed-forward layer at each stage; the first layer's matrix is used at the last
    stage too.
    """

    def __init__(self, mesh, stages=4):
        super().__init__("net")
        self.mesh, self.stages = mesh, stages
        with self.scope():
            self.layers = []
            for k in range(stages):
                with mtf.stage(k % mesh.axes.get("stage", 1)):
                    self.layers.append(
                        mtf.layers.FeedForward(
                            mesh, "d:8", "d_ff:16", name=f"layer_{k}"
                        )
                    )

    def __call__(self, x):
        for k, layer in enumerate(self.layers):
            with mtf.stage(k % self.mesh.axes.get("stage", 1)):
                x = x + mtf.dropout(layer(x), 0.1, name=f"dropout_{k}")
                if k == self.stages - 1:
                    x = mtf.rename(
                        mtf.einsum(
                            [x, self.layers[0].trainable_variables[0]], "batch;d_ff"
                        ),
                        "d_ff",
                        "d_out",
                    )
        return x


def train(axes, layout, seed, optimizer="AdamW", eager=False, **kwargs):
    """Returns the losses of three steps, the variables then, and the mesh."""
    mesh = mtf.Mesh(axes, layout, seed=seed, **kwargs)
    net = Net(mesh)
    variables = net.trainable_variables
    rule = getattr(mtf.optimizers, optimizer)(variables, 0.01)
    x = np.random.default_rng(seed).normal(size=(8, 8)).astype("float32")

    def step(x, number):
        with mtf.seed(seed, number):
            y = net(x)
        loss = mtf.reduce_mean(y * y)
        grads, norm = mtf.optimizers.clip_by_global_norm(
            mtf.gradients([loss], variables), 1.0
        )
        rule.apply_gradients(grads, variables, number)
        return loss, norm

    program = step if eager else mtf.function(step, mesh=mesh)
    losses = []
    for i in range(3):
        args = (
            mtf.asarray(mesh, x, "batch;d"),
            mtf.constant(mesh, i, dtype="int32"),
        )
        losses += [float(y) for y in program(*args)]
    return losses, [v.numpy() for v in variables], net


@pytest.mark.sampled(5, each="axes optimizer")
@pytest.mark.parametrize("axes", MESHES)
@pytest.mark.parametrize("optimizer", ["AdamW", "Adafactor"])
def test_stages_change_no_number(axes, optimizer, seed):
    want = train("", "", seed, optimizer)
    for kwargs in ({}, {"variable_layout": "d:data"}, {"optimizer_layout": "d:data"}):
        if kwargs and ("data" not in axes or optimizer != "AdamW"):
            continue
        losses, variables, _ = train(axes, MESHES[axes], seed, optimizer, **kwargs)
        np.testing.assert_allclose(losses, want[0], 1e-5)
        for v, expected in zip(variables, want[1], strict=True):
            np.testing.assert_allclose(v, expected, 1e-4, 1e-6)


def test_stages_run_eagerly_and_on_devices_of_their_own(seed):
    want = train("", "", seed)
    for kwargs in ({"eager": True}, {"devices": "separate:4"}):
        losses, variables, net = train("stage:2;data:2", "batch:data", seed, **kwargs)
        np.testing.assert_allclose(losses, want[0], 1e-5)
        for v, expected in zip(variables, want[1], strict=True):
            np.testing.assert_allclose(v, expected, 1e-4, 1e-6)
    for k, layer in enumerate(net.layers):
        for variable in layer.variables:
            there = [x is not None for x in variable.slots()]
            assert there == (
                [True, True, False, False] if k % 2 == 0 else [False, False, True, True]
            )


def test_what_is_sent(seed):
    mesh = mtf.Mesh("stage:2")
    with mtf.stage(0):
        w = mtf.Variable(mesh, "d:4;e:4", mtf.layers.initializers.ones, name="w")
    with mtf.stage(1):
        v = mtf.Variable(mesh, "e:4;d:4", mtf.layers.initializers.ones, name="v")

    @mtf.function(x="batch;d")
    def step(x):
        with mtf.stage(0):
            h = mtf.relu(mtf.einsum([x, w], "batch;e"))
        with mtf.stage(1):
            loss = mtf.reduce_sum(mtf.einsum([h, v], "batch;d"))
        for variable, dy in zip((w, v), mtf.gradients([loss], [w, v])):
            variable.assign(variable - dy)
        return loss

    x = np.ones((2, 4), "float32")
    assert [m for m in step.lower(x).collectives if not m.startswith("drop")] == [
        "send over stage of [batch:2 e:4]",
        "send over stage of [batch:2 e:4]",
    ]
    assert float(step(x)) == 2 * 4 * 4 * 4
    assert "stage 1" in str(step.explain(x).as_dict())


def test_bad_stages_are_refused():
    mesh = mtf.Mesh("stage:2;data:2")
    with (
        mtf.stage(2),
        pytest.raises(mtf.MeshError, match="no stage 2.*\n.*\n.*test_stages.py"),
    ):
        mtf.zeros(mesh, "a:2")
    with pytest.raises(
        mtf.MeshError, match="\"stage\" is for the stages|'stage' is for the stages"
    ):
        mtf.Mesh("stage:2", layout="batch:stage", stages="stage")
    with (
        pytest.raises(mtf.MeshError, match="'stage' is for the stages"),
        mtf.layout("batch:stage"),
    ):
        mtf.ones(mesh, "batch:2")
    # A rule of the mesh itself makes it an axis like others.
    assert mtf.Mesh("stage:2", layout="batch:stage").num_stages == 1
    with pytest.raises(TypeError):
        mtf.stage("first")
    with mtf.stage(7):
        assert mtf.ones(mtf.Mesh("data:2"), "a:2").numpy().sum() == 2


def test_stages_are_not_exported():
    mesh = mtf.Mesh("stage:2")

    def fn(x):
        with mtf.stage(1):
            return x * 2

    with pytest.raises(mtf.PlanError, match="multiply runs on stage 1 only"):
        mtf.export(fn, mtf.ones(mesh, "a:2"))


@pytest.mark.parametrize(
    "axes, layout, rules",
    [
        ("stage:2", "", ""),
        ("stage:2;data:2", "batch:data", ""),
        ("stage:2;data:2", "batch:data", "d:data"),
    ],
)
def test_a_loop_at_a_stage_sends_what_it_captures_outside_of_iterations(
    axes, layout, rules, seed
):
    rng = np.random.default_rng(seed)
    value, x = (rng.normal(size=(4, 4)).astype("float32") for _ in range(2))
    mesh = mtf.Mesh(axes, layout, variable_layout=rules)
    with mtf.stage(0):
        w = mtf.Variable(
            mesh,
            "d:4;e:4",
            lambda mesh, shape, name: mtf.asarray(mesh, value, shape),
            name="w",
        )

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        def turn(h, _):
            return mtf.rename(mtf.tanh(mtf.einsum([h, w], "batch;e")), "e", "d"), None

        with mtf.stage(1):
            y = mtf.scan(turn, x, length=3)[0]
        return mtf.gradients([mtf.reduce_sum(y)], [w, x])

    with tf.GradientTape() as tape:
        w_, y = tf.constant(value), tf.constant(x)
        start = y
        tape.watch([w_, start])
        for _ in range(3):
            y = tf.tanh(y @ w_)
        loss = tf.reduce_sum(y)
    for got, want in zip(step(x), tape.gradient(loss, [w_, start]), strict=True):
        np.testing.assert_allclose(got.numpy(), want, 1e-5, 1e-6)
    sends = [
        times
        for reshard, times in walk(step.lower(x).program)
        if isinstance(reshard, ReshardStep)
        and reshard.reshard.kind == "send"
        and set(reshard.src.spec.shape.names) == {"d", "e"}
    ]
    assert sends == [1, 1, 1]  # the variable, forwards and backwards, and its cotangent
