"""Steps with loops, several tapes and decorated functions, beside Keras on one device."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.keras.tapes.custom_steps import run_both

layers = keras.layers
RNG = np.random.default_rng(0)
FRAMES = RNG.normal(size=(12, 5, 6))
Y = RNG.integers(0, 3, 12)


class Step(keras.Model):
    """An update by the gradients of a loss."""

    def loss_of(self, x: Any, y: Any) -> Any:
        scores = self(x, training=True)
        loss = keras.losses.sparse_categorical_crossentropy
        return tf.reduce_mean(loss(y, scores, from_logits=True))

    def step(self, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return loss

    def train_step(self, data: Any) -> dict[str, Any]:
        return {"loss": self.step(*data[:2])}


class InLoop(Step):
    """The model in a loop: its variables are captured."""

    def loss_of(self, x, y):
        loss_of = super().loss_of

        def body(k: Any, total: Any) -> Any:
            return k + 1, total + loss_of(x + tf.cast(k, x.dtype), y)

        start = (0, tf.constant(0.0, x.dtype))
        return tf.while_loop(lambda k, total: k < 4, body, start)[1]


class OverFrames(Step):
    """A loop over frames, which it reads one by one."""

    def loss_of(self, x, y):
        def body(k: Any, state: Any) -> Any:
            return k + 1, tf.tanh(state * 0.5 + x[:, k])

        start = (0, tf.zeros_like(x[:, 0]))
        _, state = tf.while_loop(lambda k, state: k < 5, body, start)
        return super().loss_of(x + state[:, None], y)


class SeveralUpdates(Step):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data[:2]
        losses = [self.step(x + k, y) for k in range(3)]
        return {"loss": losses[0], "last": losses[-1]}


class Penalised(Step):
    """A gradient of a gradient: TensorFlow's own tapes would rewrite the loop of an LSTM."""

    def loss_of(self, x, y):
        with tf.GradientTape() as tape:
            tape.watch(x)
            scores = self(x)
        slope = tape.gradient(scores, x)
        return tf.reduce_mean(slope**2) + super().loss_of(x, y)


class Meta(Step):
    """The loss after an update of a head, through the update."""

    def loss_of(self, x, y):
        kernel = self.layers[-1].kernel
        with tf.GradientTape() as tape:
            loss = super().loss_of(x, y)
        fast = kernel - 0.1 * tape.gradient(loss, kernel)
        hidden = self.layers[1](x)
        return loss + tf.reduce_mean((hidden @ fast) ** 2)


class Persistent(Step):
    def step(self, x, y):
        with tf.GradientTape(persistent=True) as tape:
            hidden = self.layers[1](x)
            tape.watch(hidden)
            scores = self.layers[2](hidden)
            loss = tf.reduce_mean(scores**2)
        weights = self.trainable_variables
        pairs = zip(
            tape.gradient(loss, weights),
            tape.gradient(scores, weights, output_gradients=tf.sin(scores)),
        )
        self.optimizer.apply_gradients(zip([a + 0.3 * b for a, b in pairs], weights))
        return tf.reduce_sum(tape.gradient([loss, tf.square(loss)], hidden) ** 2)


class DecoratedStep(Step):
    @tf.function
    def train_step(self, data: Any) -> dict[str, Any]:
        return super().train_step(data)


class DecoratedHelper(Step):
    """Its loop and its condition are AutoGraph's."""

    @tf.function
    def loss_of(self, x, y):
        loss = tf.constant(0.0, x.dtype)
        for k in tf.range(3):
            loss += super().loss_of(x * tf.cast(k, x.dtype), y)
        if loss > 2.0:
            loss = 2.0 * loss
        return loss


class DecoratedTape(Step):
    @tf.function
    def step(self, x, y):
        return super().step(x, y)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cls", Step.__subclasses__())
def test_steps_of_an_lstm(cls) -> None:
    def build():
        inputs = keras.Input((5, 6))
        model = cls(inputs, layers.Dense(3)(layers.LSTM(4)(inputs)))
        model.compile(keras.optimizers.Adam(0.1), jit_compile=False)
        return model

    run_both(build, (FRAMES, Y))


class TapeInLoop(Step):
    """The gradient is TensorFlow's, of whose operations the body consists."""

    def step(self, x, y):
        def body(k: Any, loss: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            gradients = tape.gradient(loss, self.trainable_variables)
            for variable, gradient in zip(self.trainable_variables, gradients):
                variable.assign_sub(0.1 * gradient)
            return k + 1, loss

        start = (0, tf.constant(0.0, x.dtype))
        return tf.while_loop(lambda k, loss: k < 3, body, start)[1]


class TapeInBranch(Step):
    def step(self, x, y):
        weights = self.trainable_variables

        def gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            return [loss, *tape.gradient(loss, weights)]

        zeros = [tf.constant(0.0, x.dtype), *map(tf.zeros_like, weights)]
        loss, *results = tf.cond(tf.reduce_sum(x) > 0.0, gradients, lambda: zeros)
        self.optimizer.apply_gradients(zip(results, weights))
        return loss


class Signature(Step):
    """A function with a signature keeps its graph."""

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, 5, 6], tf.float64),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def step(self, x, y):
        return super().step(x, y)


class Functional(Step):
    """`tf.gradients` in place of a tape."""

    def step(self, x, y):
        loss = self.loss_of(x, y)
        weights = self.trainable_variables
        gradients = tf.gradients(loss, [v.value for v in weights])
        self.optimizer.apply_gradients(zip(gradients, weights))
        return loss


OF_TENSORFLOW = [TapeInLoop, TapeInBranch, Signature, Functional]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cls", OF_TENSORFLOW)
def test_gradients_of_tensorflow(cls) -> None:
    def build():
        inputs = keras.Input((5, 6))
        hidden = layers.Dense(4, activation="tanh")(layers.Flatten()(inputs))
        model = cls(inputs, layers.Dense(3)(hidden))
        model.compile(keras.optimizers.Adam(0.1), jit_compile=False)
        return model

    run_both(build, (FRAMES, Y))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cls", OF_TENSORFLOW)
def test_gradients_of_tensorflow_through_loops_are_refused(cls) -> None:
    inputs = keras.Input((5, 6))
    model = cls(inputs, layers.Dense(3)(layers.LSTM(4)(inputs)))
    model.compile(keras.optimizers.Adam(0.1), jit_compile=False)
    mtf.keras.distribute(model, mtf.Mesh("data:2", "batch:data"))
    with pytest.raises(mtf.ArgumentError, match="open the tape in train_step itself"):
        model.train_on_batch(FRAMES, Y)


def test_functions_of_the_model_keep_no_marks() -> None:
    """What a step calls has its own gradients afterwards."""

    class Shared(Step):
        @tf.function
        def gradients_of(self, x, y):
            with tf.GradientTape() as tape:
                loss = self.loss_of(x, y)
            return tape.gradient(loss, self.trainable_variables)

        def step(self, x, y):
            gradients = self.gradients_of(x, y)
            pairs = zip(gradients, self.trainable_variables)
            self.optimizer.apply_gradients(pairs)
            return self.loss_of(x, y)

    inputs = keras.Input((5, 6))
    model = Shared(inputs, layers.Dense(3)(layers.LSTM(4)(inputs)))
    model.compile(keras.optimizers.SGD(0.0), jit_compile=False)
    mtf.keras.distribute(model, mtf.Mesh("data:2", "batch:data"))
    model.train_on_batch(FRAMES, Y)
    with pytest.warns(mtf.TraceWarning):
        gradients = model.gradients_of(tf.constant(FRAMES), tf.constant(Y))
    assert all(np.abs(gradient).max() > 1e-6 for gradient in gradients)
