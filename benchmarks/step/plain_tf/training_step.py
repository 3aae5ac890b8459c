"""The base class of the hand-written models: variables, slots and the training step.

meshtf is measured against these models, so they are as fast as we can make them:
formulations were compared with their alternatives, forward and backward, and the fastest
ones are used (see the comments). They do not use meshtf.

    model = PlainLM(Config(layers=2))
    step = model.train_step(jit=False)
    loss = step(batch)          # one update by Adam
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.ops import hand_written_kernels
from benchmarks.ops.dropout_masks import MASKS, masked
from benchmarks.step.cases.sizes import Config

# Dropout: (x, path of meshtf's dropout op) -> x with dropout.
Drop = Callable[[tf.Tensor, str], tf.Tensor]
Weights = Mapping[str, tf.Tensor]  # by name
# (logits [tokens, vocab], labels [tokens]) -> losses [tokens].
CrossEntropy = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def initial_value(config: Config, name: str, shape: tuple[int, ...]) -> tf.Tensor:
    """Returns ones for scales, zeros for biases, and normal random numbers for all others."""
    if name.endswith("scale"):
        return tf.ones(shape)
    if name.endswith("bias"):
        return tf.zeros(shape)
    stddev = 0.5 if name.endswith("/embedding/table") else config.fan_in(name) ** -0.5
    return tf.random.normal(shape, stddev=stddev)


def no_dropout(x: tf.Tensor, path: str) -> tf.Tensor:
    """Returns x: the dropout function (see `Drop`) of a model without dropout."""
    del path
    return x


def with_prefix(drop: Drop, prefix: str) -> Drop:
    """Returns a dropout function of paths that are relative to a prefix."""
    return lambda x, path: drop(x, prefix + path)


def weights_below(weights: Weights, prefix: str) -> dict[str, tf.Tensor]:
    """Returns the weights whose names start with a prefix, by their names without it."""
    return {
        name.removeprefix(prefix): w
        for name, w in weights.items()
        if name.startswith(prefix)
    }


class PlainModel(tf.Module):
    """Variables, optimizer slots and the training step; subclasses add their loss.

    Attributes:
      config: the sizes and settings.
      step: the number of steps done.
      weights: the variables, by name.
      slots: Adam's moments (m, v) of each variable, by the name of the variable.
    """

    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.weights = {
            name: tf.Variable(initial_value(config, name, shape), name=name)
            for name, shape in config.shapes().items()
        }
        slots = {}
        for name, w in self.weights.items():
            m = tf.Variable(tf.zeros(w.shape), trainable=False)
            v = tf.Variable(tf.zeros(w.shape), trainable=False)
            slots[name] = (m, v)
        self.slots = slots

    def assign(self, values: dict[str, np.ndarray]) -> None:
        """Assigns all variables, and resets the optimizer."""
        self.step.assign(0)
        for name, weight in self.weights.items():
            weight.assign(values[name])
            for slot in self.slots[name]:
                slot.assign(tf.zeros(slot.shape))

    def loss(
        self,
        w: Weights,
        batch: dict[str, tf.Tensor],
        drop: Drop,
        cross_entropy: CrossEntropy,
    ) -> tf.Tensor:
        """Returns the training loss of a batch: a scalar.

        Args:
          w: the weights.
          batch: the inputs and labels, as in `feeds.batches`.
          drop: the dropout function.
          cross_entropy: the loss of each token.
        """
        raise NotImplementedError

    def heads(
        self,
        w: Weights,
        name: str,
        x: tf.Tensor,
    ) -> tf.Tensor:
        """Returns queries, keys or values `[batch, length, heads, d_kv]` of x
        `[batch * length, d_model]`.

        Args:
          w: the weights of the attention.
          name: "query", "key" or "value".
          x: the input of the attention.
        """
        config = self.config
        # The dimensions heads and d_kv are flattened: one matmul of matrices.
        y = tf.matmul(x, tf.reshape(w[f"{name}/kernel"], [config.d_model, -1]))
        if f"{name}/bias" in w:
            y = tf.nn.bias_add(y, tf.reshape(w[f"{name}/bias"], [-1]))
        return tf.reshape(y, [-1, config.length, config.heads, config.d_kv])

    def attend(
        self,
        w: Weights,
        query: tf.Tensor,
        key: tf.Tensor,
        value: tf.Tensor,
        bias: tf.Tensor,
        drop: Drop,
    ) -> tf.Tensor:
        """Returns the output of attention, `[batch * length, d_model]`.

        Args:
          w: the weights of the attention.
          query: `[batch, length, heads, d_kv]`, divided by the square root of the head's size.
          key: `[batch, length, heads, d_kv]`.
          value: `[batch, length, heads, d_kv]`.
          bias: what is added to the scores, such as a mask.
          drop: the dropout of the attention weights.
        """
        # Batch matmuls of transposed tensors; einsum takes 1.15 times as long in graph mode.
        scores = tf.matmul(
            tf.transpose(query, [0, 2, 1, 3]), tf.transpose(key, [0, 2, 3, 1])
        )
        # An added mask needs no pass in the gradient, where `tf.where` needs one.
        weights = drop(tf.nn.softmax(scores + bias), "dropout")
        y = tf.matmul(weights, tf.transpose(value, [0, 2, 1, 3]))
        y = tf.transpose(y, [0, 2, 1, 3])
        y = tf.reshape(y, [-1, self.config.d_model])
        return tf.matmul(y, tf.reshape(w["output/kernel"], [self.config.d_model, -1]))

    def make_drop(self, seed: tf.Tensor, masks: str) -> Drop:
        """Returns the dropout function of a step.

        Args:
          seed: the seed of the masks, a scalar: the step.
          masks: the kind of masks, a key of `MASKS`.
        """
        config = self.config
        if not config.dropout:
            return no_dropout

        def drop(x: tf.Tensor, path: str) -> tf.Tensor:
            """Returns x with dropout, by the mask of the dropout layer at a path."""
            # meshtf's mask is [batch, length, d_model], x is [batch * length, d_model].
            shape = (
                x.shape
                if x.shape.rank != 2
                else [config.batch, config.length, x.shape[1]]
            )
            mask = MASKS[masks](
                shape,
                rate=config.dropout,
                seed=seed,
                path=f"{config.root}/{path}/dropout",
            )
            return masked(x, tf.reshape(mask, x.shape))

        return drop

    def update(self, gradients: dict[str, tf.Tensor]) -> None:
        """Takes one step of Adam. One fused kernel for each variable is four times as fast as
        separate ops.
        """
        config = self.config
        t = tf.cast(self.step.assign_add(1), tf.float32)
        beta1_power = tf.pow(config.beta1, t)
        beta2_power = tf.pow(config.beta2, t)
        for name, gradient in gradients.items():
            m, v = self.slots[name]
            tf.raw_ops.ResourceApplyAdam(
                var=self.weights[name].handle,
                m=m.handle,
                v=v.handle,
                beta1_power=beta1_power,
                beta2_power=beta2_power,
                lr=config.learning_rate,
                beta1=config.beta1,
                beta2=config.beta2,
                epsilon=config.epsilon,
                grad=gradient,
            )

    def train_step(
        self, jit: bool = False, masks: str = "philox"
    ) -> Callable[[Any], tf.Tensor]:
        """Returns a function of a batch that updates the variables and returns the
        loss.

        Args:
          jit: whether XLA compiles the step.
          masks: the kind of dropout masks: "philox", the fastest, or "hash", the masks of
            meshtf, for losses that are equal to those of meshtf.
        """

        def cross_entropy(logits: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            return hand_written_kernels.cross_entropy(
                logits,
                labels,
                z_loss=self.config.z_loss,
                jit=jit,
            )

        @tf.function(autograph=False, jit_compile=jit)
        def train(batch: dict[str, tf.Tensor]) -> tf.Tensor:
            weights = {name: w.read_value() for name, w in self.weights.items()}
            drop = self.make_drop(self.step.read_value(), masks)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(list(weights.values()))
                loss = self.loss(weights, batch, drop, cross_entropy)
            gradients = tape.gradient(loss, weights)
            # The embedding's gradient is IndexedSlices; a segment sum makes it dense.
            self.update(
                {name: tf.convert_to_tensor(g) for name, g in gradients.items()}
            )
            return loss

        return train
