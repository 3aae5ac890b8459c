"""The language model with mixtures of experts by hand, in plain TensorFlow, on one
device.

Each token goes to the two likeliest experts of eight, by number: rows are looked up,
nothing is multiplied with zeros and ones. A row of the batch is a group, in which each
expert has so many slots; first choices come before second ones.

    loss = PlainMoE(Config("moe")).train_step()(batch)   # tokens, targets: int32 [batch, length]
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from benchmarks.ops import hand_written_kernels
from benchmarks.step.cases.sizes import Config
from benchmarks.step.plain_tf.language_model import PlainLM
from benchmarks.step.plain_tf.training_step import Weights

_BALANCE = 1e-2
_Z = 1e-3


class Routes(NamedTuple):
    """Which token lies in which slot; slots are numbered by expert, row and place."""

    slots: tuple[
        tf.Tensor, tf.Tensor
    ]  # int32 [tokens]: of first and second choices; 0: dropped
    gates: tuple[tf.Tensor, tf.Tensor]  # float32 [tokens, 1]; 0: dropped
    kept: tuple[tf.Tensor, tf.Tensor]  # float32 [tokens, 1], 1 or 0
    tokens: tf.Tensor  # int32 [slots]: the token in each; some one if empty
    weights: tf.Tensor  # float32 [slots, 1]: its gate; 0 if empty


class PlainMoE(PlainLM):
    """The language model, in which every other block has a mixture of experts."""

    def feed_forward(
        self, w: Weights, x: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns what is added to the stream, and losses."""
        if "moe/router/kernel" not in w:
            return super().feed_forward(w, x)
        c = self.config
        routes, losses = route(c, tf.matmul(x, w["moe/router/kernel"]))
        h = tf.reshape(take(x, routes), [c.experts, -1, c.d_model])
        h = hand_written_kernels.gelu(tf.matmul(h, w["moe/experts/wi/kernel"]))
        h = tf.matmul(h, w["moe/experts/wo/kernel"])
        return bring_back(tf.reshape(h, [-1, c.d_model]), routes), losses


def route(c: Config, logits: tf.Tensor) -> tuple[Routes, list[tf.Tensor]]:
    """Returns the routes of tokens by logits `[tokens, experts]`, and the router's
    losses.
    """
    tokens = logits.shape[0]
    batch = tokens // c.length
    likely = tf.nn.softmax(logits)
    gates, experts = tf.math.top_k(likely, 2)
    gates /= tf.reduce_sum(gates, -1, keepdims=True)
    # All choices of a row in a line: [batch, 2 * length], the first ones before the
    # second ones.
    line = _in_line(experts, batch)
    chosen = tf.one_hot(line, c.experts)
    place = tf.reduce_sum(tf.cumsum(chosen, 1, exclusive=True) * chosen, -1)
    kept = place < c.slots
    slot = (line * batch + tf.range(batch)[:, None]) * c.slots + tf.cast(
        place, tf.int32
    )
    gate = tf.where(kept, _in_line(gates, batch), 0.0)
    # Whoever is dropped writes to one slot more, which is cut off again.
    number = c.experts * batch * c.slots
    target = tf.reshape(tf.where(kept, slot, number), [-1, 1])
    token = tf.reshape(tf.tile(tf.reshape(tf.range(tokens), [batch, -1]), [1, 2]), [-1])
    slots = tf.where(kept, slot, 0)
    kept = tf.cast(kept, tf.float32)
    routes = Routes(
        _by_choice(slots, batch),
        tuple(g[:, None] for g in _by_choice(gate, batch)),
        tuple(k[:, None] for k in _by_choice(kept, batch)),
        tf.scatter_nd(target, token, [number + 1])[:-1],
        tf.scatter_nd(target, tf.stop_gradient(tf.reshape(gate, [-1])), [number + 1])[
            :-1, None
        ],
    )
    return routes, _losses(c, logits, likely, chosen)


def _in_line(x: tf.Tensor, batch: int) -> tf.Tensor:
    """Returns `[batch, 2 * length]` for x `[tokens, 2]`."""
    return tf.reshape(
        tf.transpose(tf.reshape(x, [batch, -1, 2]), [0, 2, 1]), [batch, -1]
    )


def _by_choice(x: tf.Tensor, batch: int) -> Any:
    """Returns the `[tokens]` of first and of second choices for x
    `[batch, 2 * length]`.
    """
    return tuple(tf.reshape(half, [-1]) for half in tf.split(x, 2, 1))


def _losses(
    c: Config, logits: tf.Tensor, likely: tf.Tensor, chosen: tf.Tensor
) -> list[tf.Tensor]:
    mean = tf.reduce_mean(tf.reshape(likely, [-1, c.length, c.experts]), 1)
    balance = (
        tf.reduce_mean(tf.reduce_sum(tf.reduce_mean(chosen, 1) * mean, -1)) * c.experts
    )
    return [
        _BALANCE * balance,
        _Z * tf.reduce_mean(tf.square(tf.reduce_logsumexp(logits, -1))),
    ]


def take(x: tf.Tensor, routes: Routes) -> tf.Tensor:
    """Returns the slots of all experts `[slots, d_model]` for tokens x
    `[tokens, d_model]`.
    """

    @tf.custom_gradient
    def taken(x: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            # A sum of looked-up rows; the tape would scatter.
            return tf.add_n(
                [tf.gather(dy, s) * k for s, k in zip(routes.slots, routes.kept)]
            )

        return tf.gather(x, routes.tokens), gradient

    return taken(x)


def bring_back(results: tf.Tensor, routes: Routes) -> tf.Tensor:
    """Returns `[tokens, d_model]` for what experts made of their slots
    `[slots, d_model]`.
    """

    @tf.custom_gradient
    def brought(results: tf.Tensor, *gates: tf.Tensor) -> Any:
        rows = [tf.gather(results, s) for s in routes.slots]

        def gradient(dy: tf.Tensor) -> Any:
            by_gate = (tf.reduce_sum(dy * row, -1, keepdims=True) for row in rows)
            return tf.gather(dy, routes.tokens) * routes.weights, *by_gate

        return tf.add_n([row * gate for row, gate in zip(rows, gates)]), gradient

    return brought(results, *routes.gates)
