"""Cross entropy: labels that count for nothing, z-loss, half floats, second
derivatives.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.runtime.placed.program import function_calls
from meshtf.runtime.placed.program.program_proto import definition_of

LABELS = np.array([3, 0, 2, 1], "int32")


@pytest.fixture(params=["", "v:x", "b:x"])
def mesh(request):
    return mtf.Mesh("x:2", layout=request.param)


def random_logits():
    return np.random.default_rng(0).normal(0, 3, (4, 6)).astype("float32")


def plain(x, labels=LABELS):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)


@pytest.mark.parametrize("dims", ["b;v", "v;b"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_values_and_gradient(mesh, dims, dtype):
    x = mtf.transpose(mtf.asarray(mesh, random_logits(), "b;v"), dims)
    loss = cross_entropy(x, mtf.asarray(mesh, LABELS.astype(dtype), "b"), "v")
    np.testing.assert_allclose(loss.numpy(), plain(random_logits()).numpy(), rtol=1e-5)
    (dx,) = mtf.gradients([loss], [x])
    wanted = tf.nn.softmax(random_logits()) - tf.one_hot(LABELS, 6)
    np.testing.assert_allclose(
        mtf.transpose(dx, "b;v").numpy(), wanted.numpy(), atol=1e-5
    )


def test_negative_labels_count_for_nothing_and_large_ones_are_refused(mesh):
    x = mtf.asarray(mesh, random_logits(), "b;v")
    large, labels = (
        mtf.asarray(mesh, np.array([3, -1, i, -7], "int32"), "b") for i in (6, 5)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="index 6 is not in"):
        cross_entropy(x, large, "v", 0.1)
    loss = cross_entropy(x, labels, "v", 0.1)
    assert loss.numpy()[1] == loss.numpy()[3] == 0
    (dx,) = mtf.gradients([loss], [x])
    assert (dx.numpy()[[1, 3]] == 0).all()


def test_half_floats_give_a_float32_loss(mesh):
    x = mtf.asarray(mesh, random_logits(), "b;v", dtype="bfloat16")
    loss = cross_entropy(x, mtf.asarray(mesh, LABELS, "b"), "v")
    assert loss.dtype == "float32"
    np.testing.assert_allclose(
        loss.numpy(), plain(x.numpy().astype("float32")).numpy(), rtol=1e-5
    )
    (dx,) = mtf.gradients([loss], [x])
    assert dx.dtype == "bfloat16"


def test_z_loss_and_second_derivatives(mesh):
    x = mtf.asarray(mesh, random_logits(), "b;v")
    labels = mtf.asarray(mesh, LABELS, "b")
    (dx,) = mtf.gradients([mtf.square(cross_entropy(x, labels, "v", z_loss=0.1))], [x])
    (ddx,) = mtf.gradients([mtf.square(dx)], [x])
    v = tf.constant(random_logits())
    one_hot = tf.one_hot(LABELS, 6)
    with tf.GradientTape() as outer:
        outer.watch(v)
        with tf.GradientTape() as inner:
            inner.watch(v)
            lse = tf.reduce_logsumexp(v, 1)
            y = tf.square(lse - tf.reduce_sum(v * one_hot, 1) + 0.1 * lse**2)
        dy_dv = inner.gradient(y, v)
        y = tf.square(dy_dv)
    np.testing.assert_allclose(dx.numpy(), dy_dv.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        ddx.numpy(), outer.gradient(y, v).numpy(), rtol=1e-3, atol=1e-2
    )


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
def test_smoothed_labels_and_probabilities_equal_keras(mesh, soft, rng):
    x = mtf.asarray(mesh, random_logits(), "b;v")
    wanted = (
        rng.dirichlet(np.ones(6), 4).astype("float32") if soft else np.eye(6)[LABELS]
    )
    labels = (
        mtf.asarray(mesh, wanted.T, "v;b") if soft else mtf.asarray(mesh, LABELS, "b")
    )
    loss = cross_entropy(x, labels, "v", z_loss=0.1, label_smoothing=0.2)
    v = tf.constant(random_logits())
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = keras.losses.categorical_crossentropy(wanted, v, True, label_smoothing=0.2)
        y += 0.1 * tf.reduce_logsumexp(v, 1) ** 2
    np.testing.assert_allclose(loss.numpy(), y.numpy(), rtol=1e-5)
    (dx,) = mtf.gradients([loss], [x])
    np.testing.assert_allclose(
        dx.numpy(), tape.gradient(y, v).numpy(), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("soft", [False, True], ids=["labels", "probabilities"])
def test_where_classes_are_cut_a_few_numbers_of_each_row_move(soft):
    mesh = mtf.Mesh("x:2", layout="v:x")

    @mtf.function(mesh=mesh, x="b;v", labels="b;v" if soft else "b")
    def gradient(x, labels):
        loss = cross_entropy(x, labels, "v", z_loss=0.1, label_smoothing=0.2)
        return mtf.gradients([loss], [x])[0]

    labels = np.eye(6, dtype="float32")[LABELS] if soft else LABELS
    forecast = mtf.explain(gradient, random_logits(), labels)
    assert all(move.tensor.shape == (("b", 4),) for move in forecast.collectives)
    assert soft or {move.phase for move in forecast.collectives} == {"forward"}


def test_no_logit_is_exponentiated_twice_nor_copied_for_its_label(monkeypatch):
    traced = []

    def definition(function):
        traced.append(function)
        return definition_of(function)

    monkeypatch.setattr(function_calls, "definition_of", definition)

    @mtf.function(
        mesh=mtf.Mesh("x:2", layout="b:x", devices="logical:2"), x="b;v", labels="b"
    )
    def gradient(x, labels):
        return mtf.gradients([cross_entropy(x, labels, "v")], [x])[0]

    gradient(random_logits(), LABELS)
    ops = [op for function in traced for op in function.graph.get_operations()]
    sizes = [op.outputs[0].shape.as_list() for op in ops if op.type == "Exp"]
    assert sizes.count([2, 6]) == 1
    kinds = [op.type for op in ops]
    assert (
        kinds.count("ScatterNdNonAliasingAdd") == 1 and "TensorScatterSub" not in kinds
    )


def test_what_is_refused(mesh):
    x = mtf.asarray(mesh, random_logits(), "b;v")
    labels = mtf.asarray(mesh, LABELS, "b")
    with pytest.raises(mtf.ShapeError, match='no dimension "vocab"'):
        cross_entropy(x, labels, "vocab")
    with pytest.raises(
        mtf.ShapeError, match=r"needs labels of \[b:4\], in any order, not \[c:4\]"
    ):
        cross_entropy(x, mtf.rename(labels, "b", "c"), "v")
    with pytest.raises(mtf.DTypeError, match="labels are integers"):
        cross_entropy(x, labels < 2, "v")
    with pytest.raises(
        mtf.ShapeError, match=r"of \[b:4\] do not fit.*\n.*without \"v\" are integ"
    ):
        cross_entropy(x, mtf.cast(labels, "float32"), "v")
    with pytest.raises(mtf.PlanError, match="at least 0 and below 1, not 1.5"):
        cross_entropy(x, labels, "v", label_smoothing=1.5)
