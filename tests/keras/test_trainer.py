"""What Keras' trainer does besides plain steps, beside Keras on one device."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.keras.models import assert_equal, compiled, train, weights_of

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(14, 6))
Y = RNG.integers(0, 3, 14)


def mesh() -> mtf.Mesh:
    """Returns a mesh that does not divide the last batches."""
    return mtf.Mesh("data:2; model:2", "batch:data; features:model")


def dense() -> keras.Model:
    """A dense layer on six features."""
    inputs = keras.Input((6,), name="features")
    return keras.Model(inputs, layers.Dense(3)(inputs))


def sgd() -> keras.optimizers.Optimizer:
    """SGD with momentum."""
    return keras.optimizers.SGD(0.1, momentum=0.9)


def both(fit: Any, build: Any = dense, optimizer: Any = sgd, **settings: Any) -> None:
    """Compares what a function makes of a model on one device and on a mesh."""
    results = [fit(compiled(build, optimizer, m, **settings)) for m in (None, mesh())]
    assert_equal(results[1], results[0], 1e-9)


@pytest.mark.parametrize(
    "settings",
    [
        {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}},
        {"sample_weight": RNG.random(14)},
        {"validation_split": 0.3, "epochs": 2},
        {"validation_data": (X[:5], Y[:5], RNG.random(5)), "validation_freq": 2},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_arguments_of_fit(settings) -> None:
    both(lambda model: train(model, X, Y, batch_size=6, **settings))


def test_several_steps_per_execution() -> None:
    def fit(model):
        predicted = model.predict(X, batch_size=4, verbose=0)
        result = train(model, X, Y, batch_size=4)
        result.weights["predicted"] = predicted
        return result

    both(fit, steps_per_execution=3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["dataset", "generator", "steps"])
def test_sources_of_batches(kind) -> None:
    def fit(model):
        if kind == "generator":
            generator = ((X[k : k + 7], Y[k : k + 7]) for k in (0, 7))
            return train(model, generator, steps_per_epoch=2)
        dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
        if kind == "steps":
            return train(model, dataset.repeat(), steps_per_epoch=3, epochs=2)
        return train(model, dataset, epochs=2)

    both(fit)


def test_batches_one_by_one() -> None:
    def run(model):
        logs = [model.train_on_batch(X, Y), model.test_on_batch(X, Y)]
        logs.append(model.train_on_batch(X, Y, class_weight={0: 1.0, 1: 0.0, 2: 3.0}))
        logs.append(model.train_on_batch(X, Y, sample_weight=np.arange(14.0)))
        weights = weights_of(model) | {"y": model.predict_on_batch(X)}
        history = {"logs": np.ravel(logs), "x": model.evaluate(X, Y, verbose=0)}
        return type("Result", (), {"history": history, "weights": weights})

    both(run, metrics=["accuracy"])


def test_eager_calls_between_steps() -> None:
    """`model(x)` and weights are those of the last step, and set weights those of the next."""
    expected, model = compiled(dense, sgd), compiled(dense, sgd, mesh())
    for _ in range(2):
        for m in (expected, model):
            m.train_on_batch(X, Y)
            m.set_weights([w * 0.9 for w in m.get_weights()])
    np.testing.assert_allclose(model(X), expected(X), 1e-9)


def test_a_model_compiled_again() -> None:
    """With another optimizer and frozen layers; the old optimizer's variables are dropped."""

    def build():
        inputs = keras.Input((6,))
        return keras.Model(inputs, layers.Dense(3)(layers.Dense(4)(inputs)))

    def fit(model):
        train(model, X, Y, batch_size=7)
        model.layers[1].trainable = False
        model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
        train(model, X, Y, batch_size=7)
        model.layers[1].trainable = True
        model.compile(sgd(), "sparse_categorical_crossentropy", jit_compile=False)
        return train(model, X, Y, batch_size=7)

    both(fit, build)


def test_several_inputs_and_outputs() -> None:
    def build():
        inputs = {"a": keras.Input((6,), name="a"), "b": keras.Input((6,), name="b")}
        h = layers.Dense(4, activation="tanh")(inputs["a"] + inputs["b"])
        outputs = {"kind": layers.Dense(3, name="kind")(h), "size": layers.Dense(1)(h)}
        return keras.Model(inputs, outputs)

    losses = {
        "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "size": "mse",
    }
    data = {"a": X, "b": -X[::-1]}, {"kind": Y, "size": X[:, :1]}
    both(
        lambda model: train(model, *data, batch_size=7),
        build,
        loss=losses,
        metrics={"kind": ["accuracy"]},
        loss_weights={"kind": 0.3, "size": 2.0},
    )


class Subclassed(keras.Model):
    """A model that is built by its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(4, activation="relu")
        self.out = layers.Dense(3)

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(self.hidden(x))


def test_a_model_built_by_its_first_batch() -> None:
    both(lambda model: train(model, X, Y, batch_size=6, epochs=2), Subclassed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("overwrite", [None, 2])
def test_moving_averages_of_weights(overwrite) -> None:
    def optimizer():
        return keras.optimizers.Adam(
            0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=overwrite
        )

    both(lambda model: train(model, X, Y, batch_size=4), optimizer=optimizer)


def test_gradients_of_several_batches() -> None:
    def optimizer():
        return keras.optimizers.AdamW(0.1, gradient_accumulation_steps=2)

    both(lambda model: train(model, X, Y, batch_size=3), optimizer=optimizer)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy) -> None:

    def build():
        keras.config.set_dtype_policy(policy)
        return dense()

    losses = []
    for m in (None, mesh()):
        model = compiled(build, lambda: keras.optimizers.Adam(0.01), m)
        history = model.fit(X, Y, batch_size=7, epochs=2, verbose=0, shuffle=False)
        losses.append(history.history["loss"])
        scaled = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
        assert scaled == (policy == "mixed_float16")
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)


def test_a_clone_is_a_plain_model() -> None:
    model = compiled(dense, sgd, mesh())
    model.train_on_batch(X, Y)
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    assert "make_train_function" not in vars(clone)
    np.testing.assert_allclose(clone(X), model(X), 1e-12)


def test_saving(tmp_path: Path) -> None:
    """Whole models, weights and exports are those of the last step."""
    model = compiled(dense, sgd, mesh())
    model.train_on_batch(X, Y)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    with warnings.catch_warnings():
        warnings.simplefilter("error", mtf.TraceWarning)
        model.export(tmp_path / "exported", verbose=False)
    expected = model.predict(X, verbose=0)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), expected, 1e-9)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    np.testing.assert_allclose(exported.serve(X), expected, 1e-9)
    model.train_on_batch(X, Y)
    loaded.train_on_batch(X, Y)  # with the optimizer's state
    np.testing.assert_allclose(loaded.get_weights()[0], model.get_weights()[0], 1e-9)
    model.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, 1e-9)


def test_another_mesh() -> None:
    """A model that is distributed again runs on the new mesh, with its weights."""
    expected, model = compiled(dense, sgd), compiled(dense, sgd, mesh())
    first = mtf.keras.distribute(model, mesh())
    model.train_on_batch(X, Y)
    mtf.keras.distribute(model, mtf.Mesh("data:4", "batch:data"))
    model.train_on_batch(X, Y)
    for _ in range(2):
        expected.train_on_batch(X, Y)
    np.testing.assert_allclose(model.get_weights()[0], expected.get_weights()[0], 1e-9)
    with pytest.raises(mtf.PlanError, match="on another mesh now"):
        first.step("train_step", (X, Y, None))((X, Y, None))


def test_models_that_share_layers() -> None:
    """Both on meshes, in turn."""

    def run(*meshes):
        shared = compiled(dense, sgd, meshes[0])
        other = keras.Model(shared.input, layers.Dense(3)(shared.output))
        other.compile(sgd(), "mse", jit_compile=False)
        if meshes[1] is not None:
            mtf.keras.distribute(other, meshes[1])
        other.train_on_batch(X, X[:, :3])
        shared.predict(X, verbose=0)
        other.train_on_batch(X, X[:, :3])
        return other.get_weights()[0]

    common = mesh()
    np.testing.assert_allclose(run(common, common), run(None, None), 1e-9)


def test_logs_are_read_late() -> None:
    """A step returns before its numbers are there."""
    model = compiled(dense, sgd)
    named = mtf.keras.distribute(model, mesh())
    logs = named.step("train_step", (X, Y))((X, Y))
    assert isinstance(logs["loss"], mtf.Tensor)
    assert float(logs["loss"]) > 0


class TestRefusals:
    """What does not run on a mesh says so."""

    def test_eagerly(self) -> None:
        model = compiled(dense, sgd, mesh(), run_eagerly=True)
        with pytest.raises(mtf.ArgumentError, match="run_eagerly=True"):
            model.fit(X, Y, verbose=0)

    @pytest.mark.parametrize("kind", ["Sparse", "Ragged"])
    def test_batches_that_are_not_dense(self, kind) -> None:
        x = (
            tf.sparse.from_dense(X)
            if kind == "Sparse"
            else tf.RaggedTensor.from_tensor(X)
        )
        model = compiled(dense, sgd, mesh())
        with pytest.raises(mtf.ArgumentError, match=f"a batch has a {kind}Tensor"):
            model.fit(tf.data.Dataset.from_tensors((x, Y)), verbose=0)

    def test_strategies(self) -> None:
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = dense()
        with pytest.raises(mtf.ArgumentError, match="MirroredStrategy"):
            mtf.keras.distribute(model, mesh())

    def test_no_model(self) -> None:
        with pytest.raises(mtf.ArgumentError, match="takes a keras.Model"):
            mtf.keras.distribute(layers.Dense(3), mesh())


class CountsTraces(keras.Sequential):
    """A model that counts how often its training step is called."""

    traces = 0

    def train_step(self, data):
        self.traces += 1
        return super().train_step(data)


def test_a_step_whose_metrics_create_variables_is_traced_once():
    model = CountsTraces([keras.Input((6,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    mtf.keras.distribute(model, mtf.Mesh("data:2", "batch:data"))
    x, y = np.ones([8, 6], "float32"), np.zeros(8, "int32")
    history = model.fit(x, y, epochs=2, batch_size=4, verbose=0).history
    assert model.traces == 1
    assert len(history["accuracy"]) == 2


class BuiltInAStep(keras.Model):
    """A model whose layer is built where it is first called."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


def test_layers_that_a_step_builds_get_the_weights_that_keras_gives_them():
    x, y = np.ones([8, 6], "float32"), np.zeros([8, 3], "float32")
    kernels = []
    for mesh in (None, mtf.Mesh("data:2", "batch:data")):
        keras.utils.set_random_seed(3)
        model = BuiltInAStep()
        model.compile("sgd", "mse", jit_compile=False)
        if mesh is not None:
            mtf.keras.distribute(model, mesh)
        model.train_on_batch(x, y)
        kernels.append(model.dense.kernel.numpy())
    np.testing.assert_allclose(kernels[0], kernels[1], 1e-6, 1e-7)


def test_many_shapes_of_batches_are_told_of() -> None:
    """Once, at the third; a smaller last batch is the second, other methods do not count."""

    def build():
        inputs = keras.Input((None, 6))
        return keras.Model(inputs, layers.Dense(3)(layers.GlobalMaxPooling1D()(inputs)))

    model = compiled(build, sgd, mesh())
    model.predict(np.zeros([4, 9, 6]), verbose=0)

    def texts(*shapes):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for shape in shapes:
                model.train_on_batch(np.zeros([*shape, 6]), np.zeros(shape[:1]))
        return [str(w.message) for w in caught if w.category is mtf.TraceWarning]

    assert texts((4, 5), (3, 5), (4, 5)) == []
    (text,) = texts((4, 6), (4, 7), (4, 8))
    for words in (
        "3 shapes came to",
        "train_step",
        r"took [\d.]+ s together",
        r"\(4, 5, 6\), \(4,\)\n +\(3, 5, 6\), \(3,\)\n +\(4, 6, 6\)",
        "bucket_by_sequence_length",
        "drop_remainder=True",
    ):
        assert re.search(words, text), text
