"""Models with a `train_step` of their own, in the manner of Keras' guides."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tapes.custom_steps import run_both

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6))
Y = RNG.integers(0, 3, 12)


class Custom(keras.Model):
    """The pattern of the guide: `compute_loss`, a tape, `optimizer.apply`."""

    factor = 1.0

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred) * self.factor
        gradients = tape.gradient(loss, self.trainable_variables)
        norm = tf.linalg.global_norm(gradients)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "norm": norm, "nothing": None} | {
            m.name: m.result() for m in self.metrics if m.name != "loss"
        }


class Weighted(Custom):
    """The gradient is not that of `compute_loss`."""

    factor = 3.0


@pytest.mark.parametrize("cls", [Custom, Weighted])
def test_compute_loss_and_apply(cls) -> None:
    def build():
        inputs = keras.Input((6,))
        model = cls(inputs, layers.Dense(3)(layers.LSTM(4)(inputs[..., None])))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.1), loss, jit_compile=False)
        return model

    class Unpacked(cls):
        """Batches come with no weights."""

        def train_step(self, data: Any) -> dict[str, Any]:
            return super().train_step(data[:2])

    cls = Unpacked
    run_both(build, (X, Y))


class Adversarial(keras.Model):
    """A GAN: two optimizers, and gradients of two losses in one step."""

    def __init__(self) -> None:
        super().__init__()
        self.discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(4, 3, 2, "same"),
                layers.LeakyReLU(0.2),
                layers.BatchNormalization(),
                layers.GlobalMaxPooling2D(),
                layers.Dense(1),
            ]
        )
        self.generator = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(4 * 4 * 3),
                layers.Reshape((4, 4, 3)),
                layers.Conv2DTranspose(1, 4, 2, "same", activation="sigmoid"),
            ]
        )
        self.for_discriminator = keras.optimizers.Adam(0.01)
        self.for_generator = keras.optimizers.SGD(0.1)
        self.loss_function = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data: Any) -> dict[str, Any]:
        images, noise = data[:2]
        both = tf.concat([self.generator(noise), images], 0)
        labels = tf.concat([tf.ones((12, 1)), tf.zeros((12, 1))], 0)
        weights = self.discriminator.trainable_weights
        with tf.GradientTape() as tape:
            loss = self.loss_function(labels, self.discriminator(both))
        gradients = tape.gradient(loss, weights)
        self.for_discriminator.apply_gradients(zip(gradients, weights))
        weights = self.generator.trainable_weights
        with tf.GradientTape() as tape:
            scores = self.discriminator(self.generator(noise))
            second = self.loss_function(tf.zeros((12, 1)), scores)
        gradients = tape.gradient(second, weights)
        self.for_generator.apply_gradients(zip(gradients, weights))
        return {"discriminator": loss, "generator": second}


def test_a_gan() -> None:
    """The second loss is that of the updated discriminator."""

    def build():
        model = Adversarial()
        model.compile(jit_compile=False)
        return model

    run_both(build, (RNG.random((12, 8, 8, 1)), X))


class Penalised(keras.Model):
    """A gradient by the inputs, in the loss (WGAN-GP)."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x = data[0]
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = self(x)
            slope = inner.gradient(y, x)
            loss = tf.reduce_mean((tf.reduce_sum(slope**2, -1) - 1.0) ** 2)
        weights = self.trainable_variables
        gradients = outer.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(gradients, weights))
        return {"loss": loss}


def test_gradients_of_gradients() -> None:
    """The last bias is not needed, so it is left out."""

    def build():
        inputs = keras.Input((6,))
        h = layers.Dense(4, activation="tanh")(inputs)
        model = Penalised(inputs, layers.Dense(1)(h))
        model.compile(keras.optimizers.Adam(0.1), jit_compile=False)
        return model

    run_both(build, (X, Y))


class TwoHeads(keras.Model):
    """Only one of two heads is in the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = layers.Dense(3), layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.used(x) + tf.stop_gradient(self.unused(x))


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_variables_that_the_loss_does_not_need() -> None:
    """Keras leaves them out: they are not decayed either."""

    def build():
        model = TwoHeads()
        model(X)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.1)
        model.compile(optimizer, loss, jit_compile=False)
        return model

    run_both(build, (X, Y))


def test_backward_operations_of_tensorflow() -> None:
    """A tape within another traced function is TensorFlow's; its operations are imported."""

    class Compiled(Custom):
        @tf.function
        def train_step(self, data: Any) -> dict[str, Any]:
            return super().train_step(data[:2])

    def build():
        inputs = keras.Input((8, 8, 2))
        x = layers.Conv2D(4, 3, 2, padding="same", activation="relu")(inputs)
        x = layers.BatchNormalization()(layers.LeakyReLU()(x))
        x = layers.MaxPooling2D()(x)
        x = layers.Dense(4, activation="tanh")(layers.Flatten()(x))
        model = Compiled(inputs, layers.Dense(3, activation="sigmoid")(x))
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        return model

    run_both(build, (RNG.normal(size=(12, 8, 8, 2)), X[:, :3]))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_table_that_ids_of_two_types_index(optimizer: str) -> None:
    """Its gradient has rows of both, as in TensorFlow."""

    def build():
        item = keras.Input((), dtype="int64", name="item")
        history = keras.Input((5,), dtype="int32", name="history")
        table = layers.Embedding(16, 4)
        product = table(item) * keras.ops.mean(table(history), 1)
        model = keras.Model([item, history], layers.Dense(1)(product))
        model.compile(optimizer, "mse", jit_compile=False)
        return model

    items = RNG.integers(0, 16, 12).astype("int64")
    histories = RNG.integers(0, 16, (12, 5)).astype("int32")
    run_both(build, ([items, histories], X[:, :1]))
