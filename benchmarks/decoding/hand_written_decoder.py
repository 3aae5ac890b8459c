"""Greedy decoding with a cache, hand-written in TensorFlow, on one device.

decoder = HandWrittenDecoder(architecture, weights, new_tokens=32)
ids, scores = decoder.generate(prompts, lengths)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.ops import hand_written_kernels
from transformer.models.architecture import Architecture


class HandWrittenDecoder:
    """Greedy decoding in plain TensorFlow, of a model with rotary positions, RMS norms,
    gelu and no biases.

    Weights are named by their path in `LanguageModel`. The dimensions heads and d_kv are
    flattened to one, so all weights are matrices.

    Args:
      architecture: the sizes of the model.
      weights: the values of the weights, by name.
      new_tokens: the number of ids that are generated after each prompt.
    """

    def __init__(
        self,
        architecture: Architecture,
        weights: dict[str, np.ndarray],
        new_tokens: int,
    ) -> None:
        self.architecture = architecture
        self.new_tokens = new_tokens
        self.weights = {
            name: tf.Variable(value.reshape(_matrix_shape(name, value)))
            for name, value in weights.items()
        }

    @tf.function(autograph=False, reduce_retracing=False)
    def generate(
        self, prompts: tf.Tensor, lengths: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Generates ids after prompts.

        Args:
          prompts: int32 [batch, length], padded.
          lengths: int32 [batch]: the lengths of the prompts.

        Returns:
          Ids [batch, new_tokens], and the sums of their log-probabilities [batch].
        """
        batch, length = prompts.shape
        heads = self.architecture.heads
        weights = {name: w.read_value() for name, w in self.weights.items()}
        # A slot has the key or the value of one token. The last id is generated, not read.
        num_slots = length + self.new_tokens - 1
        cos, sin = hand_written_kernels.cos_and_signed_sin(
            num_slots, self.architecture.d_kv
        )
        # A cache is a matrix [batch * heads * num_slots, d_kv]: its row is a slot of an
        # example and a head. The rows of the first slots:
        first_rows = tf.reshape(tf.range(batch * heads) * num_slots, [batch, heads])
        logits, caches = self.read_prompts(weights, prompts, lengths, num_slots)
        ids, score = _greedy(logits)
        outputs = tf.TensorArray(tf.int32, self.new_tokens, element_shape=[batch])

        def step(
            i: Any,
            ids: Any,
            outputs: Any,
            total_score: Any,
            *caches: Any,
        ) -> Any:
            slots = lengths + i  # [batch]: the slot of each example's new id
            is_visible = tf.range(num_slots) <= slots[:, None]
            mask = tf.where(is_visible, 0.0, -1e9)[:, None, None]
            logits, caches = self.step(
                weights,
                ids,
                caches,
                cache_rows=tf.reshape(first_rows + slots[:, None], [-1, 1]),
                mask=mask,
                cos=tf.gather(cos, slots)[:, None],
                sin=tf.gather(sin, slots)[:, None],
            )
            ids, score = _greedy(logits)
            return i + 1, ids, outputs.write(i + 1, ids), total_score + score, *caches

        initial = [tf.constant(0), ids, outputs.write(0, ids), score, *caches]
        _, _, outputs, total_score, *_ = tf.while_loop(
            cond=lambda i, *_: i < self.new_tokens - 1, body=step, loop_vars=initial
        )
        return tf.transpose(outputs.stack()), total_score

    def read_prompts(
        self,
        weights: dict[str, tf.Tensor],
        prompts: tf.Tensor,
        lengths: tf.Tensor,
        num_slots: int,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns logits [batch, vocab] after the prompts, and the caches: the keys of block
        0, the values of block 0, the keys of block 1, ...

        Args:
          weights: all weights.
          prompts: int32 [batch, length], padded.
          lengths: int32 [batch]: the lengths of the prompts.
          num_slots: the number of tokens for which a cache has room.
        """
        a = self.architecture
        batch, length = prompts.shape
        cos, sin = hand_written_kernels.cos_and_signed_sin(length, a.d_kv)
        mask = hand_written_kernels.causal_mask(length)
        padding = [[0, 0], [0, 0], [0, num_slots - length], [0, 0]]
        caches: list[tf.Tensor] = []

        def split_heads(x: tf.Tensor) -> tf.Tensor:
            x = tf.reshape(x, [batch, length, a.heads, a.d_kv])
            return tf.transpose(x, [0, 2, 1, 3])

        x = tf.gather(weights["embedding/table"], tf.reshape(prompts, [-1]))
        for i in range(a.blocks):
            block = _weights_of_block(weights, i)
            q, k, v = map(split_heads, self.project(block, x))
            q = self.rotate(q, cos, sin)
            k = self.rotate(k, cos, sin)
            for y in (k, v):
                caches.append(tf.reshape(tf.pad(y, padding), [-1, a.d_kv]))
            y = tf.transpose(self.attend(q, k, v, mask), [0, 2, 1, 3])
            x = self.add_sublayers(block, x, y)
        x = tf.reshape(x, [batch, length, -1])
        x = tf.gather(x, lengths - 1, batch_dims=1)
        return self.logits(weights, x), caches

    def step(
        self,
        weights: dict[str, tf.Tensor],
        ids: tf.Tensor,
        caches: Sequence[tf.Tensor],
        cache_rows: tf.Tensor,
        mask: tf.Tensor,
        cos: tf.Tensor,
        sin: tf.Tensor,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns logits [batch, vocab] after ids [batch], and the caches.

        Args:
          weights: all weights.
          ids: the last ids.
          caches: the keys and the values of each block, in turn.
          cache_rows: [batch * heads, 1]: the rows of the caches to write.
          mask: [batch, 1, 1, num_slots]: 0 for visible slots, -1e9 for all others.
          cos: [batch, 1, d_kv]: the cosines of the rotary angles.
          sin: [batch, 1, d_kv]: the signed sines of the rotary angles.
        """
        a = self.architecture
        new_caches: list[tf.Tensor] = []

        def update(cache: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            """Writes x to a cache; returns the new cache as [batch, heads, slots, d_kv]."""
            rows = tf.reshape(x, [-1, a.d_kv])
            new_caches.append(tf.tensor_scatter_nd_update(cache, cache_rows, rows))
            return tf.reshape(new_caches[-1], [ids.shape[0], a.heads, -1, a.d_kv])

        x = tf.gather(weights["embedding/table"], ids)
        for i in range(a.blocks):
            block = _weights_of_block(weights, i)
            q, k, v = (
                tf.reshape(y, [-1, a.heads, a.d_kv]) for y in self.project(block, x)
            )
            q = self.rotate(q, cos, sin)
            keys = update(caches[2 * i], self.rotate(k, cos, sin))
            values = update(caches[2 * i + 1], v)
            y = self.attend(
                q[:, :, None],
                keys,
                values,
                mask,
            )
            x = self.add_sublayers(block, x, y)
        return self.logits(weights, x), new_caches

    def project(self, block: dict[str, tf.Tensor], x: tf.Tensor) -> list[tf.Tensor]:
        """Returns queries, keys and values [tokens, heads * d_kv] of x [tokens, d_model]."""
        h = hand_written_kernels.rms_norm(x, block["attention_norm/scale"])
        return [
            tf.matmul(h, block["attention/query/kernel"]),
            tf.matmul(h, block["attention/key/kernel"]),
            tf.matmul(h, block["attention/value/kernel"]),
        ]

    def rotate(
        self,
        x: tf.Tensor,
        cos: tf.Tensor,
        sin: tf.Tensor,
    ) -> tf.Tensor:
        """Returns x [..., d_kv] with rotary positions."""
        return x * cos + tf.roll(x, self.architecture.d_kv // 2, -1) * sin

    def attend(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        mask: tf.Tensor,
    ) -> tf.Tensor:
        """Returns attention [batch, heads, queries, d_kv] of q [batch, heads, queries, d_kv]
        to k and v [batch, heads, slots, d_kv].
        """
        scale = self.architecture.d_kv**-0.5
        scores = tf.matmul(q * scale, k, transpose_b=True)
        return tf.matmul(tf.nn.softmax(scores + mask), v)

    def add_sublayers(
        self,
        block: dict[str, tf.Tensor],
        x: tf.Tensor,
        y: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the output [tokens, d_model] of a block: x, plus the output projection of
        attention y, plus the feed-forward layer.
        """
        y = tf.reshape(y, [x.shape[0], -1])
        x += tf.matmul(y, block["attention/output/kernel"])
        h = hand_written_kernels.rms_norm(x, block["feed_forward_norm/scale"])
        h = hand_written_kernels.gelu(tf.matmul(h, block["feed_forward/wi/kernel"]))
        return x + tf.matmul(h, block["feed_forward/wo/kernel"])

    def logits(self, weights: dict[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Returns logits [batch, vocab]."""
        x = hand_written_kernels.rms_norm(x, weights["decoder/norm/scale"])
        return tf.matmul(x, weights["logits/kernel"])


def _greedy(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the likeliest ids and their log-probabilities, [batch] each."""
    ids = tf.argmax(logits, -1, tf.int32)
    return ids, tf.reduce_max(logits, -1) - tf.reduce_logsumexp(logits, -1)


def _weights_of_block(
    weights: dict[str, tf.Tensor], index: int
) -> dict[str, tf.Tensor]:
    """Returns the weights of a block, by their path within it."""
    prefix = f"decoder/block_{index}/"
    return {
        name.removeprefix(prefix): w
        for name, w in weights.items()
        if name.startswith(prefix)
    }


def _matrix_shape(name: str, value: np.ndarray) -> tuple[int, ...]:
    """Returns the shape of a weight with heads and d_kv as one dimension."""
    if value.ndim < 3:
        return value.shape
    if "output" in name:
        return -1, value.shape[-1]
    return value.shape[0], -1
