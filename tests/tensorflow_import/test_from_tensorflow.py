"""TensorFlow functions and SavedModels as named functions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

MESH = "data:4; model:2"
X = np.random.default_rng(0).normal(size=(6, 5, 12)).astype("float32")
SCALE = np.linspace(0.5, 1.5, 6).astype("float32")


class Heads(tf.Module):
    """A function that splits an axis, broadcasts, and returns a nesting."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(1)
        self.kernel = tf.Variable(rng.normal(size=(12, 8)).astype("float32"), name="k")
        self.offset = tf.Variable(tf.ones([8]), trainable=False, name="offset")

    @tf.function(input_signature=[tf.TensorSpec([None, None, 12]), tf.TensorSpec(None)])
    def __call__(self, x, scale):
        heads = tf.reshape(x, [tf.shape(x)[0], -1, 3, 4])
        kernel = tf.reshape(self.kernel, [3, 4, 8])
        y = tf.nn.gelu(tf.einsum("blhd,hdo->blo", heads, kernel)) + self.offset
        mean = tf.reduce_mean(x, [1, 2], keepdims=True)
        return {"y": y * scale[:, None, None], "rest": [mean, None, x]}


@pytest.fixture(scope="module")
def model():
    return Heads()


@pytest.fixture(scope="module")
def program(model):
    mesh = mtf.Mesh(MESH, "batch:data; features_inner:model")
    inputs = {"x": "batch:6; length:5; features", "scale": "batch"}
    return mtf.from_tensorflow(model.__call__, mesh, inputs=inputs)


def test_results_have_the_structure_and_axes_of_the_function(model, program):
    ours = program(X, scale=SCALE)
    theirs = model(X, SCALE)
    assert ours["rest"][1] is None
    assert ours["y"].shape.names[:2] == ("batch", "length")
    for a, b in [(ours["y"], theirs["y"])] + [
        (ours["rest"][k], theirs["rest"][k]) for k in (0, 2)
    ]:
        assert a.shape.sizes == tuple(b.shape)
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_the_tape(model, program):
    @mtf.function(x="length; features; batch", scale="batch")
    def loss_and_gradients(x, scale):
        loss = mtf.reduce_mean(mtf.square(program(x, scale)["y"]))
        return loss, mtf.gradients([loss], program.trainable_variables)

    loss, (gradient,) = loss_and_gradients(X.transpose(1, 2, 0), SCALE)
    with tf.GradientTape() as tape:
        expected = tf.reduce_mean(tf.square(model(X, SCALE)["y"]))
    reference = tape.gradient(expected, model.kernel).numpy()
    assert float(loss.numpy()) == pytest.approx(float(expected), rel=1e-5)
    np.testing.assert_allclose(
        gradient.numpy().reshape(12, 8), reference, rtol=1e-4, atol=1e-6
    )


def test_variables_are_copies_with_names_and_shards(model, program):
    by_name = {v.name: v for v in program.variables}
    assert sorted(by_name) == ["imported/k", "imported/offset"]
    assert [v.trainable for v in program.variables] == [True, False]
    assert by_name["imported/k"].shape.sizes == (3, 4, 8)
    assert "features_inner" in by_name["imported/k"].placement.shards
    duplicate = program.clone("copy")
    duplicate.variables[1].assign(np.zeros(8, "float32"))
    assert program.variables[1].numpy().all() and model.offset.numpy().all()
    assert not np.allclose(
        duplicate(X, SCALE)["y"].numpy(), program(X, SCALE)["y"].numpy()
    )


def test_plans_and_search_take_the_function(program):
    specs = tf.TensorSpec([6, 5, 12]), tf.TensorSpec([6])
    forecast = mtf.explain(program, *specs)
    assert forecast.error is None
    assert "features_inner:4/model" in str(forecast)
    result = mtf.search(program.on_mesh, *specs, devices=4, hardware="h100")
    assert "batch:" in str(result)


def test_the_table_of_dimensions(program):
    assert program.dimensions["features_inner"].sharded == "model"
    assert "x" in str(program.dimensions)


def test_another_mesh_has_the_values_of_the_first(program):
    other = program.on_mesh(mtf.Mesh("data:2", "batch:data"))
    np.testing.assert_allclose(
        other(X, SCALE)["y"].numpy(), program(X, SCALE)["y"].numpy(), rtol=1e-5
    )


def test_checkpoints_restore_it(program, tmp_path):
    mtf.checkpoints.save(tmp_path, 1, {v.name: v for v in program.variables})
    other = program.on_mesh(mtf.Mesh("data:2", "batch:data"))
    expected = other.variables[0].numpy()
    other.variables[0].assign(np.zeros_like(expected))
    mtf.checkpoints.restore_latest(tmp_path, {v.name: v for v in other.variables})
    np.testing.assert_array_equal(other.variables[0].numpy(), expected)


def test_a_module_has_its_variables(program):
    class Outer(mtf.Module):
        def __init__(self, mesh):
            super().__init__()
            self.encoder = program.on_mesh(mesh)
            self.head = mtf.layers.Dense(mesh, "features:12", "classes:2")

    outer = Outer(mtf.Mesh("data:2", "batch:data"))
    assert len(outer.variables) == 4


def test_assignments_change_the_copy_only():
    counter = tf.Variable(tf.zeros([3]))

    def count(x):
        counter.assign_add(tf.reduce_sum(x, 0))
        return counter * 2.0

    mesh = mtf.Mesh(MESH, "batch:data")
    program = mtf.from_tensorflow(count, mesh, tf.TensorSpec([8, 3]))
    ones = np.ones([8, 3], "float32")
    assert [program(ones).numpy()[0] for _ in range(2)] == [16, 32]
    assert program.variables[0].numpy()[0] == 16 and not counter.numpy().any()


def test_a_variable_that_no_result_needs_is_copied():
    unused = tf.Variable(tf.ones([3]), name="unused")

    def double(x):
        tf.identity(unused)
        return x * 2.0

    program = mtf.from_tensorflow(double, mtf.Mesh(MESH), tf.TensorSpec([4]))
    assert program.variables[0].numpy().tolist() == [1, 1, 1]


class Trained(tf.Module):
    """A model with its training step."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(2)
        self.kernel = tf.Variable(rng.normal(size=(12, 8)), name="kernel")
        self.bias = tf.Variable(tf.zeros([8], tf.float64), name="bias")
        self.steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="steps")

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 12], tf.float64),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def train(self, x, y):
        weights = [self.kernel, self.bias]
        with tf.GradientTape() as tape:
            scores = tf.nn.gelu(x @ self.kernel + self.bias)
            scores = tf.math.l2_normalize(scores, -1)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, scores)
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(weights, tape.gradient(loss, weights)):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss, "steps": self.steps.assign_add(1)}


def test_a_training_signature_of_a_saved_model(tmp_path):
    """For batches of any size: TensorFlow's gradients reduce what was broadcast."""
    module = Trained()
    tf.saved_model.save(module, str(tmp_path), signatures={"train": module.train})
    mesh = mtf.Mesh(MESH, "batch:data; kernel:model")
    inputs = {"x": "batch:6; features", "y": "batch"}
    program = mtf.from_tensorflow(tmp_path, mesh, inputs=inputs, signature="train")
    x, y = X[:, 0].astype("float64"), np.arange(6)
    for _ in range(3):
        ours, theirs = program(x=x, y=y), module.train(x, y)
        assert float(ours["loss"].numpy()) == pytest.approx(float(theirs["loss"]), 1e-9)
        assert int(ours["steps"].numpy()) == int(theirs["steps"])
    for copy, variable in zip(program.copies, [module.kernel, module.bias]):
        np.testing.assert_allclose(copy.numpy(), variable.numpy(), 1e-9, 1e-12)
    assert not program.program.replicated()


def test_nested_arguments_and_python_values():
    def join(batch, training=False, *, power=2.0):
        return batch["a"] ** power if not training else batch["a"], batch["b"][0]

    mesh = mtf.Mesh(MESH, "batch:data; d:model")
    spec = {"a": tf.TensorSpec([4, 3]), "b": [tf.TensorSpec([4]), tf.TensorSpec([])]}
    names = {"batch": {"a": "batch; d", "b": ["batch", ""]}}
    program = mtf.from_tensorflow(join, mesh, spec, inputs=names)
    batch = {"a": np.full([4, 3], 3.0), "b": [np.ones(4, "float32"), 1.0]}
    first, second = program(batch, power=2.0)
    assert first.numpy()[0, 0] == 9 and second.shape.names == ("batch",)
    with pytest.raises(mtf.ArgumentError, match="traced with False"):
        program(batch, training=True)
    with pytest.raises(mtf.ShapeError, match="batch_a"):
        program({**batch, "a": np.ones([5, 3], "float32")})
    with pytest.raises(mtf.ShapeError, match=r"batch\['a'\]"):
        program({**batch, "a": mtf.ones(mesh, "batch:4; e:3")})
    with pytest.raises(mtf.DTypeError, match="mtf.cast"):
        program({**batch, "a": np.ones([4, 3], "int32")})


def test_constants_and_arguments_may_be_results():
    def several(x):
        return x, x, 3.0, None, tf.constant([1, 2])

    program = mtf.from_tensorflow(several, mtf.Mesh("data:2"), tf.TensorSpec([4, 3]))
    first, _, number, nothing, array = program(np.ones([4, 3]))
    assert first.numpy().all() and number.numpy() == 3 and nothing is None
    assert array.numpy().tolist() == [1, 2]


def test_random_numbers_come_from_a_seed():
    def noisy(x):
        return x + tf.random.normal(tf.shape(x))

    mesh = mtf.Mesh(MESH, "batch:data")
    program = mtf.from_tensorflow(noisy, mesh, tf.TensorSpec([8, 3]))
    with pytest.raises(mtf.PlanError, match="needs a seed"):
        program(np.zeros([8, 3]))

    @mtf.function(x="batch; d", step="")
    def draw(x, step):
        with mtf.seed(step):
            return program(mtf.rename(x, "d", "features"))

    a, b, c = (draw(np.zeros([8, 3], "float32"), k).numpy() for k in (1, 1, 2))
    assert np.array_equal(a, b) and not np.allclose(a, c)


def test_refusals_are_listed_with_their_nodes():
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(["a"], [1]), default_value=-1
    )

    @tf.function(input_signature=[tf.TensorSpec([4], tf.string), tf.TensorSpec([4])])
    def serve(text, x):
        tf.debugging.assert_all_finite(x, "strings in checks do not matter")
        with tf.name_scope("ids"):
            ids = table.lookup(text)
        lengths = tf.strings.length(text)
        return ids, lengths, tf.unique(x)[0]

    with pytest.raises(mtf.ArgumentError) as caught:
        mtf.from_tensorflow(serve, mtf.Mesh("data:2"))
    message = str(caught.value)
    assert "LookupTableFindV2 at ids/" in message and "a table" in message
    assert "StringLength at StringLength: strings" in message
    assert "Unique at Unique: the size of its result" in message
    assert "assert" not in message and "PartitionedCall" not in message


SAMPLED = [tf.nn.sampled_softmax_loss, tf.nn.nce_loss]


@pytest.mark.parametrize("loss_fn", SAMPLED)
def test_sampled_losses_need_candidates_of_the_users(loss_fn):
    """TensorFlow's samplers are refused, with the way out; it works."""
    table, bias, labels, x = (tf.ones(n) for n in ([30, 4], [30], [8, 1], [8, 4]))
    labels = tf.cast(labels, tf.int64)
    sampler = tf.random.uniform_candidate_sampler
    sampled = sampler(labels, 1, 5, True, 30)
    with pytest.raises(mtf.ArgumentError) as caught:
        mtf.from_tensorflow(
            lambda x: loss_fn(
                table, bias, labels, x, 5, 30, remove_accidental_hits=True
            ),
            mtf.Mesh("data:2"),
            tf.TensorSpec([8, 4]),
        )
    message = str(caught.value)
    assert "CandidateSampler at" in message and "sampled_values=(ids" in message
    assert "remove_accidental_hits=False" in message
    ids = tf.range(5, dtype=tf.int64)
    counts = tf.fill([8, 1], 5 / 30), tf.fill([5], 5 / 30)
    assert [c.shape for c in (ids, *counts)] == [c.shape for c in sampled]

    def loss(x):
        values = (ids, *counts)
        return loss_fn(
            *(table, bias, labels, x, 5, 30),
            sampled_values=values,
            remove_accidental_hits=False,
        )

    program = mtf.from_tensorflow(loss, mtf.Mesh("data:2"), tf.TensorSpec([8, 4]))
    np.testing.assert_allclose(program(x.numpy()).numpy(), loss(x).numpy(), 1e-5)
