"""recompute and slicewise: the same numbers, computed where and as often as asked."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.partition import Compute

LAYOUTS = [("", ""), ("data:2;model:2", "batch:data;d_ff:model"), ("data:4", "d:data")]


def ops(compiled):
    """Returns how often each op runs, by title."""
    return Counter(
        s.node.op.display_name for s in compiled.program.steps if isinstance(s, Compute)
    )


def network(mesh, wrap, dropout=0.5):
    """Returns loss and gradients of two blocks, each wrapped; tanh and dropout
    in each.
    """

    def block(x, w, name):
        h = mtf.dropout(mtf.tanh(mtf.einsum([x, w], "batch;d_ff")), dropout, name=name)
        return x + mtf.einsum([h, w], "batch;d")

    def run(x, w, seed):
        with mtf.seed(seed):
            y = wrap(block)(wrap(block)(x, w, "first"), w, "second")
        loss = mtf.reduce_sum(mtf.square(y))
        return [loss, *mtf.gradients([loss], [x, w])]

    return run


def arguments(mesh, rng):
    return (
        mtf.asarray(mesh, rng.normal(size=(4, 4)).astype("float32"), "batch;d"),
        mtf.asarray(mesh, rng.normal(size=(4, 6)).astype("float32"), "d;d_ff"),
        mtf.constant(mesh, 5),
    )


@pytest.mark.parametrize(
    "axes, layout, how",
    [
        *((*meshes, how) for meshes in LAYOUTS for how in ("eager", "graph")),
        (*LAYOUTS[0], "xla"),
    ],
)
def test_recomputed_gradients_are_the_same(axes, layout, how, rng):
    mesh = mtf.Mesh(axes, layout)
    args = arguments(mesh, rng)
    want = network(mesh, lambda f: f)(*args)
    run = network(mesh, mtf.recompute)
    found = (run if how == "eager" else mtf.function(run, jit=how == "xla"))(*args)
    for have, w in zip(found, want, strict=True):
        np.testing.assert_allclose(have.numpy(), w.numpy(), rtol=1e-4, atol=1e-4)


def test_the_forward_ops_run_twice_and_draw_the_same_masks(rng):
    mesh = mtf.Mesh("data:2", "batch:data")
    args = arguments(mesh, rng)
    kept = ops(mtf.function(network(mesh, lambda f: f)).lower(*args))
    twice = ops(mtf.function(network(mesh, mtf.recompute)).lower(*args))
    assert (kept["dropoutmask"], twice["dropoutmask"]) == (2, 4)
    forward = {title: twice[title] - kept[title] for title in kept}
    assert (
        sum(n == 2 for n in forward.values()) >= 3
    )  # tanh and both dropouts, in both blocks


def test_the_second_time_waits_for_the_backward_pass(rng):
    mesh = mtf.Mesh("")
    compiled = mtf.function(network(mesh, mtf.recompute)).lower(*arguments(mesh, rng))
    computes = [s for s in compiled.program.steps if isinstance(s, Compute)]
    masks = [
        i for i, s in enumerate(computes) if s.node.op.display_name == "dropoutmask"
    ]
    waiting = [i for i, s in enumerate(computes) if s.waits_for]
    assert waiting and [i < min(waiting) for i in masks] == [True, True, False, False]


def test_the_second_time_reads_nothing_that_the_first_time_made(rng):
    """What the first time makes within a block is freed: only what goes into a block
    stays.
    """
    mesh = mtf.Mesh("")
    x = mtf.asarray(mesh, rng.normal(size=(4, 4)).astype("float32"), "batch;d")

    @mtf.function
    def f(x):
        y = mtf.recompute(lambda x: mtf.exp(mtf.tanh(mtf.sin(x))))(x)
        return y, mtf.gradients([y], [x])[0]

    computes = [s for s in f.lower(x).program.steps if isinstance(s, Compute)]
    titles = [s.node.op.display_name for s in computes]
    assert titles[:4] == ["sin", "tanh", "exp", "fill"] and titles.count("exp") == 2
    first = {y for s in computes[:3] for y in s.outs}
    read = {x for s in computes[3:] for x in s.inputs}
    assert not read & first


def test_masks_of_a_recomputed_block_do_not_change_the_gradient():
    mesh = mtf.Mesh("data:2", "batch:data")
    x = mtf.ones(mesh, "batch:64")

    def block(x):
        return mtf.dropout(x * x, 0.5)

    @mtf.function
    def f(x):
        with mtf.seed(1):
            y = mtf.recompute(block)(x)
        return y, mtf.gradients([y], [x])[0]

    y, dx = f(x)
    np.testing.assert_array_equal(
        2 * y.numpy(), dx.numpy()
    )  # 2 and 4 where kept, else 0
    assert 0 < np.count_nonzero(y.numpy()) < 64


# slicewise


@pytest.mark.parametrize("axes, layout", LAYOUTS)
def test_slicewise_runs_your_own_function(axes, layout, rng):
    mesh = mtf.Mesh(axes, layout)
    x, w, _ = arguments(mesh, rng)
    seen = []

    def fn(x, w):
        seen.append((tuple(x.shape), tuple(w.shape)))
        return tf.math.softsign(x @ w)

    @mtf.function
    def f(x, w):
        y = mtf.slicewise(fn, [x, w], shapes="batch:4;d_ff:6", shardable="batch;d_ff")
        return [y, *mtf.gradients([y], [x, w])]

    a, b = tf.constant(x.numpy()), tf.constant(w.numpy())
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        y = tf.math.softsign(a @ b)
    for have, want in zip(f(x, w), [y, *tape.gradient(y, [a, b])], strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-5, atol=1e-5)
    if layout.startswith("batch"):
        assert ((2, 4), (4, 3)) in seen


def test_slicewise_makes_whole_what_must_not_be_cut():
    mesh = mtf.Mesh("data:4", "d:data")
    x = mtf.asarray(mesh, np.array([[3.0, 1, 2, 0]], "float32"), "batch;d")
    assert mtf.slicewise(tf.sort, [x]).numpy().tolist() == [[0, 1, 2, 3]]
    assert mtf.slicewise(tf.negative, [x], shardable="d").numpy().tolist() == [
        [-3, -1, -2, 0]
    ]


def test_slicewise_with_several_outputs_and_types():
    mesh = mtf.Mesh("data:2", "batch:data")
    x = mtf.asarray(mesh, np.array([[3.0, 1], [2, 5]], "float32"), "batch;d")
    top, where = mtf.slicewise(
        lambda x: (tf.reduce_max(x, 1), tf.argmax(x, 1, tf.int32)),
        [x],
        shapes=["batch:2", "batch:2"],
        dtypes=["float32", "int32"],
        shardable="batch",
    )
    assert top.numpy().tolist() == [3, 5] and where.numpy().tolist() == [0, 1]
    assert (top.dtype, where.dtype) == ("float32", "int32")


def test_slicewise_holds_the_function_to_what_was_announced():
    mesh = mtf.Mesh("data:2", "batch:data")
    x = mtf.ones(mesh, "batch:4;d:2")
    with pytest.raises(
        mtf.PlanError,
        match=r"(?s)fn returned float32 \[2\], but its shard of the result is "
        r"float32 \[batch:2 d:2\].*test_slicewise_and_recompute\.py.*shapes=",
    ):
        mtf.slicewise(lambda x: tf.reduce_sum(x, 1), [x], shardable="batch")


FALSE_CUTS = {
    "softmax": tf.nn.softmax,
    "cumsum": lambda x: tf.cumsum(x, 1),
    "sort": tf.sort,
    "mean": lambda x: x - tf.reduce_mean(x, 1, keepdims=True),
    "position": lambda x: x + tf.range(float(x.shape[1])),
    "positive": lambda x: tf.math.log(x) / tf.reduce_max(x, 1, keepdims=True),
}


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("axes", ["", "data:2"])
@pytest.mark.parametrize("name", FALSE_CUTS)
def test_slicewise_tries_what_cut_says(name, axes, recorded):
    mesh = mtf.Mesh(axes, "d:data" if axes else "")
    x = mtf.ones(mesh, "batch:4;d:8")

    def f(x, **how):
        return mtf.slicewise(FALSE_CUTS[name], [x], **how)

    function = mtf.function(f, mesh=mesh) if recorded else f
    with pytest.raises(
        mtf.PlanError,
        match=r'(?s)slice by slice along "d".*test_slicewise_and_recompute\.py.*'
        r'Take "d" out of `shardable`.*check=False',
    ):
        function(x, shardable="batch;d")
    want = FALSE_CUTS[name](np.ones([4, 8], "float32"))
    np.testing.assert_allclose(function(x, shardable="batch").numpy(), want, rtol=1e-5)
    assert function(x, shardable="batch;d", check=False).shape == x.shape


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int32", "bool", "complex64"])
def test_slicewise_lets_what_is_true_pass(dtype):
    mesh = mtf.Mesh("data:2;model:2", "batch:data;d:model")
    x = mtf.ones(mesh, "batch:4;d:8", dtype)
    y = mtf.slicewise(
        lambda x: x if x.dtype == tf.bool else x * x + x, [x], shardable="d;batch"
    )
    np.testing.assert_array_equal(
        mtf.cast(y, "complex64").numpy(), 1 if dtype == "bool" else 2
    )


def test_slicewise_tries_a_function_of_fixed_sizes():
    mesh = mtf.Mesh("data:2", "batch:data")
    x, w = mtf.ones(mesh, "batch:4;d:8"), tf.ones([8, 5])
    assert (
        mtf.slicewise(lambda x: x @ w, [x], "batch:4;e:5", shardable="batch").shape["e"]
        == 5
    )
    with pytest.raises(mtf.PlanError, match='slice by slice along "batch"'):
        mtf.slicewise(lambda x: tf.cumsum(x @ w), [x], "batch:4;e:5", shardable="batch")


def test_slicewise_tries_a_function_once():
    mesh, calls = mtf.Mesh("data:2", "batch:data"), []
    x = mtf.ones(mesh, "batch:4;d:8")

    def fn(x):
        calls.append(x.shape)
        return x * 2.0

    mtf.slicewise(fn, [x], shardable="batch")
    before = len(calls)
    mtf.slicewise(fn, [x], shardable="batch")
    assert before > 6 and len(calls) <= before + 2


def test_slicewise_refuses_names_that_cannot_be_cut():
    x = mtf.ones(mtf.Mesh("data:2", "batch:data"), "batch:4;d:2")
    with pytest.raises(
        mtf.ShapeError,
        match='(?s)"btch" of `shardable`. Did you mean "?\'?batch.*'
        r"test_slicewise_and_recompute\.py",
    ):
        mtf.slicewise(tf.negative, [x], shardable="btch")
    with pytest.raises(mtf.ShapeError, match='along "d", which an output lacks'):
        mtf.slicewise(
            lambda x: tf.reduce_sum(x, 1), [x], "batch:4", shardable="batch;d"
        )
