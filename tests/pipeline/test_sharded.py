"""Variables and slots that are cut inside of stages (FSDP, ZeRO-1): the numbers, and
what moves.
"""

from __future__ import annotations

import collections

import numpy as np
import pytest

import meshtf as mtf

D, D_FF = 8, 32
FSDP = {"variable_layout": "d:data"}
ZERO_1 = {"optimizer_layout": "d:data"}
CASES = [  # rules beside batch:data, rows of a microbatch, what GPipe is told
    (FSDP, 4, {}),  # activations are moved, since they are smaller than weights
    (FSDP, 64, {}),  # weights are gathered
    (FSDP, 64, {"schedule": "gpipe", "recompute": True}),
    (FSDP, 64, {"chunks": 2}),
    ({"variable_layout": "d_ff:data"}, 64, {}),
    (ZERO_1, 64, {}),
    (ZERO_1, 4, {"recompute": True}),
]


class Layer(mtf.Module):
    """A norm and a feed-forward layer beside the identity."""

    def __init__(self, mesh, k, dtype="float32"):
        super().__init__(f"layer_{k}")
        self.dtype = dtype
        with self.scope():
            self.norm = mtf.layers.LayerNorm(mesh, f"d:{D}", name="norm")
            self.ff = mtf.layers.FeedForward(mesh, f"d:{D}", f"d_ff:{D_FF}", name="ff")

    def __call__(self, x):
        x = mtf.cast(x, self.dtype)
        return x + self.ff(self.norm(x))


def loss_of(y, labels):
    return mtf.reduce_mean(mtf.square(y - mtf.cast(labels, y.dtype)))


def trained(mesh, forward, variables, rows, seed):
    """Returns losses and gradients of two steps, and the variables after them."""
    # Epsilon well above the noise of gradients, of which Adam would make steps of full
    # length.
    optimizer = mtf.optimizers.AdamW(variables, 0.01, epsilon=1e-4)
    x, labels = np.random.default_rng(seed).normal(size=(2, rows, D)).astype("float32")

    @mtf.function(mesh=mesh, x="batch;d", labels="batch;d", number="")
    def step(x, labels, number):
        loss = forward(x, labels)
        grads = mtf.gradients([loss], variables)
        optimizer.apply_gradients(grads, variables, number)
        return [loss, *grads]

    found = [y.numpy() for i in range(2) for y in step(x, labels, np.int32(i))]
    return [*found, *(v.numpy() for v in variables)]


@pytest.mark.parametrize("rules, rows, how", CASES, ids=str)
def test_cut_variables_and_slots_change_no_number(rules, rows, how, seed):
    one = mtf.Mesh("", seed=seed)
    layers = [Layer(one, k) for k in range(4)]

    def plain(x, labels):
        for layer in layers:
            x = layer(x)
        return loss_of(x, labels)

    want = trained(
        one, plain, [v for layer in layers for v in layer.variables], 4 * rows, seed
    )
    mesh = mtf.Mesh("stage:2;data:2", "batch:data", seed=seed, **rules)
    pipe = mtf.pipeline.GPipe([Layer(mesh, k) for k in range(4)], 2, 4, **how)
    got = trained(
        mesh,
        lambda x, labels: pipe.loss(loss_of, x, labels),
        pipe.variables,
        4 * rows,
        seed,
    )
    for i, (y, expected) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(y, expected, 2e-4, 2e-6, err_msg=str(i))


@pytest.mark.parametrize("recompute", [False, True])
def test_bfloat16_layers_and_loss(recompute, seed):
    one = mtf.Mesh("", seed=seed)
    layers = [Layer(one, k, "bfloat16") for k in range(4)]

    def plain(x, labels):
        for layer in layers:
            x = layer(x)
        return loss_of(x, labels)

    want = trained(
        one, plain, [v for layer in layers for v in layer.variables], 64, seed
    )
    mesh = mtf.Mesh("stage:2;data:2", "batch:data", seed=seed, **FSDP)
    pipe = mtf.pipeline.GPipe(
        [Layer(mesh, k, "bfloat16") for k in range(4)], 2, 4, recompute=recompute
    )
    got = trained(
        mesh, lambda x, labels: pipe.loss(loss_of, x, labels), pipe.variables, 64, seed
    )
    first = 1 + len(pipe.variables)  # of the first step: AdamW's updates hang on signs
    for i, (y, expected) in enumerate(zip(got[:first], want[:first])):
        assert y.dtype == expected.dtype
        y, expected = (np.asarray(a, "float32") for a in (y, expected))
        assert np.abs(y - expected).max() <= 0.05 * np.abs(expected).max() + 1e-3, i


def explained(rules, rows, microbatches, dtype="float32", **how):
    mesh = mtf.Mesh("stage:2;data:2", "batch:data", devices="abstract", **rules)
    pipe = mtf.pipeline.GPipe(
        [Layer(mesh, k, dtype) for k in range(4)], 2, microbatches, **how
    )
    variables = pipe.trainable_variables
    # Epsilon well above the noise of gradients, of which Adam would make steps of full
    # length.
    optimizer = mtf.optimizers.AdamW(variables, 0.01, epsilon=1e-4)

    @mtf.function(mesh=mesh, x="batch;d", number="")
    def step(x, number):
        loss = pipe.loss(lambda y: mtf.reduce_mean(mtf.square(y)), x)
        optimizer.apply_gradients(mtf.gradients([loss], variables), variables, number)
        return loss

    return mtf.explain(
        step, np.zeros((rows * microbatches, D), "float32"), np.int32(0)
    ), variables


@pytest.mark.parametrize("rules", [FSDP, ZERO_1], ids=["FSDP", "ZeRO-1"])
@pytest.mark.parametrize("microbatches", [2, 6])
def test_weights_are_gathered_and_gradients_scattered_once_in_a_step(
    rules, microbatches
):
    forecast, variables = explained(rules, 64, microbatches)
    every = collections.Counter(
        tuple(v.shape.sizes) for v in variables if "d" in v.shape.names
    )
    for kind, finished in (("all_gather", "d"), ("reduce_scatter", "sum")):
        moved = collections.Counter()
        for m in forecast.collectives:
            if m.kind == kind and "batch" not in dict(m.tensor.shape):
                assert finished in m.tensor.states
                moved[tuple(size for _, size in m.tensor.shape)] += m.times
        assert moved == every


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("microbatches", [2, 6])
def test_casts_of_weights_are_made_and_gathered_once_in_a_step(recompute, microbatches):
    forecast, variables = explained(
        FSDP, 64, microbatches, "bfloat16", recompute=recompute
    )
    gathered = [
        m
        for m in forecast.collectives
        if m.kind == "all_gather" and "batch" not in dict(m.tensor.shape)
    ]
    assert {m.tensor.dtype for m in gathered} == {"bfloat16"}
    # A bias is not needed in the backward pass, but the same gathered value is used there.
    assert sum(m.times for m in gathered) == len(variables)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("axes, variables", [("", ""), ("stage:2;data:2", "d:data")])
def test_gradients_of_half_floats_add_up_over_many_microbatches(axes, variables):
    """Rounded after each microbatch, their sum stops growing at half of what it is."""
    mesh = mtf.Mesh(axes, "batch:data", variable_layout=variables, optional_axes="data")
    ones = mtf.layers.initializers.ones
    v, w = (
        mtf.Variable(mesh, "d:4", ones, name=name, dtype="bfloat16") for name in "vw"
    )
    count = 512
    pipe = mtf.pipeline.GPipe([lambda x: x * v, lambda x: x * (w * v)], 2, count)

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        loss = pipe.loss(mtf.reduce_mean, mtf.cast(x, "bfloat16"))
        grads = mtf.gradients([loss], [v, w])
        assert [dx.dtype for dx in grads] == ["bfloat16", "bfloat16"]
        return [mtf.cast(dx, "float32") for dx in grads]

    dv, dw = step(np.ones((2 * count, 4), "float32"))
    np.testing.assert_allclose(dv.numpy(), 0.5, 1e-2)
    np.testing.assert_allclose(dw.numpy(), 0.25, 1e-2)
