"""Sums, running sums and statistics of half floats: computed in float32,
rounded once.
"""

from __future__ import annotations

from operator import attrgetter

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

N = 4096
LAYOUTS = ["", "d:data", "d:data; e:model"]
DIGITS = {"bfloat16": 2**-8, "float16": 2**-10}


# Each function, and NumPy's in float64; x has the shape [d, e], numbers near 1.
FUNCTIONS = {
    "reduce_sum": (lambda x: mtf.reduce_sum(x, "d"), lambda x: x.sum(0)),
    "reduce_mean": (lambda x: mtf.reduce_mean(x, "d"), lambda x: x.mean(0)),
    "mean_of_all": (mtf.reduce_mean, lambda x: x.mean()),
    "einsum": (lambda x: mtf.einsum([x], "e"), lambda x: x.sum(0)),
    "inner": (lambda x: mtf.einsum([x, x], "e"), lambda x: np.square(x).sum(0)),
    "cumsum": (lambda x: mtf.cumsum(x, "d"), lambda x: x.cumsum(0)),
    "cumsum_back": (
        lambda x: mtf.cumsum(x, "d", exclusive=True, reverse=True),
        lambda x: x[::-1].cumsum(0)[::-1] - x,
    ),
    "math.cumprod": (lambda x: mtf.math.cumprod(x, "d"), lambda x: x.cumprod(0)),
    "reduce_prod": (lambda x: mtf.reduce_prod(x, "d"), lambda x: x.prod(0)),
    "logsumexp": (
        lambda x: mtf.math.cumulative_logsumexp(x, "d"),
        lambda x: np.logaddexp.accumulate(x, 0),
    ),
    "recurrence": (
        lambda x: mtf.math.linear_recurrence(mtf.ones_like(x), x, "d"),
        lambda x: x.cumsum(0),
    ),
    "reduce_variance": (lambda x: mtf.reduce_variance(x, "d"), lambda x: x.var(0)),
    "reduce_std": (lambda x: mtf.reduce_std(x, "d"), lambda x: x.std(0)),
    "reduce_rms": (
        lambda x: mtf.reduce_rms(x, "d"),
        lambda x: np.sqrt(np.square(x).mean(0)),
    ),
}


def numbers(dtype, rng):
    """Numbers near 1, as half floats hold them, whose running products stay near 1,
    too.
    """
    noise = np.repeat(rng.normal(size=(N // 2, 2)), 2, 0) * np.array(
        [[1], [-1]] * (N // 2)
    )
    return np.asarray(tf.cast(1 + 0.02 * noise, dtype))


def value(function, array, layout, recorded):
    mesh = mtf.Mesh("data:2; model:2", layout)
    if recorded:
        function = mtf.function(function, mesh=mesh)
    return np.asarray(function(mtf.asarray(mesh, array, "d;e")).numpy(), "float64")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DIGITS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name, dtype, layout, rng):
    function, want = FUNCTIONS[name]
    x = numbers(dtype, rng)
    for recorded in (False, True):
        y = value(function, x, layout, recorded)
        # The parts of a sum are rounded once each, and so is the sum of them.
        np.testing.assert_allclose(
            y, want(x.astype("float64")), rtol=2.5 * DIGITS[dtype], atol=0
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DIGITS)
def test_gradients_of_running_sums(dtype, layout):
    def gradient(function):
        return lambda x: mtf.gradients([function(x)], [x])[0]

    ones = np.asarray(tf.ones([N, 2], dtype))
    for recorded in (False, True):
        for function in (
            lambda x: mtf.cumsum(x, "d"),
            lambda x: mtf.math.linear_recurrence(mtf.ones_like(x), x, "d"),
        ):
            dx = value(gradient(function), ones, layout, recorded)
            np.testing.assert_allclose(
                dx, np.arange(N, 0, -1)[:, None] * np.ones([1, 2]), rtol=DIGITS[dtype]
            )


def gradient_of_logsumexp(x):
    y = mtf.math.cumulative_logsumexp(x, "d")
    return mtf.gradients(
        [y],
        [x],
        [
            mtf.cast(
                mtf.one_hot(mtf.full(x.mesh, "e:2", N - 1, "int32"), f"d:{N}"), x.dtype
            )
        ],
    )[0]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_gradient_of_logsumexp_is_a_softmax(layout, rng):
    x = numbers("bfloat16", rng)
    dx = value(gradient_of_logsumexp, x, layout, True)
    powers = np.exp(x.astype("float64"))
    np.testing.assert_allclose(dx, powers / powers.sum(0), rtol=1e-2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_squares_do_not_overflow(layout):
    x = np.full([8, 2], 300, "float16") * np.array([[1], [-1]] * 4, "float16")
    np.testing.assert_allclose(
        value(lambda x: mtf.reduce_rms(x, "d"), x, layout, False), 300
    )
    np.testing.assert_allclose(
        value(lambda x: mtf.reduce_std(x, "d"), x, layout, False), 300
    )


@pytest.mark.parametrize("dtype, one", [("bfloat16", 256.0), ("float16", 2048.0)])
def test_many_added_at_once(dtype, one):
    mesh = mtf.Mesh("data:2", "d:data")
    parts = [mtf.full(mesh, "d:2", one, dtype), *[mtf.ones(mesh, "d:2", dtype)] * 8]
    np.testing.assert_array_equal(
        mtf.cast(mtf.add_n(parts), "float32").numpy(), one + 8
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("fn", ["math.erfinv", "math.lgamma", "math.digamma"])
def test_functions_that_tensorflow_lacks_for_half_floats_are_computed_in_float32(
    fn, dtype, jit
):
    mesh = mtf.Mesh("data:2", layout="d:data")
    numbers = tf.cast([0.25, 0.5, 0.625, 0.75], dtype)

    def step(x):
        y = attrgetter(fn)(mtf)(x)
        return y, mtf.gradients([y], [x])[0]

    y, dx = mtf.function(step, mesh=mesh, jit=jit)(mtf.asarray(mesh, numbers, "d"))
    wide = tf.cast(numbers, "float32")
    with tf.GradientTape() as tape:
        tape.watch(wide)
        want = attrgetter(fn)(tf)(wide)
    error = {"bfloat16": 1e-2, "float16": 2e-3}[dtype]
    assert y.dtype == dx.dtype == dtype
    np.testing.assert_allclose(y.numpy().astype("float32"), want, rtol=error)
    np.testing.assert_allclose(
        dx.numpy().astype("float32"), tape.gradient(want, wide), rtol=error
    )
