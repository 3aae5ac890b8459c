"""Gradients of half floats that are sums of many terms: added in float32, rounded once.

In bfloat16 a sum of ones stops at 256, in float16 at 2,048.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.layers import initializers

MESHES = [
    mtf.Mesh(""),
    mtf.Mesh("data:2;model:2", "batch:data;d:model"),
    mtf.Mesh("data:2;model:2", "batch:data", variable_layout="d:data"),
]
IDS = ["one", "sharded", "FSDP"]
# In bfloat16 a sum of these that begins at either end stays at 256 until the other end: it
# is 32 too small. Few terms show so what takes hundreds of ones.
FACTORS = np.array([256.0, *[1.0] * 32, 256.0], "float32")


def ones_variable(mesh, dtype, name="w"):
    return mtf.Variable(mesh, "d:4", initializers.ones, name=name, dtype=dtype)


def gradient(function, mesh, variable, recorded):
    """The gradient of function(x) by a variable, x[batch, d] being ones."""

    def grad(x):
        (dv,) = mtf.gradients([function(mtf.cast(x, variable.dtype))], [variable])
        assert dv.dtype == variable.dtype
        return mtf.cast(dv, "float32")

    run = mtf.function(grad, mesh=mesh) if recorded else grad
    return run(mtf.asarray(mesh, np.ones((2, 4), "float32"), "batch;d")).numpy()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("mesh", MESHES[::2], ids=IDS[::2])
@pytest.mark.parametrize("once", [False, True], ids=["reads", "read once"])
def test_of_a_variable_that_is_used_many_times(mesh, recorded, once):
    v = ones_variable(mesh, "bfloat16")

    def loss(x):
        w = v.tensor() if once else v
        return mtf.add_n([mtf.reduce_sum(x * w) for _ in range(320)])

    np.testing.assert_array_equal(gradient(loss, mesh, v, recorded), 640.0)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 9])
def test_of_few_terms(count):
    mesh = mtf.Mesh("")
    v = ones_variable(mesh, "bfloat16")
    for recorded in (False, True):
        got = gradient(
            lambda x: mtf.add_n([mtf.reduce_sum(x * v) for _ in range(count)]),
            mesh,
            v,
            recorded,
        )
        np.testing.assert_array_equal(got, 2.0 * count)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("mesh", MESHES, ids=IDS)
def test_of_what_a_scan_uses_in_each_iteration(mesh, recorded):
    v = ones_variable(mesh, "bfloat16")
    numbers = np.ones(320, "float32") if recorded else FACTORS

    def factors():
        return mtf.cast(mtf.asarray(mesh, numbers, "iterations"), "bfloat16")

    def carried(x):
        return mtf.reduce_sum(
            mtf.scan(lambda h, c: (h + c * x * v, None), x, factors())[0]
        )

    def added(x):
        return mtf.reduce_sum(
            mtf.scan_and_sum(lambda h, c: (h, c * x * v, None), None, factors())[1]
        )

    def stacked(x):
        return mtf.reduce_sum(mtf.scan(lambda h, c: (h, c * x * v), None, factors())[1])

    for loss in (carried, added, stacked):
        got = gradient(loss, mesh, v, recorded)
        # The first few terms are added in bfloat16: here, up to 4 of the ones are lost.
        tolerance = 0.0 if recorded else 0.015
        np.testing.assert_allclose(got, 2 * numbers.sum(), tolerance)


def test_of_float16_in_a_loop():
    mesh = mtf.Mesh("data:2", "batch:data")
    v = ones_variable(mesh, "float16")

    def loss(x):
        return mtf.reduce_sum(
            mtf.scan(lambda h, _: (h + x * v, None), x, length=4096)[0]
        )

    np.testing.assert_array_equal(gradient(loss, mesh, v, True), 8192.0)


def test_of_a_loop_within_a_loop():
    mesh = mtf.Mesh("data:2", "batch:data")
    v = ones_variable(mesh, "bfloat16")

    def inner(h, x):
        return mtf.scan(lambda h, _: (h + x * v, None), h, length=32, dim="inner")[0]

    def loss(x):
        return mtf.reduce_sum(
            mtf.scan(lambda h, _: (inner(h, x), None), x, length=32)[0]
        )

    np.testing.assert_array_equal(gradient(loss, mesh, v, True), 2048.0)


def test_of_a_variable_that_all_layers_of_a_repeat_use():
    mesh = mtf.Mesh("data:2", "batch:data")
    v = ones_variable(mesh, "bfloat16")

    class Layer(mtf.Module):
        def __init__(self, name="layer"):
            super().__init__(name)
            self.own = ones_variable(mesh, "bfloat16", "own")

        def __call__(self, x):
            return x + v * self.own

    repeat = mtf.layers.Repeat(Layer, mtf.Dimension("layers", 512))
    np.testing.assert_array_equal(
        gradient(lambda x: mtf.reduce_sum(repeat(x)), mesh, v, True), 1024.0
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recorded", [False, True], ids=["eager", "recorded"])
@pytest.mark.parametrize("axes, variables", [("", ""), ("stage:2;data:2", "d:data")])
def test_of_microbatches_of_a_pipeline(axes, variables, recorded):
    mesh = mtf.Mesh(axes, "batch:data", variable_layout=variables, optional_axes="data")
    v, w = (ones_variable(mesh, "bfloat16", name) for name in "vw")
    pipe = mtf.pipeline.GPipe([lambda x: x * v, lambda x: x * (w * v)], 2, len(FACTORS))
    examples = np.repeat(FACTORS, 2)[:, None] * np.ones(4, "float32")

    def within(x):
        return pipe.loss(mtf.reduce_mean, mtf.cast(x, "bfloat16"))

    def after(x):
        return mtf.reduce_mean(pipe(mtf.cast(x, "bfloat16")))

    for loss in (within, after):

        def step(x, loss=loss):
            return [mtf.cast(dx, "float32") for dx in mtf.gradients([loss(x)], [v, w])]

        run = mtf.function(step, mesh=mesh) if recorded else step
        dv, dw = run(mtf.asarray(mesh, examples, "batch;d"))
        np.testing.assert_allclose(dv.numpy(), 0.5 * FACTORS.mean(), 0.015)
        np.testing.assert_allclose(dw.numpy(), 0.25 * FACTORS.mean(), 0.015)
