"""What a tape has not recorded, or does not watch, is a constant for its gradients."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.keras.tapes.custom_steps import run_both, two_layers

layers = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6))
Y = RNG.integers(0, 3, 12)


class Step(keras.Model):
    """Two dense layers; gradients that are None leave a variable as it is."""

    def train_step(self, data: Any) -> dict[str, Any]:
        loss, gradients = self.gradients_of(*data[:2])
        for variable, gradient in zip(self.trainable_variables, gradients):
            if gradient is not None:
                variable.assign_sub(0.1 * gradient)
        absent = [float(gradient is None) for gradient in gradients]
        return {"loss": loss, "absent": tf.constant(sum(absent))}

    def loss_of(self, x: Any, y: Any) -> Any:
        scores = self(x, training=True)
        loss = keras.losses.sparse_categorical_crossentropy
        return tf.reduce_mean(loss(y, scores, from_logits=True))


class Outside(Step):
    """The first layer is outside of the tape."""

    def gradients_of(self, x, y):
        hidden = self.layers[1](x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.layers[2](hidden) ** 2)
        return loss, tape.gradient(loss, self.trainable_variables)


class InsideAndOutside(Step):
    """The same variables are read in the tape and before it."""

    def gradients_of(self, x, y):
        before = self(x)
        weights = tf.identity(self.trainable_variables[0])
        with tf.GradientTape() as tape:
            change = self(x) - before * 0.5
            product = tf.reduce_sum(weights * self.trainable_variables[0])
            loss = tf.reduce_mean(change**2) + product
        return loss, tape.gradient(loss, self.trainable_variables)


class Stopped(Step):
    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
            with tape.stop_recording():
                mean = tf.reduce_mean(self(x))
            loss = loss * mean + mean
        return loss, tape.gradient(loss, self.trainable_variables)


class Reset(Step):
    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
            tape.reset()
            total = loss + self.loss_of(2.0 * x, y)
            return loss, tape.gradient(total, self.trainable_variables)


class TooLate(Step):
    """The target is computed after the tape."""

    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        return loss, tape.gradient(loss * 3.0, self.trainable_variables)


class Unwatched(Step):
    """Nobody watches the inputs, nor what is computed from them alone."""

    def gradients_of(self, x, y):
        with tf.GradientTape() as tape:
            scaled = 2.0 * x
            loss = self.loss_of(scaled, y)
        sources = [x, scaled, *self.trainable_variables]
        first, second, *gradients = tape.gradient(loss, sources)
        assert first is None and second is None
        return loss, gradients


class Watched(Step):
    """A tape of one variable only, and of an activation."""

    def gradients_of(self, x, y):
        first = self.trainable_variables[0].value
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(first)
            hidden = self.layers[1](x)
            tape.watch(hidden)
            loss = tf.reduce_mean(self.layers[2](hidden) ** 2)
        gradients = tape.gradient(loss, [hidden, *self.trainable_variables])
        return loss + tf.reduce_sum(gradients[0] ** 2), gradients[1:]


class InnerOutside(Step):
    """The second tape begins after a gradient by the first one, which it does not know."""

    def gradients_of(self, x, y):
        weights = self.trainable_variables
        with tf.GradientTape() as inner:
            loss = self.loss_of(x, y)
        firsts = inner.gradient(loss, weights)
        with tf.GradientTape() as outer:
            products = [tf.reduce_sum(v * d) for v, d in zip(weights, firsts)]
            loss = self.loss_of(x, y) + tf.add_n(products)
        return loss, outer.gradient(loss, weights)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("cls", Step.__subclasses__())
def test_tapes_record_as_in_tensorflow(cls) -> None:
    run_both(lambda: two_layers(cls), (X, Y))


def test_variables_that_are_not_trainable() -> None:
    """They have a gradient only if a tape is told to watch them."""

    class Scaled(keras.Model):
        def build(self, shape):
            self.scale = self.add_weight(
                shape=(6,), initializer="ones", trainable=False
            )

        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape(persistent=True) as tape:
                loss = tf.reduce_sum(data[0] * self.scale**2)
            absent = tape.gradient(loss, self.scale.value) is None
            with tf.GradientTape() as tape:
                tape.watch(self.scale.value)
                loss = tf.reduce_sum(data[0] * self.scale**2)
            slope = tape.gradient(loss, self.scale.value)
            return {"absent": tf.constant(float(absent)), "slope": slope[0]}

    def build():
        model = Scaled()
        model.build((None, 6))
        model.compile("sgd", jit_compile=False)
        return model

    run_both(build, (X, Y), 1)


def test_a_tape_is_asked_where_it_was_opened() -> None:
    class InBranch(Step):
        def gradients_of(self, x, y):
            weights = self.trainable_variables
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            zeros = [tf.zeros_like(v) for v in weights]
            return loss, tf.cond(
                loss > 0.0, lambda: tape.gradient(loss, weights), lambda: zeros
            )

    inputs = keras.Input((6,))
    model = InBranch(inputs, layers.Dense(3)(inputs))
    model.compile("sgd", jit_compile=False)
    mtf.keras.distribute(model, mtf.Mesh("data:2", "batch:data"))
    with pytest.raises(mtf.ArgumentError, match="in a branch or a loop"):
        model.train_on_batch(X, Y)
