"""Gradients of one's own: alone, nested, recomputed, in loops, with variables, and
refused.
"""

from __future__ import annotations

import functools
from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.partition import Compute

LAYOUTS = ["", "b:x", "d:x"]


@pytest.fixture(params=LAYOUTS)
def mesh(request):
    return mtf.Mesh("x:2", layout=request.param)


@pytest.fixture(params=["eager", "function"])
def run(request):
    """Calls a function of tensors, eagerly or recorded."""
    return (lambda fn: fn) if request.param == "eager" else mtf.function


@pytest.fixture
def x(mesh, rng):
    return mtf.asarray(mesh, rng.normal(size=(4, 6)).astype("float32"), "b;d")


@mtf.custom_gradient
def softplus(x):
    e = mtf.exp(x)
    return mtf.math.log1p(e), lambda dy: [dy * (1.0 - 1.0 / (1.0 + e))]


@mtf.custom_gradient
def doubled(x):
    return x, lambda dy: dy * 2.0


def gradient(fn, *xs):
    return mtf.gradients([fn(*xs)], list(xs))


def close(x, want):
    np.testing.assert_allclose(x.numpy(), want, rtol=1e-5, atol=1e-6)


def test_the_rule_takes_the_place_of_the_ops(x, run):
    (dx,) = run(lambda x: gradient(softplus, x))(x)
    close(dx, 1 / (1 + np.exp(-x.numpy())))
    (dx,) = run(lambda x: gradient(lambda x: doubled(x * 3.0) + x, x))(x)
    close(dx, np.full((4, 6), 7.0))


def test_several_arguments_and_results(x, run):
    @mtf.custom_gradient
    def fn(pair, scale, *, shift):
        a, b = pair["a"], pair["b"]
        made = {
            "sum": a + b * scale + shift,
            "count": mtf.cast(a, "int32"),
            "product": a * b,
        }

        def rule(count, product, total):  # in the order of tf.nest: by sorted keys
            assert count is None and not (product.shape != a.shape)
            return [total * 10.0, None, mtf.reduce_sum(product + total, "d")]

        return made, rule

    def both(x, s):
        made = fn({"a": x, "b": x}, s, shift=1.0)
        return [made["sum"], *mtf.gradients([made["sum"] * 2.0], [x, s])]

    s = mtf.asarray(x.mesh, np.arange(4, dtype="float32"), "b")
    y, dx, ds = run(both)(x, s)
    close(y, x.numpy() * (1 + np.arange(4)[:, None]) + 1)
    close(dx, np.full((4, 6), 20.0))
    close(ds, np.full(4, 12.0))


def test_one_in_another_and_in_a_rule(x, run):
    @mtf.custom_gradient
    def outer(x):
        inner, _ = doubled(x) * 1.0, None
        return mtf.square(inner), lambda dy: [doubled(dy * x)]

    (dx,) = run(lambda x: gradient(lambda x: doubled(outer(x)), x))(x)
    close(dx, 2 * x.numpy())


def test_a_gradient_of_a_gradient_goes_through_the_rule(x, run):
    def second(x):
        (dx,) = gradient(softplus, x)
        return mtf.gradients([dx], [x])

    s = 1 / (1 + np.exp(-x.numpy()))
    close(run(second)(x)[0], s * (1 - s))


def test_what_is_recomputed_is_what_the_rule_uses(x, run):
    def block(x):
        return softplus(mtf.tanh(x))

    def loss(x):
        return mtf.gradients([mtf.square(mtf.recompute(block)(x))], [x])

    t = np.tanh(x.numpy())
    want = 2 * np.log1p(np.exp(t)) / (1 + np.exp(-t)) * (1 - t * t)
    close(run(loss)(x)[0], want)
    recorded = mtf.function(loss).lower(x).program.steps
    steps = [s for s in recorded if isinstance(s, Compute)]
    assert Counter(s.node.op.display_name for s in steps)["exp"] == 2
    first = next(s for s in steps if s.node.op.display_name == "exp")
    assert all(first.outs[0] not in s.ins for s in steps if s.node.primals)


def test_a_gradient_of_a_gradient_goes_through_the_rule_of_what_is_recomputed(x, run):
    def second(block, x):
        return mtf.gradients(mtf.gradients([mtf.square(block(x))], [x]), [x])

    blocks = [
        softplus,
        lambda x: mtf.square(softplus(mtf.tanh(x))),
        lambda x: mtf.sin(softplus(doubled(mtf.sin(x)))),
    ]
    for block in blocks:
        (want,) = mtf.gradients(mtf.gradients([mtf.square(block(x))], [x]), [x])
        (got,) = run(lambda x, block=block: second(mtf.recompute(block), x))(x)
        close(got, want.numpy())
    (third,) = run(lambda x: mtf.gradients(second(mtf.recompute(blocks[1]), x), [x]))(x)
    close(third, mtf.gradients(second(blocks[1], x), [x])[0].numpy())


def test_a_rule_uses_what_is_recomputed_in_a_gradient_of_a_gradient_too(x, run):
    """The rule is false on purpose: plain TensorFlow says what comes of it."""

    @mtf.custom_gradient
    def own(x):
        y = mtf.sin(x)
        return y, lambda dy: [dy * y * 0.5]

    def second(x):
        block = mtf.recompute(lambda x: mtf.square(own(mtf.tanh(x))))
        (dx,) = mtf.gradients([mtf.square(block(x))], [x])
        return mtf.gradients([mtf.square(dx)], [x])

    @tf.custom_gradient
    def plain(x):
        y = tf.sin(x)
        return y, lambda dy: dy * y * 0.5

    value = tf.constant(x.numpy())
    with tf.GradientTape() as outer:
        outer.watch(value)
        with tf.GradientTape() as inner:
            inner.watch(value)
            y = tf.square(tf.square(plain(tf.tanh(value))))
        dx = tf.square(inner.gradient(y, value))
    close(run(second)(x)[0], outer.gradient(dx, value).numpy())


def test_variables_are_arguments(x, run):
    w = mtf.Variable(
        x.mesh, "d:6", lambda mesh, shape, name: mtf.full(mesh, shape, 3.0), "w"
    )

    @mtf.custom_gradient
    def scaled(x, w):
        return x * w, lambda dy: [dy * w, mtf.reduce_sum(dy * x, "b") * 10.0]

    dx, dw = run(lambda x: mtf.gradients([scaled(x, w)], [x, w]))(x)
    close(dx, np.full((4, 6), 3.0))
    close(dw, 10 * x.numpy().sum(0))

    @mtf.custom_gradient
    def reads_it_itself(x, _):  # as a layer does whose variables are passed besides
        return x * w, lambda dy: [dy, mtf.reduce_sum(dy, "b")]

    (dw,) = run(lambda x: mtf.gradients([reads_it_itself(x, w)], [w]))(x)
    close(dw, np.full(6, 4.0))


def test_what_the_gradient_would_miss_is_refused(x, run):
    w = mtf.Variable(
        x.mesh, "d:6", lambda mesh, shape, name: mtf.full(mesh, shape, 3.0), "w"
    )

    def fn(x, keep):
        y = mtf.square(x)

        @mtf.custom_gradient
        def captures(x):
            return x * keep(w.tensor()) + keep(y), lambda dy: [dy]

        return captures(x)

    (dx,) = run(lambda x: gradient(lambda x: fn(x, mtf.stop_gradient), x))(x)
    close(dx, np.ones((4, 6)))
    with pytest.raises(
        mtf.PlanError, match=r"(?s)uses 'w' from outside.*as an argument.*stop_grad"
    ):
        run(lambda x: mtf.gradients([fn(x, lambda t: t)], [w]))(x)
    with pytest.raises(
        mtf.PlanError, match=r"(?s)uses a tensor from outside.*test_custom_gradient"
    ):
        run(lambda x: gradient(lambda x: fn(x, lambda t: t), x))(x)


def test_in_the_body_of_a_scan(x, run):
    def twice(x):
        y, _ = mtf.scan(lambda h, _: (doubled(softplus(h)), None), x, length=2)
        return mtf.gradients([y], [x])

    def plain(x):
        return mtf.gradients([mtf.softplus(mtf.softplus(x)) * 4.0], [x])

    close(run(twice)(x)[0], plain(x)[0].numpy())


@mtf.custom_gradient
def beside(x, w):  # w has a cotangent, and nothing is made of it
    return x * 1.0, lambda dy: [dy, dy * x]


@pytest.mark.parametrize(
    "block",
    [
        beside,
        mtf.recompute(beside),
        lambda x, w: mtf.function(lambda x: beside(x, w))(x),
        lambda x, w: mtf.scan(lambda h, _: (beside(h, w), None), x, None, "t", 1)[0],
        lambda x, w: mtf.scan_and_sum(
            lambda h, _: (h, beside(x, w), None), x, None, "t", 1
        )[1],
        lambda x, w: mtf.cond(mtf.reduce_sum(x) < 1e9, lambda: beside(x, w), lambda: x),
        lambda x, w: mtf.cond(
            mtf.reduce_sum(x) < 1e9, lambda: mtf.function(beside)(x, w), lambda: x
        ),
    ],
    ids=[
        "plain",
        "recompute",
        "function",
        "scan",
        "scan_and_sum",
        "cond",
        "function in cond",
    ],
)
def test_an_argument_that_no_result_is_made_of_has_its_cotangent(x, run, block):
    w = mtf.Variable(x.mesh, "b:4;d:6", mtf.layers.initializers.ones, "w")
    dx, dw = run(lambda x: mtf.gradients([mtf.reduce_sum(block(x, w))], [x, w]))(x)
    close(dx, np.ones((4, 6)))
    close(dw, x.numpy())


@mtf.custom_gradient
def exponential_only_backward(x):
    e = mtf.exp(x)
    return x * 2.0, lambda dy: [dy * e]


@pytest.mark.parametrize(
    "loop",
    [
        lambda fn, x: mtf.scan(lambda h, _: (fn(h), None), x, length=1)[0],
        lambda fn, x: mtf.scan(mtf.recompute(lambda h, _: (fn(h), None)), x, length=1)[
            0
        ],
        lambda fn, x: mtf.cond(mtf.reduce_max(x) > 0, lambda: fn(x), lambda: x),
    ],
)
def test_what_only_the_rule_uses_is_there_in_a_loop_and_a_branch(x, run, loop):
    (dx,) = run(lambda x: gradient(lambda x: loop(exponential_only_backward, x), x))(x)
    close(dx, np.exp(x.numpy()))


def test_names_in_another_order_are_put_right(x):
    @mtf.custom_gradient
    def fn(x):
        return x, lambda dy: [mtf.transpose(dy, "d;b")]

    (dx,) = gradient(fn, x)
    assert dx.shape == x.shape


@pytest.mark.parametrize(
    "returned, error, words",
    [
        (lambda x: x, mtf.PlanError, "does not return it.*return y, lambda dy"),
        (
            lambda x: (x, lambda dy: [dy, dy]),
            mtf.PlanError,
            "gave 2 cotangents for 1 tensors",
        ),
        (
            lambda x: (x, lambda dy: [mtf.reduce_sum(dy, "d")]),
            mtf.ShapeError,
            "broadcast",
        ),
        (lambda x: (x, lambda dy: mtf.cast(dy, "float64")), mtf.DTypeError, "mtf.cast"),
    ],
)
def test_what_a_rule_must_return(x, returned, error, words):
    fn = mtf.custom_gradient(returned)
    with pytest.raises(error, match=f"(?s){words}|test_custom_gradient.py.*{words}"):
        gradient(fn, x)


def test_none_among_results(x, run):
    @mtf.custom_gradient
    def fn(x):
        return {"y": x * 2.0, "cache": None, "z": x}, lambda dy, dz: dy * 5.0 + dz

    def step(x):
        made = fn(x)
        assert made["cache"] is None
        return mtf.gradients([made["y"], made["z"]], [x])

    close(run(step)(x)[0], np.full((4, 6), 6.0))


def test_a_function_without_a_name_that_returns_no_rule(x):
    with pytest.raises(
        mtf.PlanError, match="has a custom gradient, but does not return it"
    ):
        mtf.custom_gradient(functools.partial(lambda scale, x: x * scale, 2.0))(x)
