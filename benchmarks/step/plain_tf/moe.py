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
        config = self.config
        routes, losses = route(config, tf.matmul(x, w["moe/router/kernel"]))
        h = tf.reshape(dispatch(x, routes), [config.experts, -1, config.d_model])
        h = hand_written_kernels.gelu(tf.matmul(h, w["moe/experts/wi/kernel"]))
        h = tf.matmul(h, w["moe/experts/wo/kernel"])
        return combine(tf.reshape(h, [-1, config.d_model]), routes), losses


def route(config: Config, logits: tf.Tensor) -> tuple[Routes, list[tf.Tensor]]:
    """Returns the routes of tokens, and the router's losses.

    Args:
      config: the sizes.
      logits: the logits of the router, `[tokens, experts]`.
    """
    num_tokens = logits.shape[0]
    batch = num_tokens // config.length
    probabilities = tf.nn.softmax(logits)
    token_gates, token_experts = tf.math.top_k(probabilities, 2)  # [tokens, 2]
    token_gates /= tf.reduce_sum(token_gates, axis=-1, keepdims=True)
    # Below, a choice is one of the two experts of a token. The tensors are
    # [batch, 2 * length]: first choices, then second choices, in the order of priority.
    experts = _choices_of_examples(token_experts, batch)
    one_hot = tf.one_hot(experts, config.experts)  # [batch, 2 * length, experts]
    # How many earlier choices of the example chose each expert, and the chosen one.
    earlier_choices = tf.cumsum(one_hot, axis=1, exclusive=True)
    index_in_expert = tf.reduce_sum(earlier_choices * one_hot, axis=-1)
    is_routed = index_in_expert < config.expert_slots  # false: dropped
    first_slots = (experts * batch + tf.range(batch)[:, None]) * config.expert_slots
    slots = first_slots + tf.cast(index_in_expert, tf.int32)
    gates = tf.where(is_routed, _choices_of_examples(token_gates, batch), 0.0)
    # Dropped choices are scattered to an additional slot, which is removed.
    num_slots = config.experts * batch * config.expert_slots
    targets = tf.reshape(tf.where(is_routed, slots, num_slots), [-1, 1])
    tokens = tf.reshape(tf.range(num_tokens), [batch, -1])
    flat_tokens = tf.reshape(tf.tile(tokens, [1, 2]), [-1])
    flat_gates = tf.stop_gradient(tf.reshape(gates, [-1]))
    routed_mask = tf.cast(is_routed, tf.float32)
    routes = Routes(
        slots=_by_choice(tf.where(is_routed, slots, 0)),
        gates=tuple(x[:, None] for x in _by_choice(gates)),
        is_routed=tuple(x[:, None] for x in _by_choice(routed_mask)),
        tokens=tf.scatter_nd(targets, flat_tokens, [num_slots + 1])[:-1],
        weights=tf.scatter_nd(targets, flat_gates, [num_slots + 1])[:-1, None],
    )
    return routes, _losses(config, logits, probabilities, one_hot)


def _choices_of_examples(x: tf.Tensor, batch: int) -> tf.Tensor:
    """Returns `[batch, 2 * length]` for x `[tokens, 2]`: for each example all first choices,
    then all second choices.
    """
    x = tf.reshape(x, [batch, -1, 2])
    return tf.reshape(tf.transpose(x, [0, 2, 1]), [batch, -1])


def _by_choice(x: tf.Tensor) -> Any:
    """Returns `[tokens]` for first and for second choices, for x `[batch, 2 * length]`."""
    first_choices, second_choices = tf.split(x, 2, axis=1)
    return tf.reshape(first_choices, [-1]), tf.reshape(second_choices, [-1])


def _losses(
    config: Config,
    logits: tf.Tensor,
    probabilities: tf.Tensor,
    one_hot: tf.Tensor,
) -> list[tf.Tensor]:
    """Returns the load-balancing loss and the z-loss of the router.

    Args:
      config: the sizes.
      logits: the logits of the router, `[tokens, experts]`.
      probabilities: the softmax of the logits, `[tokens, experts]`.
      one_hot: which expert each choice has, `[batch, 2 * length, experts]`.
    """
    probabilities = tf.reshape(probabilities, [-1, config.length, config.experts])
    mean_probabilities = tf.reduce_mean(probabilities, axis=1)  # [batch, experts]
    load = tf.reduce_mean(one_hot, axis=1)  # the fraction of choices, [batch, experts]
    balance = tf.reduce_mean(tf.reduce_sum(load * mean_probabilities, axis=-1))
    balance_loss = balance * config.experts  # 1 if all experts are equally likely
    z_loss = tf.reduce_mean(tf.square(tf.reduce_logsumexp(logits, axis=-1)))
    return [_BALANCE_WEIGHT * balance_loss, _Z_LOSS_WEIGHT * z_loss]


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
