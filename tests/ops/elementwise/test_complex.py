"""Complex numbers: values, TensorFlow's gradients, communication, variables, and
refusals.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf


@pytest.fixture(params=["", "b:x", "d:x"])
def mesh(request):
    return mtf.Mesh("x:2", layout=request.param)


def complex_normal(rng, *shape):
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype("complex64")


def close(x, want, tolerance=1e-5):
    np.testing.assert_allclose(x.numpy(), want, rtol=tolerance, atol=tolerance)


def test_numbers_of_numbers(mesh, rng):
    a, b = complex_normal(rng, 4, 6), complex_normal(rng, 6)
    z, w = mtf.asarray(mesh, a, "b;d"), mtf.asarray(mesh, b, "d")
    for have, want in [
        (z + w, a + b),
        (z - 1j, a - 1j),
        (z * w, a * b),
        (z / w, a / b),
        (2 * z, 2 * a),
        (-z, -a),
        ((1 + 2j) / z, (1 + 2j) / a),
        (z**2, a**2),
        (z**3, a**3),
        (mtf.math.conj(z), a.conj()),
        (mtf.exp(z), np.exp(a)),
        (mtf.log(z), np.log(a)),
        (mtf.sqrt(z), np.sqrt(a)),
        (mtf.reduce_mean(z, "b"), a.mean(0)),
        (mtf.where(mtf.math.real(z) > 0, z, 1j), np.where(a.real > 0, a, 1j)),
        (mtf.cumsum(z, "d"), a.cumsum(1)),
    ]:
        assert have.dtype == "complex64"
        close(have, want, 1e-4)
    for have, want in [
        (mtf.math.real(z), a.real),
        (mtf.math.imag(z), a.imag),
        (abs(z), abs(a)),
        (mtf.math.angle(z), np.angle(a)),
    ]:
        assert have.dtype == "float32"
        close(have, want)
    assert (z == z).numpy().all() and (z != w).numpy().all()


def test_made_of_parts_that_broadcast(mesh, rng):
    re, im = (
        rng.normal(size=(4, 6)).astype("float32"),
        rng.normal(size=6).astype("float32"),
    )
    x, y = mtf.asarray(mesh, re, "b;d"), mtf.asarray(mesh, im, "d")
    close(mtf.math.complex(x, y), re + 1j * im)
    close(mtf.math.complex(0.0, y), 1j * im)
    assert mtf.math.complex(mtf.cast(x, "float64"), 1.0).dtype == "complex128"
    assert mtf.math.real(x) is x and mtf.math.conj(x) is x
    assert mtf.constant(mesh, 1j).dtype == "complex64"


@pytest.mark.parametrize(
    "fn",
    [
        lambda m, z, w: m.exp(z) * w,
        lambda m, z, w: z / w + m.sqrt(z),
        lambda m, z, w: z**3 * w,
        lambda m, z, w: (2 - 1j) / z - w * (1 + 1j),
        lambda m, z, w: m.math.log(z) * m.math.conj(w),
        lambda m, z, w: m.tanh(z) * m.sin(w),
        lambda m, z, w: m.cast(m.abs(z), "complex64") * w,
        lambda m, z, w: (
            m.cast(m.math.angle(z), "complex64") * m.cast(m.math.imag(w), "complex64")
        ),
        lambda m, z, w: m.complex(m.math.real(z), m.math.imag(w)) * m.square(z),
        lambda m, z, w: m.pow(z, w),
    ],
)
def test_gradients_are_those_of_tensorflow(mesh, rng, fn):
    a, b, weight = (
        complex_normal(rng, 4, 2),
        complex_normal(rng, 4, 2),
        complex_normal(rng, 4, 2),
    )
    v, u = tf.constant(a), tf.constant(b)
    with tf.GradientTape() as tape:
        tape.watch([v, u])
        loss = tf.reduce_sum(tf.abs(fn(tf, v, u) + weight) ** 2)

    class Names:
        """meshtf by TensorFlow's names."""

        def __getattr__(self, name):
            return getattr(mtf if hasattr(mtf, name) else mtf.math, name)

    Names.math = Names()
    z, w = mtf.asarray(mesh, a, "b;d"), mtf.asarray(mesh, b, "b;d")
    ours = mtf.reduce_sum(
        mtf.square(abs(fn(Names(), z, w) + mtf.asarray(mesh, weight, "b;d")))
    )
    for have, want in zip(
        mtf.gradients([ours], [z, w]), tape.gradient(loss, [v, u]), strict=True
    ):
        close(have, want, 1e-3)


def test_a_step_against_the_gradient_descends(mesh, rng):
    z, target = (mtf.asarray(mesh, complex_normal(rng, 4, 6), "b;d") for _ in range(2))

    def distance(z):
        return mtf.reduce_sum(mtf.square(abs(z - target)))

    (dz,) = mtf.gradients([distance(z)], [z])
    close(distance(z - dz * 0.5), 0.0)


def test_products_do_not_conjugate(mesh, rng):
    a, b = complex_normal(rng, 3, 4, 2), complex_normal(rng, 3, 4, 5)
    x, y = mtf.asarray(mesh, a, "g;b;m"), mtf.asarray(mesh, b, "g;b;n")
    close(mtf.einsum([x, y], "g;m;n"), np.einsum("gbm,gbn->gmn", a, b))
    close(mtf.einsum([x, y], "n;m"), np.einsum("gbm,gbn->nm", a, b), 1e-4)


@pytest.mark.parametrize("devices", [None, "separate:4"])
def test_sums_over_devices(devices, rng):
    a, b = complex_normal(rng, 4, 8), complex_normal(rng, 8, 4)
    mesh = mtf.Mesh("x:4", "k:x", devices=devices)

    @mtf.function(mesh=mesh, a="b;k", b="k;d")
    def product(a, b):
        return mtf.replicate(mtf.einsum([a, b], "b;d"))

    close(product(a, b), a @ b)
    assert product.lower(a, b).collectives == ["all_reduce over x of [b:4 d:4]"]


def test_a_variable_of_complex_numbers(mesh, rng):
    value = complex_normal(rng, 4, 6)

    def i(mesh, shape, name):
        return mtf.full(mesh, shape, 1j, "complex64")

    w = mtf.Variable(mesh, "b:4;d:6", i, "w", dtype="complex64")
    w.assign(w * mtf.asarray(mesh, value, "b;d"))
    close(w, 1j * value)
    (dw,) = mtf.gradients([mtf.square(abs(w * 2.0))], [w])
    close(dw, 8j * value)


@pytest.mark.parametrize(
    "call",
    [
        lambda z: mtf.reduce_max(z),
        lambda z: z < z,
        lambda z: z > 1.0,
        lambda z: mtf.maximum(z, z),
        lambda z: mtf.clip(z, 0.0),
        mtf.relu,
        mtf.sigmoid,
        mtf.floor,
        mtf.sign,
        mtf.leaky_relu,
        lambda z: mtf.softmax(z, "d"),
        lambda z: mtf.reduce_logsumexp(z),
        lambda z: z // z,
        lambda z: mtf.reduce_std(z),
        lambda z: mtf.cast(z, "float32"),
        lambda z: mtf.cast(z, "bool"),
        lambda z: mtf.math.squared_difference(z, z),
    ],
)
def test_where_complex_numbers_make_no_sense_the_error_names_the_parts(call):
    z = mtf.ones(mtf.Mesh(""), "b:2;d:2", "complex64")
    with pytest.raises(mtf.DTypeError, match=r"(?s)complex.*mtf.math.real\(x\)"):
        call(z)


def test_parts_that_are_refused():
    x = mtf.ones(mtf.Mesh(""), "d:2")
    with pytest.raises(
        mtf.DTypeError, match="(?s)imag takes complex numbers.*complex64"
    ):
        mtf.math.imag(x)
    with pytest.raises(
        mtf.DTypeError, match="(?s)no real part of the type int32.*float64"
    ):
        mtf.math.complex(mtf.cast(x, "int32"), 1)
    with pytest.raises(mtf.DTypeError, match="complex of two numbers"):
        mtf.math.complex(1.0, 2.0)
    with pytest.raises(mtf.DTypeError, match="float32 and complex64 do not mix"):
        x * mtf.cast(x, "complex64")
