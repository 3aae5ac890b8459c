"""Fourier transforms: numpy's values, gradients, and how sharded dimensions are
resharded.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf


@pytest.fixture(params=["", "a:x", "a:x;b:y", "c:x"])
def mesh(request):
    return mtf.Mesh("x:2;y:2", layout=request.param)


def complex_array(rng, *shape):
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype("complex64")


def close(x, want, tolerance=1e-4):
    np.testing.assert_allclose(x.numpy(), want, rtol=tolerance, atol=tolerance)


def test_numbers_are_those_of_numpy(mesh, rng):
    z = complex_array(rng, 4, 6, 4)
    x = mtf.asarray(mesh, z, "a;b;c")
    close(mtf.math.fft(x, "a"), np.fft.fft(z, axis=0))
    close(mtf.math.fft(x, "b;c"), np.fft.fft2(z))
    close(mtf.math.ifft(x, "a;b;c"), np.fft.ifftn(z))
    close(mtf.math.ifft(mtf.math.fft(x, ["b"]), ["b"]), z)


def test_real_transforms(rng):
    mesh = mtf.Mesh("x:2;y:2", "a:x")
    real = rng.normal(size=(4, 6, 5)).astype("float32")
    x = mtf.asarray(mesh, real, "a;b;c")
    z = mtf.math.rfft(x, "a;b;c")
    assert z.shape == mtf.Shape("a:4;b:6;c:3") and z.dtype == "complex64"
    close(z, np.fft.rfftn(real))
    close(mtf.math.irfft(z, "a;b;c", size=5), real)
    close(mtf.math.irfft(mtf.math.rfft(x, "b"), "b"), real)
    double = mtf.math.rfft(mtf.cast(x, "float64"), "c")
    assert double.dtype == "complex128"
    close(double, np.fft.rfft(real.astype("float64")), 1e-9)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        (lambda x: mtf.math.fft(x, "a;b"), tf.signal.fft2d),
        (lambda x: mtf.math.ifft(x, "a;b"), tf.signal.ifft2d),
        (lambda x: mtf.math.irfft(x, "a;b", 5), lambda v: tf.signal.irfft2d(v, [4, 5])),
        (
            lambda x: mtf.math.rfft(mtf.math.real(x), "a;b"),
            lambda v: tf.signal.rfft2d(tf.math.real(v)),
        ),
    ],
)
def test_gradients_in_two_dimensions(rng, ours, theirs):
    z, target = complex_array(rng, 4, 3), complex_array(rng, 4, 5)
    v = tf.constant(z)
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = theirs(v)
        loss = tf.reduce_sum(
            tf.abs(tf.cast(y, "complex64") * target[:, : y.shape[1]]) ** 2
        )
    x = mtf.asarray(mtf.Mesh("x:2", "a:x"), z, "a;b")
    w = mtf.asarray(x.mesh, target[:, : y.shape[1]], "a;b")
    ours_loss = mtf.reduce_sum(mtf.square(mtf.abs(mtf.cast(ours(x), "complex64") * w)))
    close(mtf.gradients([ours_loss], [x])[0], tape.gradient(loss, v), 1e-3)


def test_a_sharded_dimension_is_resharded_to_another(rng):
    mesh = mtf.Mesh("model:4", "a:model")
    x = mtf.asarray(mesh, complex_array(rng, 8, 8, 4), "a;b;c")
    transform = mtf.function(lambda x: mtf.math.fft(x, "b;c"))
    assert transform.lower(x).collectives == []
    around = mtf.function(lambda x: mtf.math.fft(x, "a;b;c"))
    assert around.lower(x).collectives == ["all_to_all over model of [a:8 b:8 c:4]"] * 2
    back = mtf.function(
        lambda x: mtf.gradients([mtf.square(mtf.abs(mtf.math.fft(x, "a")))], [x])
    )
    collectives = back.lower(x).collectives
    assert len(collectives) == 4 and all(
        m.startswith("all_to_all") for m in collectives
    )


def test_a_spectral_solver_of_poissons_equation(rng):
    density = rng.normal(size=(8, 8)).astype("float32")
    density -= density.mean()
    k = 2 * np.pi * np.fft.fftfreq(8).astype("float32")
    mesh = mtf.Mesh("x:2", "a:x")
    ka, kb = mtf.asarray(mesh, k, "a"), mtf.asarray(mesh, k, "b")

    @mtf.function(mesh=mesh, density="a;b")
    def solve(density):
        spectrum = mtf.math.fft(mtf.cast(density, "complex64"), "a;b")
        laplacian = mtf.cast(-mtf.outer(ka * ka, kb * kb, mtf.add), "complex64")
        return mtf.math.real(
            mtf.math.ifft(mtf.math.divide_no_nan(spectrum, laplacian), "a;b")
        )

    squares = k[:, None] ** 2 + k[None] ** 2
    squares[0, 0] = np.inf
    close(solve(density), np.fft.ifft2(-np.fft.fft2(density) / squares).real)


def test_what_is_refused(mesh):
    x = mtf.ones(mesh, "a:4;b:6")
    z = mtf.cast(x, "complex64")
    with pytest.raises(
        mtf.DTypeError,
        match="(?s)fft takes complex numbers, not float32.*mtf.math.rfft",
    ):
        mtf.math.fft(x, "b")
    with pytest.raises(
        mtf.DTypeError, match="(?s)rfft takes float32 or float64.*mtf.math.fft"
    ):
        mtf.math.rfft(z, "b")
    with pytest.raises(mtf.DTypeError, match="(?s)irfft takes complex.*mtf.cast"):
        mtf.math.irfft(x, "b")
    with pytest.raises(
        mtf.ShapeError,
        match="(?s)irfft computes 9 numbers from 5 coefficients, not from 6.*size=2",
    ):
        mtf.math.irfft(z, "b", size=9)
    with pytest.raises(mtf.ShapeError, match='no dimension "d"'):
        mtf.math.fft(z, "d")


def test_sizes_that_the_layout_cannot_shard_are_refused():
    x = mtf.ones(mtf.Mesh("x:2", "a:x", strict=True), "a:8")
    with pytest.raises(
        mtf.LayoutError, match=r'(?s)"a" of size 5.*mtf\.math\.rfft.*mtf\.rename'
    ):
        mtf.math.rfft(x, "a")
    assert mtf.math.rfft(
        mtf.rename(x, "a", "frequency"), "frequency"
    ).shape == mtf.Shape("frequency:5")
