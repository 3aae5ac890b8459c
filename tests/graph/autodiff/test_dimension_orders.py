"""Orders of dimensions: a cotangent has its tensor's, whatever the op that made it
preferred.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.testing.conformance.exported_suite import run_exported

LAYOUTS = ["", "batch:x", "batch:x;d:y", "length:x", "length:y;batch:x", "d:x;e:y"]
SHAPES = ("batch;length;d", "d;e", "batch;e")


def arrays(seed):
    """Returns x[batch, length, d], w[d, e], h[batch, e]; all sizes are equal: no shape
    can help.
    """
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=(4,) * n) * 0.4).astype("float32") for n in (3, 2, 2)]


def tensors(layout, seed, **kwargs):
    mesh = mtf.Mesh("x:2;y:2", layout=layout, **kwargs)
    return [mtf.asarray(mesh, a, names) for a, names in zip(arrays(seed), SHAPES)]


def recurrent(x, w, h):
    """A network that scans the second dimension of the output of an einsum."""
    entries = mtf.einsum([x, w], "batch;length;e")
    last, seen = mtf.scan(
        lambda h, entry: (mtf.tanh(h + entry),) * 2, h, entries, "length"
    )
    return mtf.reduce_sum(mtf.sin(seen)) + mtf.reduce_sum(last * last)


def recurrent_in_tensorflow(x, w, h):
    entries = tf.einsum("bld,de->ble", x, w)
    seen = []
    for k in range(4):
        h = tf.tanh(h + entries[:, k])
        seen.append(h)
    return tf.reduce_sum(tf.sin(tf.stack(seen))) + tf.reduce_sum(h * h)


def consumed_in_another_order(x, w, h):
    """Stacks, sums and the last carry meet tensors whose dimensions come in another
    order.
    """
    entries = mtf.einsum([x, w], "batch;length;e")

    def step(h, entry):
        h = mtf.tanh(h + entry)
        return h, h * entry, mtf.sin(h)

    last, total, seen = mtf.scan_and_sum(step, h, entries, "length")
    other = mtf.transpose(h, "e;batch")
    return (
        mtf.reduce_sum(mtf.transpose(entries, "e;batch;length") * seen)
        + mtf.reduce_sum(other * last)
        + mtf.reduce_sum(mtf.cos(other) * total)
    )


def consumed_in_tensorflow(x, w, h):
    entries = tf.einsum("bld,de->ble", x, w)
    initial = h
    total = 0.0
    seen = []
    for k in range(4):
        h = tf.tanh(h + entries[:, k])
        total += h * entries[:, k]
        seen.append(tf.sin(h))
    return (
        tf.reduce_sum(entries * tf.stack(seen, 1))
        + tf.reduce_sum(initial * h)
        + tf.reduce_sum(tf.cos(initial) * total)
    )


def branches(x, w, h):
    """Branches that capture a tensor and use it in another order."""
    y = mtf.einsum([x, w], "batch;length;e")

    def transposed():
        return mtf.reduce_sum(mtf.transpose(h, "e;batch") * y, "length")

    z = mtf.cond(
        mtf.reduce_sum(h) < 1e6,
        lambda: mtf.transpose(transposed(), "batch;e"),
        lambda: mtf.tanh(h),
    )
    return mtf.reduce_sum(mtf.transpose(h, "e;batch") * mtf.sin(z))


def branches_in_tensorflow(x, w, h):
    y = tf.einsum("bld,de->ble", x, w)
    return tf.reduce_sum(h * tf.sin(tf.reduce_sum(h[:, None] * y, 1)))


def weighted(x):
    """Not elementwise: the result depends on the position of an element."""
    positions = tf.range(x.shape.num_elements(), dtype=x.dtype) / x.shape.num_elements()
    return x * tf.reshape(positions, x.shape)


def slices(x, w, h):
    """A TensorFlow function and a custom gradient that depend on the order."""

    @mtf.custom_gradient
    def own(x):
        return x * x, lambda dy: [mtf.slicewise(weighted, [dy])]

    y = mtf.slicewise(weighted, [h]) + own(h)
    return mtf.reduce_sum(mtf.transpose(h, "e;batch") * y) + mtf.reduce_sum(
        mtf.einsum([x, w], "batch;e") * mtf.sin(y)
    )


def slices_in_tensorflow(x, w, h):
    @tf.custom_gradient
    def own(x):
        return x * x, weighted

    y = weighted(h) + own(h)
    return tf.reduce_sum(h * y) + tf.reduce_sum(
        tf.einsum("bld,de->be", x, w) * tf.sin(y)
    )


def deep(x, w, h):
    """Two networks: the second scans the stacked outputs of the first, transposed."""

    def step(h, entry):
        h = mtf.tanh(mtf.rename(mtf.einsum([h, w], "batch;e"), "e", "d") + entry)
        return h, h

    start = mtf.rename(h, "e", "d")
    _, low = mtf.scan(step, start, x, "length")
    _, high = mtf.scan(
        step, start, mtf.transpose(low, "batch;length;d"), "length", reverse=True
    )
    return mtf.reduce_sum(mtf.sin(x) * high)


def deep_in_tensorflow(x, w, h):
    def walk(entries, order):
        state = h
        seen = {}
        for k in order:
            seen[k] = state = tf.tanh(state @ w + entries[:, k])
        return tf.stack([seen[k] for k in range(4)], 1)

    return tf.reduce_sum(tf.sin(x) * walk(walk(x, range(4)), range(3, -1, -1)))


def walked_as_it_came(x, w, h):
    """Nothing between the walked tensor and a function that goes by the order."""
    entries = mtf.slicewise(weighted, [x])
    h, _ = mtf.scan(
        lambda h, entry: (mtf.tanh(h + mtf.rename(entry, "d", "e")), None),
        h,
        entries,
        "length",
    )
    return mtf.reduce_sum(mtf.einsum([h, w], "batch;d")) + mtf.reduce_sum(mtf.sin(h))


def walked_in_tensorflow(x, w, h):
    entries = weighted(x)
    for k in range(4):
        h = tf.tanh(h + entries[:, k])
    return tf.reduce_sum(h @ tf.transpose(w)) + tf.reduce_sum(tf.sin(h))


PROGRAMS = [
    (recurrent, recurrent_in_tensorflow),
    (branches, branches_in_tensorflow),
    (consumed_in_another_order, consumed_in_tensorflow),
    (deep, deep_in_tensorflow),
]
FIRST_ORDER = [
    (slices, slices_in_tensorflow),
    (walked_as_it_came, walked_in_tensorflow),
]


def expected(program, values, second=True):
    """Returns loss, gradients, and the gradients of the sum of sines of gradients."""
    xs = [tf.constant(v) for v in values]
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            loss = program(*xs)
        grads = inner.gradient(loss, xs)
        total = tf.add_n([tf.reduce_sum(tf.sin(g)) for g in grads])
    second_order = outer.gradient(total, xs) if second else []
    return [y.numpy() for y in (loss, *grads, *second_order)]


def named(program, second=True):
    """Returns the program with its gradients, and theirs."""

    def run(*xs):
        loss = program(*xs)
        grads = mtf.gradients([loss], xs)
        if not second:
            return [loss, *grads]
        total = sum(mtf.reduce_sum(mtf.sin(g)) for g in grads)
        return [loss, *grads, *mtf.gradients([total], xs)]

    return run


def compare(run, expected, layout, seed):
    got = run(*tensors(layout, seed))
    for i, (y, target) in enumerate(zip(got, expected, strict=True)):
        if i:
            assert y.shape.names == tuple(SHAPES[(i - 1) % 3].split(";")), (layout, i)
        np.testing.assert_allclose(
            y.numpy(), target, 2e-4, 2e-4, err_msg=f"{layout}: {i}"
        )


@pytest.mark.sampled(20, each="program layout mode")
@pytest.mark.parametrize(
    "program, plain", PROGRAMS + FIRST_ORDER, ids=lambda p: p.__name__
)
@pytest.mark.parametrize("mode", ["eager", "recorded"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_have_the_order_of_their_tensors(program, plain, layout, mode, seed):
    second = (program, plain) in PROGRAMS
    expected_values = expected(plain, arrays(seed), second)
    run = (
        named(program, second)
        if mode == "eager"
        else mtf.function(named(program, second))
    )
    compare(run, expected_values, layout, seed)


@pytest.mark.parametrize("program, plain", PROGRAMS, ids=lambda p: p.__name__)
def test_orders_survive_export(program, plain, seed):
    expected_values = expected(plain, arrays(seed))
    for y, target in zip(
        run_exported(named(program), tensors("batch:x;d:y", seed)), expected_values
    ):
        np.testing.assert_allclose(y.numpy(), target, 2e-4, 2e-4)


def test_a_cotangent_is_given_in_any_order_and_with_no_other_names(seed):
    _, _, h = arrays(seed)

    def run(h):
        y = mtf.slicewise(weighted, [h])
        return mtf.gradients([y], [h], [mtf.transpose(mtf.sin(h), "e;batch")])

    expected = weighted(tf.sin(h)).numpy()
    for call in (run, mtf.function(run)):
        np.testing.assert_allclose(
            call(tensors("batch:x", seed)[2])[0].numpy(), expected, 1e-5
        )
        with pytest.raises(
            mtf.ShapeError, match="a cotangent has the dimensions of its tensor"
        ):
            h = tensors("", seed)[2]
            mtf.gradients([h * 2.0], [h], [mtf.reduce_sum(h, "e")])
