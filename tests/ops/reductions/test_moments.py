"""Products, variances and roots of mean squares: values, zeros among factors, constant
rows.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf


@pytest.fixture(params=["", "a:x;b:y", "a:y"])
def mesh(request):
    return mtf.Mesh("x:2;y:2", layout=request.param)


def tensor(mesh, array, dtype="float32"):
    return mtf.asarray(mesh, np.asarray(array, dtype), "a;b")


def test_products_of_zeros_have_right_gradients(mesh):
    array = np.array(
        [[1, 2, 3, 4], [0, 2, -3, 5], [0, 2, 0, 5], [-1, 1, 1, 0]], "float32"
    )
    x = tensor(mesh, array)
    for dims, axes in (("b", 1), ("a", 0), (None, None)):
        y = mtf.reduce_prod(x, dims)
        np.testing.assert_array_equal(y.numpy(), np.prod(array, axes))
        v = tf.constant(array)
        with tf.GradientTape() as tape:
            tape.watch(v)
            z = tf.reduce_prod(v, axes)
        np.testing.assert_array_equal(
            mtf.gradients([y], [x])[0].numpy(), tape.gradient(z, v)
        )
    product = mtf.reduce_prod(tensor(mesh, array, "int32"), "b")
    assert product.dtype == "int32" and product.numpy().tolist() == [24, 0, 0, 0]


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (mtf.reduce_variance, tf.math.reduce_variance),
        (mtf.reduce_std, tf.math.reduce_std),
        (mtf.reduce_rms, lambda x, axis=None: tf.sqrt(tf.reduce_mean(x * x, axis))),
    ],
)
def test_variance_and_roots(mesh, ours, theirs):
    array = np.random.default_rng(0).normal(3.0, 2.0, (4, 8)).astype("float32")
    x, v = tensor(mesh, array), tf.constant(array)
    for dims, axis in (("b", 1), ("a", 0), (None, None)):
        with tf.GradientTape() as tape:
            tape.watch(v)
            z = theirs(v, axis)
        y = ours(x, dims)
        np.testing.assert_allclose(y.numpy(), z, rtol=1e-4)
        np.testing.assert_allclose(
            mtf.gradients([y], [x])[0].numpy(),
            tape.gradient(z, v),
            rtol=1e-3,
            atol=1e-6,
        )


def test_constant_rows_have_no_spread_and_gradient_zero(mesh):
    x = tensor(mesh, np.zeros((4, 4)))
    for fn in (mtf.reduce_std, mtf.reduce_rms):
        y = fn(x, "b")
        assert not y.numpy().any() and not mtf.gradients([y], [x])[0].numpy().any()
    assert np.isnan(
        mtf.reduce_std(tensor(mesh, np.full((4, 4), np.nan)), "b").numpy()
    ).all()


def test_integers_are_counted_as_floats(mesh):
    x = tensor(mesh, [[1, 3, 1, 3]] * 4, "int32")
    assert mtf.reduce_variance(x, "b").numpy().tolist() == [1.0] * 4
    assert mtf.reduce_rms(x, "b").dtype == "float32"


def test_what_is_refused(mesh):
    x = tensor(mesh, np.zeros((4, 4)))
    with pytest.raises(
        mtf.DTypeError, match="(?s)reduce_prod does not take bool.*reduce_all"
    ):
        mtf.reduce_prod(x > 0, "a")
    with pytest.raises(
        mtf.DTypeError, match="(?s)reduce_prod does not take complex64.*unstack"
    ):
        mtf.reduce_prod(mtf.cast(x, "complex64"), "a")
    with pytest.raises(mtf.ShapeError, match='no dimension "c"'):
        mtf.reduce_prod(x, "c")
    with pytest.raises(mtf.DTypeError, match="reduce_variance does not take complex64"):
        mtf.reduce_std(mtf.cast(x, "complex64"), "a")
