"""Pointwise ops: values, the TensorFlow ops that one device runs, and errors.

The conformance suite checks every function of the tables under every layout.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.ops.elementwise.binary_op import Binary
from meshtf.ops.elementwise.scalar_op import Scalar
from meshtf.ops.elementwise.unary_op import Unary


@pytest.fixture(params=["", "b:x", "d:x"])
def mesh(request):
    return mtf.Mesh("x:2", layout=request.param)


def put(mesh, value, shape, dtype="float32"):
    return mtf.asarray(mesh, np.asarray(value, dtype), shape)


def gradient(y, *xs):
    return [dx.numpy() for dx in mtf.gradients([y], xs)]


def local_ops(op, *shapes, dtype="float32"):
    """Returns the types of the TensorFlow ops that one device runs, constants
    left out.
    """

    class Context:
        inputs = tuple(mtf.Shape(s) for s in shapes)
        outputs = (
            op.output_specs(*(mtf.graph.Spec(s, dtype) for s in inputs))[0].shape,
        )

    with tf.Graph().as_default() as graph:
        op.local(
            Context, *(tf.compat.v1.placeholder(dtype, s.sizes) for s in Context.inputs)
        )
    return [
        o.type for o in graph.get_operations() if o.type not in ("Placeholder", "Const")
    ]


@pytest.mark.parametrize(
    "op, shapes, types",
    [
        (Binary("add"), ("b:4;d:6", "b:4;d:6"), ["AddV2"]),
        (Binary("add"), ("b:4;d:6", "d:6"), ["AddV2"]),
        (Binary("add"), ("d:6", "b:4;d:6"), ["AddV2"]),
        (Binary("add"), ("", "b:4;d:6"), ["AddV2"]),
        (Binary("multiply"), ("b:4;d:6", "b:4"), ["Reshape", "Mul"]),
        (Binary("multiply"), ("b:4;d:6", "d:6;b:4"), ["Transpose", "Mul"]),
        (Scalar("multiply", 2.0), ("b:4;d:6",), ["Mul"]),
        (Scalar("subtract", 1, True), ("b:4;d:6",), ["Sub"]),
        (Scalar("pow", 2), ("b:4;d:6",), ["Square"]),
        (Scalar("pow", -0.5), ("b:4;d:6",), ["Rsqrt"]),
        (Unary("relu"), ("b:4;d:6",), ["Relu"]),
        (Unary("silu"), ("b:4;d:6",), ["SoftplusGrad"]),
        (Unary("tanh"), ("b:4;d:6",), ["Tanh"]),
    ],
)
def test_the_ops_of_one_device(op, shapes, types):
    assert local_ops(op, *shapes) == types


@pytest.mark.parametrize(
    "x_shape, y_shape, out",
    [
        ("b:4;d:6", "d:6", "b:4;d:6"),
        ("d:6", "b:4;d:6", "b:4;d:6"),
        ("b:4;d:6", "d:6;b:4", "b:4;d:6"),
        ("b:4;l:2;d:6", "d:6;b:4", "b:4;l:2;d:6"),
    ],
)
def test_tensors_meet_by_names(mesh, x_shape, y_shape, out, rng):
    shapes = x_shape, y_shape, out = [mtf.Shape(s) for s in (x_shape, y_shape, out)]
    a, b = (rng.normal(size=s.sizes).astype("float32") for s in (x_shape, y_shape))
    letters = ["".join(n[0] for n in s.names) for s in shapes]
    want = np.einsum("{},{}->{}".format(*letters), a, b)
    x, y = put(mesh, a, x_shape), put(mesh, b, y_shape)
    assert (x * y).shape == out
    np.testing.assert_allclose((x * y).numpy(), want, rtol=1e-6)
    dx, dy = gradient(x * y, x, y)
    assert (dx.shape, dy.shape) == (a.shape, b.shape)


def test_operators_of_python(mesh):
    x, y = put(mesh, [[1, 2], [-3, 4]], "b:2;d:2"), put(mesh, [2, -2], "d:2")
    a, b = x.numpy(), y.numpy()
    for have, want in [
        (x + y, a + b),
        (x - y, a - b),
        (x * y, a * b),
        (x / y, a / b),
        (x // y, a // b),
        (x % y, a % b),
        (-x, -a),
        (abs(x), np.abs(a)),
        (1 - x, 1 - a),
        (2 / x, 2 / a),
        (7 // x, 7 // a),
        (7 % x, 7 % a),
        (2**x, 2**a),
        (x**2, a**2),
        (x**3, a**3),
        (x < y, a < b),
        (x >= 2, a >= 2),
        (x == 2.0, a == 2),
        (x != y, a != b),
        ((x > 0) & (x < 4), (a > 0) & (a < 4)),
        ((x > 1) | (y > 0), (a > 1) | (b > 0)),
        ((x > 1) ^ True, ~(a > 1)),
        (~(x > 1), ~(a > 1)),
        (1.0 < x, a > 1),
        (np.float32(3) * x, 3 * a),
        (np.array(3.0) * x, 3 * a),
    ]:
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-6)
        assert have.dtype == ("bool" if want.dtype == bool else "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int32", "uint8"])
def test_a_number_takes_the_type_of_its_tensor(mesh, dtype):
    x = mtf.cast(put(mesh, [1, 2], "d:2"), dtype)
    for y in (x * 2, 2 + x, 5 - x, mtf.maximum(x, 2), mtf.where(x > 1, x, 0)):
        assert y.dtype == dtype
    assert mtf.cast(x, dtype) is x


def test_tensors_that_tie_share_the_gradient(mesh):
    x, y = put(mesh, [[1, 2], [3, 4]], "b:2;d:2"), put(mesh, [1, 3], "d:2")
    dx, dy = gradient(mtf.maximum(x, y), x, y)
    np.testing.assert_array_equal(dx, [[0.5, 0], [1, 1]])
    np.testing.assert_array_equal(dy, [0.5, 1])
    dx, dy = gradient(mtf.minimum(x, y) * 2.0, x, y)
    np.testing.assert_array_equal(dx, [[1, 2], [0, 0]])
    np.testing.assert_array_equal(dy, [3, 2])


def test_bounds_belong_to_the_range(mesh):
    x = put(mesh, [[-2, -1], [0.5, 1]], "b:2;d:2")
    np.testing.assert_array_equal(
        mtf.clip(x, -1, 0.75).numpy(), [[-1, -1], [0.5, 0.75]]
    )
    np.testing.assert_array_equal(
        gradient(mtf.clip(x, -1, 0.75), x)[0], [[0, 1], [1, 0]]
    )
    np.testing.assert_array_equal(
        gradient(mtf.maximum(x, -1.0), x)[0], [[0, 1], [1, 1]]
    )


def test_powers_of_zero_and_of_negative_numbers(mesh):
    x = put(mesh, [[-2, 0], [3, 0]], "b:2;d:2")
    for n, want in [
        (0, [[0, 0], [0, 0]]),
        (1, [[1, 1], [1, 1]]),
        (2, [[-4, 0], [6, 0]]),
        (3, [[12, 0], [27, 0]]),
        (4, [[-32, 0], [108, 0]]),
    ]:
        np.testing.assert_allclose(gradient(x**n, x)[0], want)
        exponent = put(mesh, np.full([2, 2], n), "b:2;d:2")
        dx, dn = gradient(mtf.pow(x, exponent), x, exponent)
        np.testing.assert_allclose(dx, want)
        np.testing.assert_allclose(dn, [[0, 0], [3**n * np.log(3), 0]], rtol=1e-5)
    np.testing.assert_array_equal(gradient(0.0 ** mtf.abs(x), x)[0], np.zeros([2, 2]))


def test_whole_numbers_are_divided_exactly():
    big = np.array([2**31 - 1, -(2**31) + 1, 2**24 + 1, -(2**24 + 1), 7, -7], "int32")
    small = np.array([3, 3, -2, 2, -3, 3], "int32")
    mesh = mtf.Mesh("x:2", "d:x")
    x, y = put(mesh, big, "d:6", "int32"), put(mesh, small, "d:6", "int32")
    np.testing.assert_array_equal((x // y).numpy(), big // small)
    np.testing.assert_array_equal((x % y).numpy(), big % small)
    np.testing.assert_array_equal((x // 3).numpy(), big // 3)


def test_a_gradient_has_a_gradient():
    x = put(mtf.Mesh(""), [0.5, -1.5], "d:2")
    (first_gradient,) = mtf.gradients([mtf.tanh(x) * mtf.square(x)], [x])
    values = tf.constant([0.5, -1.5])
    with tf.GradientTape() as outer:
        outer.watch(values)
        with tf.GradientTape() as inner:
            inner.watch(values)
            y = tf.tanh(values) * values**2
        dy = inner.gradient(y, values)
    np.testing.assert_allclose(
        gradient(first_gradient, x)[0], outer.gradient(dy, values), rtol=1e-5
    )
    (dx,) = mtf.gradients([mtf.math.digamma(mtf.abs(x))], [x])
    with pytest.raises(mtf.PlanError, match="digamma_grad has no gradient"):
        mtf.gradients([dx], [x])


def test_second_derivatives_of_the_greater_of_two(mesh):
    a, b = np.array([[1.0, 2], [3, -4]]), np.array([2.0, 2])
    x, y = put(mesh, a, "b:2;d:2"), put(mesh, b, "d:2")
    (first_gradient,) = mtf.gradients([mtf.square(mtf.maximum(x, y))], [x])
    dx, dy = gradient(first_gradient, x, y)
    np.testing.assert_allclose(dx, [[0, 0.5], [2, 0]])
    np.testing.assert_allclose(dy, [0, 0.5])


def test_unfinished_sums_are_scaled_but_not_shifted():
    assert (
        Scalar("multiply", 2.0).linearity == Scalar("divide", 2.0).linearity == "joint"
    )
    assert Scalar("divide", 2.0, swapped=True).linearity is None
    assert Scalar("add", 2.0).linearity is None
    assert (Binary("add").linearity, Binary("multiply").linearity) == ("joint", "each")
    assert Binary("divide").linearity is None
    assert Unary("negative").linearity == "joint"
    assert Unary("relu").linearity is None


@pytest.mark.parametrize(
    "call, words",
    [
        (
            lambda x, i, b: x + i,
            r"float32 and int32 do not mix.*mtf.cast\(x, 'float32'\)",
        ),
        (lambda x, i, b: i * 1.5, "1.5 is no value of the type int32.*mtf.cast"),
        (
            lambda x, i, b: mtf.cast(i, "uint8") - 300,
            "300 is no value of the type uint8",
        ),
        (lambda x, i, b: x * True, "True is no value of the type float32.*0 or 1"),
        (lambda x, i, b: b + 1, "1 is no value of the type bool"),
        (lambda x, i, b: b + b, "add does not take the type bool.*mtf.cast"),
        (lambda x, i, b: i / i, "divide does not take the type int32.*//"),
        (lambda x, i, b: x & x, "logical_and does not take the type float32.*x != 0"),
        (lambda x, i, b: ~x, "logical_not does not take the type float32"),
        (lambda x, i, b: i**-1, "an integer to the power -1"),
        (lambda x, i, b: mtf.log(i), "log does not take the type int32.*mtf.cast"),
        (lambda x, i, b: mtf.math.log1p(b), "log1p does not take the type bool"),
        (lambda x, i, b: mtf.relu(b), "relu does not take the type bool"),
        (lambda x, i, b: mtf.leaky_relu(i), "leaky_relu does not take int32"),
        (
            lambda x, i, b: mtf.math.divide_no_nan(i, i),
            "divide_no_nan does not take the type int32",
        ),
        (lambda x, i, b: x * 1j, r"1j is no value of the type float32.*complex64"),
        (lambda x, i, b: mtf.where(x, x, x), "condition of where has the type float32"),
        (lambda x, i, b: mtf.where(b, x, i), "float32 and int32 do not mix"),
        (lambda x, i, b: mtf.clip(i, 0.5), "0.5 is no value of the type int32"),
        (lambda x, i, b: mtf.multiply(2, 3), "one of them must be a tensor"),
    ],
)
def test_types_that_are_refused(call, words):
    mesh = mtf.Mesh("")
    x, i, b = (
        put(mesh, [1, 2], "d:2", dtype) for dtype in ("float32", "int32", "bool")
    )
    with pytest.raises(mtf.DTypeError, match="(?s)" + words):
        call(x, i, b)


def test_sizes_that_clash_are_refused(mesh):
    x, y = put(mesh, np.zeros([4, 6]), "b:4;d:6"), put(mesh, np.zeros([8]), "d:8")
    with pytest.raises(
        mtf.ShapeError, match="(?s)dimension 'd' has the sizes 6 and 8.*mtf.rename"
    ):
        x + y
