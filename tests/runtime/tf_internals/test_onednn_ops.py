"""meshtf.runtime.tf_internals.onednn_ops: functions that devices run alone have the ops
that TensorFlow
would put in place, and all others are left to it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf import optimizers
from meshtf.layers import initializers
from meshtf.runtime.placed.program import function_calls
from meshtf.runtime.tf_internals.onednn_names import (
    ONEDNN_MATMULS,
    onednn_kernel,
    onednn_rewrites,
)
from meshtf.runtime.tf_internals.run_records import recorded_graphs

BUILT = pytest.mark.skipif(
    not all(map(onednn_kernel, ONEDNN_MATMULS)),
    reason="this TensorFlow was built without oneDNN",
)
X = np.random.default_rng(0).standard_normal((4, 8, 16), "float32")
BODIES = {
    "MatMul": lambda x: tf.raw_ops.MatMul(a=x[0], b=x[1], transpose_b=True),
    "BatchMatMulV2": lambda x: tf.raw_ops.BatchMatMulV2(x=x, y=x, adj_x=True),
    "Softmax": lambda x: tf.raw_ops.Softmax(logits=x),
    "Transpose": lambda x: tf.raw_ops.Transpose(x=x, perm=[2, 0, 1]),
}
LEFT = {
    "bfloat16": lambda x: tf.matmul(
        tf.cast(x[0], "bfloat16"), tf.cast(x[1], "bfloat16"), transpose_b=True
    ),
    "float64": lambda x: tf.nn.softmax(tf.cast(x, "float64")),
    "convolution": lambda x: tf.nn.conv2d(
        x[..., None], tf.ones([2, 2, 1, 3]), 1, "SAME"
    ),
    "pooling": lambda x: tf.nn.max_pool2d(x[..., None], 2, 1, "SAME"),
    "einsum": lambda x: tf.raw_ops.Einsum(inputs=[x, x], equation="abc,abd->cd"),
    "loop": lambda x: tf.while_loop(
        lambda k, y: k < 2,
        lambda k, y: (k + 1, y @ y),
        (0, x @ tf.transpose(x, [0, 2, 1])),
    )[1],
}


@pytest.fixture
def rewriting(monkeypatch):
    monkeypatch.setattr(function_calls, "onednn_rewrites", lambda: True)


def traced(body, as_branch=True):
    return function_calls.trace(
        lambda x: [body(x)], [tf.TensorSpec(X.shape)], as_branch=as_branch
    )


def types_of(callee):
    return {node.op for node in callee.definition.node_def}


@BUILT
@pytest.mark.parametrize("kind", BODIES)
def test_ops_of_onednn_are_made_and_give_the_same(kind, rewriting):
    callee = traced(BODIES[kind])
    assert callee.as_branch and f"_Mkl{kind}" in types_of(callee)
    assert kind not in types_of(callee)
    (got,) = tf.function(lambda x: callee([x]), autograph=False)(X)
    np.testing.assert_allclose(got, BODIES[kind](tf.constant(X)), rtol=1e-5, atol=1e-5)
    assert kind in types_of(traced(BODIES[kind], as_branch=False))


@BUILT
@pytest.mark.parametrize("kind", LEFT)
def test_what_tensorflow_would_replace_itself_is_called(kind, rewriting):
    callee = traced(LEFT[kind])
    assert not callee.as_branch
    (got,) = tf.function(lambda x: callee([x]), autograph=False)(X)
    np.testing.assert_allclose(
        tf.cast(got, "float32"),
        tf.cast(LEFT[kind](tf.constant(X)), "float32"),
        rtol=1e-2,
        atol=1e-5,
    )


def test_without_replacements_by_tensorflow_its_own_ops_are_used(monkeypatch):
    monkeypatch.setattr(function_calls, "onednn_rewrites", lambda: False)
    for body in (*BODIES.values(), *LEFT.values()):
        callee = traced(body)
        assert callee.as_branch and not [t for t in types_of(callee) if "Mkl" in t]


@BUILT
@pytest.mark.parametrize("devices", [None, "logical:4"])
def test_a_step_learns_the_same(devices, monkeypatch):
    def losses(rewrites):
        monkeypatch.setattr(function_calls, "onednn_rewrites", lambda: rewrites)
        mesh = mtf.Mesh("data:4", "batch:data", devices=devices)
        ws = [
            mtf.Variable(mesh, shape, initializers.normal(0.5), f"w{k}")
            for k, shape in enumerate(("d:16;e:8", "e:8;d:16"))
        ]
        sgd = optimizers.SGD(ws, 0.25)

        @mtf.function(mesh=mesh, x="batch;row;d", step="")
        def train(x, step):
            h = mtf.softmax(mtf.einsum([x, ws[0]], "batch;row;e"), "e")
            loss = mtf.reduce_mean(
                mtf.square(mtf.einsum([h, ws[1]], "batch;row;d") - x)
            )
            sgd.apply_gradients(mtf.gradients([loss], ws), ws, step)
            return loss

        results = [float(train(X, np.int32(step)).numpy()) for step in range(3)]
        ((compiled, _),) = train._compiled.values()
        return results, str(compiled.executable.called_definitions)

    (expected, own), (got, named) = losses(False), losses(True)
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    # Not the products: where nothing is replaced, meshtf asks for oneDNN's by itself
    # for some.
    assert len(set(got)) == 3 and "_MklSoftmax" in named and "_MklSoftmax" not in own


@BUILT
@pytest.mark.skipif(
    not onednn_rewrites(), reason="TensorFlow replaces nothing on this processor"
)
@pytest.mark.parametrize("kind", BODIES)
def test_tensorflow_puts_the_same_ops_in_place(kind):
    """What it runs is read from its own account of a step."""
    run = tf.function(BODIES[kind], autograph=False)
    with recorded_graphs() as functions:
        run(tf.constant(X))
    results = {
        node.op for graphs in functions for graph in graphs for node in graph.node
    }
    assert f"_Mkl{kind}" in results and kind not in results
