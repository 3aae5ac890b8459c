"""What `from_tensorflow` takes: SavedModels, functions and their specs."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

MESH = "data:4; model:2"


def text_model():
    tokens = keras.Input([None], dtype="int32", name="tokens")
    x = keras.layers.Embedding(20, 8, name="words")(tokens)
    x = x + keras.layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = keras.layers.LayerNormalization(name="norm")(x)
    return keras.Model(tokens, keras.layers.Dense(3, name="classes")(x))


def image_model():
    pixels = keras.Input([8, 8, 3], name="pixels")
    x = keras.layers.Conv2D(4, 3, padding="same", name="conv")(pixels)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.GlobalMaxPooling2D()(keras.layers.ReLU()(x))
    return keras.Model(pixels, keras.layers.Dense(3, name="classes")(x))


def sequence_model():
    steps = keras.Input([6, 5], name="steps")
    return keras.Model(steps, keras.layers.GRU(4, name="gru")(steps))


MODELS = {
    text_model: ("batch:6; length:5", (6, 5), "heads:model; vocab:model"),
    image_model: ("batch:6; height; width; colours", (6, 8, 8, 3), "height:model"),
    sequence_model: ("batch:6; length; features", (6, 6, 5), "features:model"),
}


def arguments(make):
    """Returns names and an array for a model's input."""
    names, shape, layout = MODELS[make]
    x = np.random.default_rng(0).integers(0, 3, shape)
    dtype = "int32" if make is text_model else "float32"
    return names, x.astype(dtype), layout


@pytest.mark.parametrize("make", MODELS, ids=lambda make: make.__name__)
def test_an_exported_model_runs_without_its_python(make, tmp_path):
    keras.utils.set_random_seed(0)
    model = make()
    name = (
        model.input_names[0] if hasattr(model, "input_names") else model.inputs[0].name
    )
    names, x, layout = arguments(make)
    model.export(str(tmp_path / "served"), verbose=False)
    expected = model(x).numpy()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x)))
    variables = {v.path: v for v in model.trainable_variables}
    reference = dict(
        zip(variables, tape.gradient(loss, [v.value for v in variables.values()]))
    )
    del model
    mesh = mtf.Mesh(MESH, f"batch:data; {layout}")
    program = mtf.from_tensorflow(tmp_path / "served", mesh, inputs={name: names})
    result = program(**{name: x})["output_0"]
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-4, atol=1e-5)
    assert any(v.placement.shards for v in program.variables) == (
        make is not image_model
    )

    @mtf.function(x=names)
    def gradients(x):
        loss = mtf.reduce_mean(mtf.square(program(**{name: x})["output_0"]))
        return mtf.gradients([loss], program.trainable_variables)

    assert len(program.trainable_variables) == len(reference)
    for variable, gradient in zip(program.trainable_variables, gradients(x)):
        (path,) = [p for p in reference if variable.name.endswith(p)]
        a, b = gradient.numpy().ravel(), tf.convert_to_tensor(reference[path])
        np.testing.assert_allclose(
            a, b.numpy().ravel(), rtol=1e-3, atol=1e-5, err_msg=path
        )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The path of a SavedModel of `tf.saved_model.save`, with two signatures."""

    class Scale(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable([2.0, 3.0], name="weight")
            self.shift = tf.Variable([1.0, 1.0], name="shift", trainable=False)

        @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
        def scale(self, x):
            return {"y": x * self.weight + self.shift}

        @tf.function(input_signature=[tf.TensorSpec([None, 2], name="x")])
        def total(self, x):
            return {"sum": tf.reduce_sum(x * self.weight)}

    module = Scale()
    path = str(tmp_path_factory.mktemp("saved") / "model")
    signatures = {"serving_default": module.scale, "total": module.total}
    tf.saved_model.save(module, path, signatures=signatures)
    return path


def test_signatures_paths_and_loaded_models(saved):
    mesh = mtf.Mesh(MESH, "batch:data")
    loaded = tf.saved_model.load(saved)
    inputs = {"x": "batch:4; d"}
    ones = np.ones([4, 2], "float32")
    for fn in (saved, loaded, loaded.signatures["serving_default"]):
        program = mtf.from_tensorflow(fn, mesh, inputs=inputs)
        assert program(x=ones)["y"].numpy()[0].tolist() == [3, 4]
        assert sorted(v.trainable for v in program.variables) == [False, True]
    total = mtf.from_tensorflow(saved, mesh, inputs=inputs, signature="total")
    assert total(x=ones)["sum"].numpy() == 20 and len(total.variables) == 1
    method = mtf.from_tensorflow(loaded.scale, mesh, inputs=inputs)
    assert method(ones)["y"].numpy()[0].tolist() == [3, 4]
    with pytest.raises(mtf.ArgumentError, match="(?s)no signature 'totl'.*total"):
        mtf.from_tensorflow(saved, mesh, inputs=inputs, signature="totl")
    with pytest.raises(mtf.ShapeError, match='"x": axis 0'):
        mtf.from_tensorflow(saved, mesh)


def test_what_is_no_function_is_refused():
    mesh = mtf.Mesh(MESH)
    with pytest.raises(mtf.ArgumentError, match="not the int 3"):
        mtf.from_tensorflow(3, mesh)
    with pytest.raises(mtf.ArgumentError, match="shapes of the arguments of relu"):
        mtf.from_tensorflow(tf.nn.relu, mesh)
    with pytest.raises(mtf.ArgumentError, match="RaggedTensorSpec"):
        spec = tf.RaggedTensorSpec([4, None])
        mtf.from_tensorflow(lambda x: x.to_tensor(), mesh, spec)
    with pytest.raises(mtf.ArgumentError, match="Mesh"):
        mtf.from_tensorflow(tf.nn.relu, "data:2", tf.TensorSpec([2]))


def test_arrays_serve_as_specs():
    program = mtf.from_tensorflow(tf.nn.relu, mtf.Mesh("data:2"), np.ones([4, 2]))
    assert program(-np.ones([4, 2])).numpy().tolist() == [[0, 0]] * 4


@tf.custom_gradient
def tripled(x):
    return x * x, lambda dy: 3.0 * dy * x


def test_rules_of_custom_gradients_are_those_of_the_function():
    weight = tf.Variable([1.0, 2.0])

    @tf.function
    def call(x):
        return tripled(x * weight)

    program = mtf.from_tensorflow(call, mtf.Mesh("data:2"), tf.TensorSpec([4, 2]))
    ones = np.ones([4, 2], "float32")
    loss = mtf.reduce_sum(program(ones))
    (gradient,) = mtf.gradients([loss], program.variables)
    assert gradient.numpy().tolist() == [12, 24]
