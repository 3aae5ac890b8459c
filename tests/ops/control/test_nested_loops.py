"""Loops in loops, and loops along what loops stacked, against plain TensorFlow."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.testing.conformance.exported_suite import run_exported

LAYOUTS = ["", "batch:x", "batch:x;d:y", "t:x", "t:y;batch:x", "d:x"]


def arrays(seed):
    """Returns x[batch, t, d], h[batch, d]."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=sizes) * 0.5).astype("float32")
        for sizes in ((4, 6, 8), (4, 8))
    ]


def tensors(layout, seed, **kwargs):
    mesh = mtf.Mesh("x:2;y:2", layout=layout, **kwargs)
    return [
        mtf.asarray(mesh, a, n) for a, n in zip(arrays(seed), ("batch;t;d", "batch;d"))
    ]


def within_itself(x, h):
    """A walk along t whose body walks along t as well: each row meets all rows."""

    def outer(h, row):
        def inner(a, other):
            return mtf.tanh(a + other * row), None

        a, _ = mtf.scan(inner, h, x, "t")
        return mtf.sin(h + a), a

    last, seen = mtf.scan(outer, h, x, "t")
    return mtf.reduce_sum(last) + mtf.reduce_sum(mtf.sin(seen) * x)


def within_itself_in_tensorflow(x, h):
    total = 0.0
    for i in range(6):
        a = h
        for k in range(6):
            a = tf.tanh(a + x[:, k] * x[:, i])
        h = tf.sin(h + a)
        total += tf.reduce_sum(tf.sin(a) * x[:, i])
    return total + tf.reduce_sum(h)


def sums_over_its_own(x, h):
    """A walk along t whose body has all of t, in its own tensors and in those from
    outside.
    """

    def body(h, row):
        weights = mtf.softmax(mtf.einsum([x, h * row], "batch;t"), "t")
        return mtf.tanh(mtf.einsum([weights, x], "batch;d") + row), None

    h, _ = mtf.scan(mtf.recompute(body), h, x, "t", reverse=True)
    return mtf.reduce_sum(h * h)


def sums_in_tensorflow(x, h):
    for k in range(5, -1, -1):
        row = x[:, k]
        weights = tf.nn.softmax(tf.einsum("btd,bd->bt", x, h * row))
        h = tf.tanh(tf.einsum("bt,btd->bd", weights, x) + row)
    return tf.reduce_sum(h * h)


def three_deep(x, h):
    """Counts alone, no rows, all loops of the default name."""

    def third(h, _):
        return mtf.tanh(h * 1.1 + mtf.reduce_sum(x, "t") * 0.1), None

    def second(h, _):
        return mtf.sin(mtf.scan(third, h, length=2)[0]), None

    def first(h, _):
        return mtf.scan(second, h, length=2)[0], None

    return mtf.reduce_sum(mtf.scan(first, h, length=2)[0] ** 2)


def three_deep_in_tensorflow(x, h):
    for _ in range(2):
        for _ in range(2):
            for _ in range(2):
                h = tf.tanh(h * 1.1 + tf.reduce_sum(x, 1) * 0.1)
            h = tf.sin(h)
    return tf.reduce_sum(h**2)


def over_what_was_stacked(x, h):
    """Three walks, each along what the one before stacked, in one direction
    and back.
    """

    def body(h, row):
        h = mtf.tanh(h + row)
        return h, h

    _, first = mtf.scan(body, h, x, "t")
    _, second = mtf.scan(body, h, first, "t", reverse=True)
    last, third = mtf.scan(body, h, second, "t")
    return mtf.reduce_sum(last) + mtf.reduce_sum(mtf.sin(third))


def stacked_in_tensorflow(x, h):
    def walk(rows, order):
        state, seen = h, {}
        for k in order:
            seen[k] = state = tf.tanh(state + rows[k])
        return state, seen

    _, first = walk([x[:, k] for k in range(6)], range(6))
    _, second = walk(first, range(5, -1, -1))
    last, third = walk(second, range(6))
    return tf.reduce_sum(last) + tf.add_n(
        [tf.reduce_sum(tf.sin(y)) for y in third.values()]
    )


def lists_through_carries(x, h):
    """What a walk stacked is a carry of a second loop, which walks along it inside."""

    def body(h, row):
        h = mtf.tanh(h + row)
        return h, h

    def again(state, _):
        h, rows = state
        return mtf.scan(body, h, rows, "t"), None

    first = mtf.scan(body, h, x, "t")
    (h, rows), _ = mtf.scan(again, first, length=2, dim="round")
    return mtf.reduce_sum(h) + mtf.reduce_sum(mtf.cos(rows))


def carries_in_tensorflow(x, h):
    rows = [x[:, k] for k in range(6)]
    for _ in range(3):
        seen = []
        for row in rows:
            h = tf.tanh(h + row)
            seen.append(h)
        rows = seen
    return tf.reduce_sum(h) + tf.add_n([tf.reduce_sum(tf.cos(y)) for y in rows])


def across(x, h):
    """What a walk along t stacked, walked along the batch."""

    def body(h, row):
        h = mtf.tanh(h + row)
        return h, h

    _, seen = mtf.scan(body, h, x, "t")

    def each(total, mine):
        return mtf.sin(total) + mtf.reduce_sum(mine * mine, "t"), None

    total, _ = mtf.scan(each, mtf.zeros(h.mesh, "d:8"), seen, "batch")
    return mtf.reduce_sum(mtf.sin(total))


def across_in_tensorflow(x, h):
    rows = []
    for k in range(6):
        h = tf.tanh(h + x[:, k])
        rows.append(h)
    total, seen = tf.zeros(8), tf.stack(rows)
    for k in range(4):
        total = tf.sin(total) + tf.reduce_sum(seen[:, k] ** 2, 0)
    return tf.reduce_sum(tf.sin(total))


def along_and_whole(x, h):
    """A walk along what a walk stacked, whose body and whose first carry have all of
    it, too.
    """

    def body(h, row):
        h = mtf.tanh(h + row)
        return h, h

    _, seen = mtf.scan(body, h, x, "t")

    def each(state, mine):
        h, held = state
        return (mtf.sin(h + mtf.reduce_mean(mine * seen, "t")), held * 0.9), None

    (h, held), _ = mtf.scan(each, (h, seen), seen, "t")
    return mtf.reduce_sum(h) + mtf.reduce_sum(held)


def whole_in_tensorflow(x, h):
    rows, first = [], h
    for k in range(6):
        first = tf.tanh(first + x[:, k])
        rows.append(first)
    seen = held = tf.stack(rows)
    for row in rows:
        h, held = tf.sin(h + tf.reduce_mean(row * seen, 0)), held * 0.9
    return tf.reduce_sum(h) + tf.reduce_sum(held)


PROGRAMS = [
    (within_itself, within_itself_in_tensorflow),
    (sums_over_its_own, sums_in_tensorflow),
    (three_deep, three_deep_in_tensorflow),
    (lists_through_carries, carries_in_tensorflow),
    (over_what_was_stacked, stacked_in_tensorflow),
    (across, across_in_tensorflow),
    (along_and_whole, whole_in_tensorflow),
]


@functools.cache
def expected(program, seed):
    """Returns loss, gradients, and the gradients of the sum of sines of gradients."""
    xs = [tf.constant(v) for v in arrays(seed)]
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            loss = program(*xs)
        grads = inner.gradient(loss, xs)
        total = tf.add_n([tf.reduce_sum(tf.sin(g)) for g in grads])
    return [y.numpy() for y in (loss, *grads, *outer.gradient(total, xs))]


def named(program):
    """Returns the program with its gradients, and theirs."""

    def run(*xs):
        loss = program(*xs)
        grads = mtf.gradients([loss], xs)
        total = sum(mtf.reduce_sum(mtf.sin(g)) for g in grads)
        return [loss, *grads, *mtf.gradients([total], xs)]

    return run


def compare(got, want):
    for i, (y, number) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(y.numpy(), number, 2e-4, 2e-4, err_msg=str(i))


# A loop over "t" with another loop over "t" in it is no pipeline, and a warning says so.
@pytest.mark.filterwarnings("ignore:the scan over 't', which the layout shards")
@pytest.mark.sampled(8, each="program layout")
@pytest.mark.parametrize("program, plain", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_loops_nest(program, plain, layout, seed):
    compare(mtf.function(named(program))(*tensors(layout, seed)), expected(plain, seed))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program, plain", PROGRAMS, ids=lambda p: p.__name__)
def test_loops_nest_in_eager_mode(program, plain, seed):
    compare(named(program)(*tensors("batch:x;t:y", seed)), expected(plain, seed))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("program, plain", PROGRAMS, ids=lambda p: p.__name__)
def test_nested_loops_are_exported(program, plain, seed):
    compare(
        run_exported(named(program), tensors("batch:x;d:y", seed)),
        expected(plain, seed),
    )
