"""Jacobians within a step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.keras.tapes.custom_steps import run_both, two_layers

layers = keras.layers
X = np.random.default_rng(0).normal(size=(8, 6))


class OfMeans(keras.Model):
    """By all variables; the last bias has a constant one."""

    vectorized = True

    def train_step(self, data: Any) -> dict[str, Any]:
        weights = self.trainable_variables
        with tf.GradientTape() as tape:
            means = tf.reduce_mean(self(data[0]), 0)
        jacobians = tape.jacobian(means, weights, experimental_use_pfor=self.vectorized)
        for variable, each in zip(weights, jacobians):
            variable.assign_sub(0.1 * tf.reduce_sum(each**3, 0))
        return {"means": tf.reduce_sum(means)}


class OneByOne(OfMeans):
    vectorized = False


class OfExamples(keras.Model):
    """Of each example by its own inputs, and the gradient of their size."""

    def train_step(self, data: Any) -> dict[str, Any]:
        weights = self.trainable_variables
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                tape.watch(data[0])
                y = self(data[0])
            slopes = tape.batch_jacobian(y, data[0])
            loss = tf.reduce_mean(slopes**2)
        gradients = outer.gradient(loss, weights)
        for variable, each in zip(weights, gradients):
            if each is not None:
                variable.assign_sub(0.1 * each)
        return {"loss": loss}


class Unconnected(keras.Model):
    """Nothing depends on the inputs."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x = data[0]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tf.stop_gradient(self(x))
        zero = tf.UnconnectedGradients.ZERO
        results = [
            tape.gradient(y, x, unconnected_gradients=zero),
            tape.jacobian(y, x, unconnected_gradients=zero),
            tape.batch_jacobian(y, x, unconnected_gradients=zero),
        ]
        assert tape.jacobian(y, x) is None
        assert tape.gradient(y, {"x": x}) == {"x": None}
        return {f"{k}": tf.cast(tf.size(r), x.dtype) for k, r in enumerate(results)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cls", [OfMeans, OneByOne, OfExamples, Unconnected])
def test_jacobians(cls) -> None:
    run_both(lambda: two_layers(cls), (X, X))
