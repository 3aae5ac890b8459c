"""The language model with mixtures of experts, hand-written in TensorFlow, on one device.

Each token goes to the two likeliest of eight experts. Tokens are dispatched and combined by
gathers, not by matmuls with one-hot masks. Each example of the batch is a group, in which
each expert has `expert_slots` slots, room for as many tokens. First choices take slots before
second choices; choices without a slot are dropped.

    loss = PlainMoE(Config("moe")).train_step()(batch)   # tokens, targets: int32 [batch, length]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from benchmarks.ops import hand_written_kernels
from benchmarks.step.cases.sizes import Config
from benchmarks.step.plain_tf.language_model import PlainLM
from benchmarks.step.plain_tf.training_step import Weights

# The weights of the router's losses.
_BALANCE_WEIGHT = 1e-2
_Z_LOSS_WEIGHT = 1e-3


class Routes(NamedTuple):
    """The assignment of tokens to slots. The index of a slot is its index in a flattened
    array [experts, examples, slots of an expert for an example].

    Attributes:
      slots: for first and second choices, int32 [tokens]: the slot of each token; 0 for
        dropped tokens.
      gates: for first and second choices, float32 [tokens, 1]; 0 for dropped tokens.
      is_routed: for first and second choices, float32 [tokens, 1]: 1, or 0 for dropped
        tokens.
      tokens: int32 [slots]: the token in each slot; any token in empty slots.
      weights: float32 [slots, 1]: the gate of the token in each slot; 0 in empty slots.
    """

    slots: tuple[tf.Tensor, tf.Tensor]
    gates: tuple[tf.Tensor, tf.Tensor]
    is_routed: tuple[tf.Tensor, tf.Tensor]
    tokens: tf.Tensor
    weights: tf.Tensor


class PlainMoE(PlainLM):
    """The language model, in which every other block has a mixture of experts."""

    def feed_forward(
        self, w: Weights, x: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the output of the sublayer, [tokens, d_model], and the router's losses."""
        if "moe/router/kernel" not in w:
            return super().feed_forward(w, x)
        c = self.config
        routes, losses = route(c, tf.matmul(x, w["moe/router/kernel"]))
        h = tf.reshape(dispatch(x, routes), [c.experts, -1, c.d_model])
        h = hand_written_kernels.gelu(tf.matmul(h, w["moe/experts/wi/kernel"]))
        h = tf.matmul(h, w["moe/experts/wo/kernel"])
        return combine(tf.reshape(h, [-1, c.d_model]), routes), losses


def route(c: Config, logits: tf.Tensor) -> tuple[Routes, list[tf.Tensor]]:
    """Returns the routes of tokens, and the router's losses.

    Args:
      c: the sizes.
      logits: the logits of the router, `[tokens, experts]`.
    """
    tokens = logits.shape[0]
    batch = tokens // c.length
    probabilities = tf.nn.softmax(logits)
    gates, experts = tf.math.top_k(probabilities, 2)
    gates /= tf.reduce_sum(gates, -1, keepdims=True)
    # The tensors below are [batch, 2 * length]: the first, then the second choices.
    expert = _choices_of_examples(experts, batch)
    one_hot = tf.one_hot(expert, c.experts)  # [batch, 2 * length, experts]
    earlier = tf.cumsum(one_hot, 1, exclusive=True)  # earlier choices of each expert
    slot_of_expert = tf.reduce_sum(earlier * one_hot, -1)  # of the chosen expert
    is_routed = slot_of_expert < c.expert_slots  # others are dropped
    expert_and_example = expert * batch + tf.range(batch)[:, None]
    slot = expert_and_example * c.expert_slots + tf.cast(slot_of_expert, tf.int32)
    gate = tf.where(is_routed, _choices_of_examples(gates, batch), 0.0)
    # Dropped tokens are scattered to an additional slot, which is removed.
    num_slots = c.experts * batch * c.expert_slots
    target = tf.reshape(tf.where(is_routed, slot, num_slots), [-1, 1])
    token = tf.reshape(tf.range(tokens), [batch, -1])
    token = tf.reshape(tf.tile(token, [1, 2]), [-1])
    flat_gate = tf.stop_gradient(tf.reshape(gate, [-1]))
    routed_mask = tf.cast(is_routed, tf.float32)
    routes = Routes(
        slots=_by_choice(tf.where(is_routed, slot, 0)),
        gates=tuple(x[:, None] for x in _by_choice(gate)),
        is_routed=tuple(x[:, None] for x in _by_choice(routed_mask)),
        tokens=tf.scatter_nd(target, token, [num_slots + 1])[:-1],
        weights=tf.scatter_nd(target, flat_gate, [num_slots + 1])[:-1, None],
    )
    return routes, _losses(c, logits, probabilities, one_hot)


def _choices_of_examples(x: tf.Tensor, batch: int) -> tf.Tensor:
    """Returns `[batch, 2 * length]` for x `[tokens, 2]`: for each example all first choices,
    then all second choices.
    """
    x = tf.reshape(x, [batch, -1, 2])
    return tf.reshape(tf.transpose(x, [0, 2, 1]), [batch, -1])


def _by_choice(x: tf.Tensor) -> Any:
    """Returns `[tokens]` for first and for second choices, for x `[batch, 2 * length]`."""
    first_choices, second_choices = tf.split(x, 2, 1)
    return tf.reshape(first_choices, [-1]), tf.reshape(second_choices, [-1])


def _losses(
    c: Config,
    logits: tf.Tensor,
    probabilities: tf.Tensor,
    one_hot: tf.Tensor,
) -> list[tf.Tensor]:
    """Returns the load-balancing loss and the z-loss of the router."""
    probabilities = tf.reshape(probabilities, [-1, c.length, c.experts])
    importance = tf.reduce_mean(probabilities, 1)
    load = tf.reduce_mean(one_hot, 1)
    balance = tf.reduce_mean(tf.reduce_sum(load * importance, -1)) * c.experts
    z = tf.reduce_mean(tf.square(tf.reduce_logsumexp(logits, -1)))
    return [_BALANCE_WEIGHT * balance, _Z_LOSS_WEIGHT * z]


def dispatch(x: tf.Tensor, routes: Routes) -> tf.Tensor:
    """Returns the inputs of all experts `[slots, d_model]`, for x `[tokens, d_model]`."""

    @tf.custom_gradient
    def kernel(x: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            # A sum of two gathers; the gradient of tf.GradientTape would be a scatter.
            terms = [
                tf.gather(dy, slots) * mask
                for slots, mask in zip(routes.slots, routes.is_routed)
            ]
            return tf.add_n(terms)

        return tf.gather(x, routes.tokens), gradient

    return kernel(x)


def combine(outputs: tf.Tensor, routes: Routes) -> tf.Tensor:
    """Returns `[tokens, d_model]`: the outputs of experts `[slots, d_model]`, weighted by
    gates.
    """

    @tf.custom_gradient
    def kernel(outputs: tf.Tensor, *gates: tf.Tensor) -> Any:
        choices = [tf.gather(outputs, slots) for slots in routes.slots]

        def gradient(dy: tf.Tensor) -> Any:
            # `choices`: the output of the expert of each token, first and second choices.
            dgates = [tf.reduce_sum(dy * x, -1, keepdims=True) for x in choices]
            return tf.gather(dy, routes.tokens) * routes.weights, *dgates

        terms = [x * gate for x, gate in zip(choices, gates)]
        return tf.add_n(terms), gradient

    return kernel(outputs, *routes.gates)
