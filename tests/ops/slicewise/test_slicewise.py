"""slicewise of functions as people have them: with tables, variables and Keras layers, of
matrices, with gradients of gradients; and what it says about those that it cannot run.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.testing import check_export, check_op

TABLE = tf.constant([2.0, 3.0, 4.0])
LARGE_TABLE = tf.constant(np.arange(3000, dtype="float32").reshape(1000, 3))
VARIABLE = tf.Variable([2.0, 3.0, 4.0])
MESHES = [
    ("", "", None),
    ("data:2", "batch:data", None),
    ("data:3", "batch:data", None),
    ("data:2", "batch:data", "spmd:cpu"),
]


@tf.function
def in_a_tf_function(x):
    return tf.cond(x[0, 0] < 1e9, lambda: x * TABLE, lambda: x) + TABLE


CAPTURING = {
    "table": lambda x: x * TABLE,
    "large table": lambda x: x * tf.reduce_mean(LARGE_TABLE, 0),
    "gather": lambda x: x * tf.gather(TABLE, tf.cast(x * 0.0, "int32")),
    "tf.function": in_a_tf_function,
    "integers": lambda x: x + tf.cast(tf.constant([1, 2, 3]), x.dtype),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", CAPTURING)
@pytest.mark.parametrize("axes, layout, devices", MESHES)
def test_captured_tensors_are_constants(rng, axes, layout, devices, name, jit):
    fn = CAPTURING[name]
    array = rng.normal(size=(4, 3)).astype("float32")
    with tf.GradientTape() as tape:
        x = tf.constant(array)
        tape.watch(x)
        y = fn(x)
    expected = [y, tape.gradient(y, x)]
    mesh = mtf.Mesh(axes, layout, devices=devices)

    @mtf.function(mesh=mesh, x="batch;d", jit=jit and devices is None)
    def step(x):
        y = mtf.slicewise(fn, [x], shardable="batch")
        return y, mtf.gradients([y], [x])[0]

    for have, want in zip(step(array), expected, strict=True):
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-5)


def test_captured_tensors_are_constants_of_exported_programs(tmp_path):
    step = mtf.function(
        lambda x: mtf.slicewise(lambda x: x * TABLE, [x], shardable="batch"),
        mesh=mtf.Mesh("data:2", "batch:data"),
        x="batch;d",
    )
    mtf.export(step, np.ones((4, 3), "float32"))
    mtf.export_saved_model(step, np.ones((4, 3), "float32")).save(str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    (y,) = loaded(x=tf.ones([4, 3])).values()
    np.testing.assert_array_equal(y, np.tile(TABLE, (4, 1)))
    check_export(scale_by(TABLE), meshes=["x:2"]).require()


dense = keras.layers.Dense(3)


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("fn", [lambda x: x * VARIABLE, lambda x: dense(x)])
def test_captured_variables_are_refused_with_the_line(fn, devices):
    mesh = mtf.Mesh("data:2", "batch:data", devices=devices)
    x = mtf.ones(mesh, "batch:4;d:3")
    eager = mtf.slicewise(fn, [x], shardable="batch")
    np.testing.assert_allclose(eager.numpy(), fn(tf.ones([4, 3])), rtol=1e-5)
    with pytest.raises(
        mtf.PlanError,
        match=r"(?s)tf\.Variable.*test_slicewise\.py.*Pass it in xs",
    ):
        mtf.function(lambda x: mtf.slicewise(fn, [x], shardable="batch"))(x)


def scale_by(table):
    """Returns an op that multiplies by a table."""

    class Scale(mtf.graph.Op):
        conformance_samples = (mtf.graph.Sample((), ("b:4;d:3",)),)

        def output_specs(self, x):
            return (x,)

        def local(self, context, x):
            return (x * table,)

        def role(self, factor):
            return mtf.graph.Role.MAP if factor == "b" else mtf.graph.Role.UNSHARDED

        def gradient(self, dy, y, x):
            return [mtf.graph.apply(self, dy)]

    return Scale


def test_an_op_may_capture_tensors():
    check_op(scale_by(TABLE)).require()


def test_check_op_runs_samples_in_a_function():
    (failure,) = check_op(scale_by(VARIABLE)).failures
    assert "Scale.local reads a tf.Variable" in failure


@pytest.mark.parametrize("via", ["einsum", "slicewise"])
def test_the_gradient_of_a_weight_sends_what_it_is(via):
    mesh = mtf.Mesh("data:8", "batch:data", devices="abstract")
    zeros = mtf.layers.initializers.zeros
    w = mtf.Variable(mesh, "d:64;o:64", zeros, name="w")

    @mtf.function(mesh=mesh, x="batch;d")
    def step(x):
        if via == "einsum":
            y = mtf.einsum([x, w], "batch;o")
        else:
            y = mtf.slicewise(tf.matmul, [x, w], "batch:1024;o:64", shardable="batch")
        return mtf.gradients([mtf.reduce_mean(mtf.square(y))], [w])

    forecast = mtf.explain(step, np.zeros((1024, 64), "float32"))
    received = [(c.kind, c.total) for c in forecast.collectives]
    assert received == [("all_reduce", 28672)]


def two_results(x, w):
    return tf.tanh(x @ w), tf.reduce_sum(tf.sin(x), 1)


def three_gradients(gradients, tensors, results, total):
    """Returns gradients, gradients of their squares, and again."""
    loss = total(results[0] ** 2) + total(results[1] ** 3)
    found = []
    for _ in range(3):
        dxs = gradients(loss, tensors)
        found += dxs
        loss = total(dxs[0] ** 2) + total(dxs[1] ** 2)
    return found


def expected_gradients(arrays):
    tensors = [tf.constant(array) for array in arrays]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tensors)
        return three_gradients(
            tape.gradient, tensors, two_results(*tensors), tf.reduce_sum
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize(
    "axes, layout, devices",
    [*MESHES, ("data:2;model:2", "batch:data;o:model", "spmd:cpu")],
)
def test_gradients_of_gradients(rng, axes, layout, devices, recorded):
    arrays = [rng.normal(size=s).astype("float32") for s in ((8, 6), (6, 4))]
    mesh = mtf.Mesh(axes, layout, devices=devices)

    def step(x, w):
        results = mtf.slicewise(
            two_results, [x, w], ["batch:8;o:4", "batch:8"], shardable="batch"
        )
        return three_gradients(
            lambda y, xs: mtf.gradients([y], xs), [x, w], results, mtf.reduce_sum
        )

    x, w = (
        mtf.asarray(mesh, array, names)
        for array, names in zip(arrays, ("batch;d", "d;o"))
    )
    found = (mtf.function(step, mesh=mesh) if recorded else step)(x, w)
    for have, want in zip(found, expected_gradients(arrays), strict=True):
        scale = np.abs(want).max()
        np.testing.assert_allclose(have.numpy(), want, rtol=1e-4, atol=1e-5 * scale)


def test_a_gradient_that_tensorflow_lacks_names_the_line():
    x = mtf.ones(mtf.Mesh(""), "batch:4")
    y = mtf.slicewise(lambda a: tf.raw_ops.IgammaGradA(a=a, x=a), [x])
    with pytest.raises(
        mtf.PlanError,
        match=r"(?s)cannot compute the gradient of.*test_slicewise\.py",
    ):
        mtf.gradients([y], [x])


def test_an_embedding_has_a_gradient():
    """Its gradient, in TensorFlow, is no tensor."""
    mesh = mtf.Mesh("data:2", "batch:data")
    table = mtf.ones(mesh, "rows:5;d:2")
    ids = mtf.asarray(mesh, np.array([1, 1, 4, 0], "int32"), "batch")
    y = mtf.slicewise(
        lambda i, t: tf.gather(t, i),
        [ids, table],
        "batch:4;d:2",
        "float32",
        shardable="batch",
    )
    (gradient,) = mtf.gradients([y], [table])
    np.testing.assert_array_equal(gradient.numpy()[:, 0], [1, 2, 0, 0, 1])


# What the trial says.


def matrices(mesh):
    return mtf.broadcast(
        mtf.cast(mtf.one_hot(mtf.range(mesh, "d:8"), "e:8"), "float32"),
        "batch:4;d:8;e:8",
    )


def test_matrices_are_tried_with_matrices():
    mesh = mtf.Mesh("data:2", "batch:data")
    x = matrices(mesh)
    y = mtf.slicewise(tf.linalg.cholesky, [x], shardable="batch")
    np.testing.assert_array_equal(y.numpy(), x.numpy())


@pytest.mark.parametrize("fn", [tf.linalg.cholesky, tf.linalg.inv])
@pytest.mark.parametrize("name", ["d", "e"])
def test_a_dimension_of_which_a_function_takes_no_half_is_named(fn, name):
    x = matrices(mtf.Mesh(""))
    with pytest.raises(
        mtf.PlanError,
        match=rf'(?s)slice by slice along "{name}".*must be square.*Take "{name}" out',
    ):
        mtf.slicewise(fn, [x], shardable=["batch", name])


def test_functions_that_refuse_all_inputs_of_the_trial_are_told():
    def picky(x):
        tf.debugging.assert_less(tf.reduce_max(x), -5.0)
        return x

    x = mtf.ones(mtf.Mesh(""), "batch:4;d:2") * -9.0
    with pytest.warns(
        mtf.LayoutWarning, match=r"(?s)could not try.*x < y did not hold"
    ):
        mtf.slicewise(picky, [x], shardable="batch")
    mtf.slicewise(lambda x: picky(x), [x], shardable="batch", check=False)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("shardable", ["batch", ""])
def test_missing_shapes_are_told_at_the_call(shardable, check):
    mesh = mtf.Mesh("data:2", "batch:data")

    @mtf.function(mesh=mesh, x="batch;h;c", labels="batch")
    def step(x, labels):
        logits = mtf.slicewise(
            lambda x: tf.reduce_mean(x, 1), [x], shardable=shardable, check=check
        )
        return mtf.layers.softmax_cross_entropy(logits, labels, "c")

    with pytest.raises(
        mtf.PlanError,
        match=r"(?s)returned float32 \[4, 2\].*\[batch:4 h:3 c:2\].*"
        r"mtf\.slicewise, .*test_slicewise\.py.*shapes=",
    ):
        step(np.ones((4, 3, 2), "float32"), np.zeros(4, "int32"))


# Keras.


@pytest.mark.parametrize("axes, layout, devices", MESHES)
def test_a_keras_model_is_data_parallel(axes, layout, devices):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input([8]),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(4),
        ]
    )
    random = np.random.default_rng(0)
    x = random.normal(size=(16, 8)).astype("float32")
    labels = x[:, :4].argmax(1).astype("int32")
    mesh = mtf.Mesh(axes, layout, devices=devices)
    weights = []
    for i, weight in enumerate(model.trainable_variables):
        dims = ";".join(f"w{i}_{k}:{size}" for k, size in enumerate(weight.shape))
        variable = mtf.Variable(mesh, dims, mtf.layers.initializers.zeros, name=f"w{i}")
        variable.assign(weight.numpy())
        weights.append(variable)
    sgd = mtf.optimizers.SGD(weights, 0.1)

    @mtf.function(mesh=mesh, x="batch;d", labels="batch", step="")
    def train(x, labels, step):
        logits = mtf.slicewise(
            lambda x, *w: model.stateless_call(w, [], x)[0],
            [x, *weights],
            shapes="batch:16;classes:4",
            shardable="batch",
        )
        loss = mtf.layers.softmax_cross_entropy(logits, labels, "classes")
        sgd.apply_gradients(mtf.gradients([loss], weights), weights, step)
        return loss

    losses = [float(train(x, labels, np.int32(i))) for i in range(3)]
    assert {c.kind for c in mtf.explain(train, x, labels, np.int32(0)).collectives} <= {
        "all_reduce"
    }
    optimizer = keras.optimizers.SGD(0.1)
    for loss in losses:
        with tf.GradientTape() as tape:
            entropy = keras.losses.sparse_categorical_crossentropy(
                labels, model(x), from_logits=True
            )
            expected = tf.reduce_mean(entropy)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(expected, variables), variables))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
