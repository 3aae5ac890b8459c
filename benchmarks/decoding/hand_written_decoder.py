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
        # A slot has the key or the value of one token. The last id needs none: it is
        # generated, and nothing is generated after it.
        num_slots = length + self.new_tokens - 1
        cos, sin = hand_written_kernels.cos_and_signed_sin(
            num_slots, self.architecture.d_kv
        )
        # A cache is a matrix [batch * heads * num_slots, d_kv], with a row for each slot.
        # `first_rows`: the row of the first slot of each example and head.
        first_rows = tf.reshape(tf.range(batch * heads) * num_slots, [batch, heads])
        logits, caches = self.read_prompts(weights, prompts, lengths, num_slots)
        ids, score = _greedy(logits)
        outputs = tf.TensorArray(tf.int32, self.new_tokens, element_shape=[batch])

        def body(
            i: Any,
            ids: Any,
            outputs: Any,
            total_score: Any,
            *caches: Any,
        ) -> Any:
            """Reads the ids at index i of the outputs, and generates those at i + 1."""
            slots = lengths + i  # [batch]: the slot of each example's last id
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
            cond=lambda i, *_: i < self.new_tokens - 1, body=body, loop_vars=initial
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
        sizes = self.architecture
        batch, length = prompts.shape
        cos, sin = hand_written_kernels.cos_and_signed_sin(length, sizes.d_kv)
        mask = hand_written_kernels.causal_mask(length)
        padding = [[0, 0], [0, 0], [0, num_slots - length], [0, 0]]
        caches: list[tf.Tensor] = []

        def split_heads(x: tf.Tensor) -> tf.Tensor:
            """Returns x [batch * length, heads * d_kv] as [batch, heads, length, d_kv]."""
            x = tf.reshape(x, [batch, length, sizes.heads, sizes.d_kv])
            return tf.transpose(x, [0, 2, 1, 3])

        # x: [batch * length, d_model]
        x = tf.gather(weights["embedding/table"], tf.reshape(prompts, [-1]))
        for i in range(sizes.blocks):
            block = _weights_of_block(weights, i)
            q, k, v = map(split_heads, self.project(block, x))
            q = self.rotate(q, cos, sin)
            k = self.rotate(k, cos, sin)
            for cached in (k, v):
                caches.append(tf.reshape(tf.pad(cached, padding), [-1, sizes.d_kv]))
            attended = tf.transpose(self.attend(q, k, v, mask), [0, 2, 1, 3])
            x = self.add_sublayers(block, x, attended)
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
        sizes = self.architecture
        new_caches: list[tf.Tensor] = []

        def update(cache: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
            """Writes x to a cache, and appends the new cache to `new_caches`; returns it as
            [batch, heads, slots, d_kv].
            """
            rows = tf.reshape(x, [-1, sizes.d_kv])
            new_cache = tf.tensor_scatter_nd_update(cache, cache_rows, rows)
            new_caches.append(new_cache)
            return tf.reshape(new_cache, [ids.shape[0], sizes.heads, -1, sizes.d_kv])

        x = tf.gather(weights["embedding/table"], ids)  # [batch, d_model]
        for i in range(sizes.blocks):
            block = _weights_of_block(weights, i)
            q, k, v = (
                tf.reshape(projection, [-1, sizes.heads, sizes.d_kv])
                for projection in self.project(block, x)
            )
            q = self.rotate(q, cos, sin)
            keys = update(caches[2 * i], self.rotate(k, cos, sin))
            values = update(caches[2 * i + 1], v)
            # One query for each example and head.
            attended = self.attend(
                q[:, :, None],
                k=keys,
                v=values,
                mask=mask,
            )
            x = self.add_sublayers(block, x, attended)
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
        """Returns x [..., d_kv] with rotary positions: each pair of elements is rotated by
        the angle whose cosine and signed sine are given.
        """
        return x * cos + tf.roll(x, self.architecture.d_kv // 2, -1) * sin

    def attend(
        self,
        q: tf.Tensor,
        k: tf.Tensor,
        v: tf.Tensor,
        mask: tf.Tensor,
    ) -> tf.Tensor:
        """Returns attention [batch, heads, queries, d_kv] of q [batch, heads, queries, d_kv]
        to k and v [batch, heads, slots, d_kv]. The mask is added to the scores.
        """
        scale = self.architecture.d_kv**-0.5
        scores = tf.matmul(q * scale, k, transpose_b=True)
        return tf.matmul(tf.nn.softmax(scores + mask), v)

    def add_sublayers(
        self,
        block: dict[str, tf.Tensor],
        x: tf.Tensor,
        attended: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the output [tokens, d_model] of a block.

        Args:
          block: the weights of the block.
          x: the input of the block, [tokens, d_model].
          attended: the result of `attend`, before the output projection: a tensor of
            tokens * heads * d_kv elements, in this order.
        """
        attended = tf.reshape(attended, [x.shape[0], -1])
        x += tf.matmul(attended, block["attention/output/kernel"])
        h = hand_written_kernels.rms_norm(x, block["feed_forward_norm/scale"])
        h = hand_written_kernels.gelu(tf.matmul(h, block["feed_forward/wi/kernel"]))
        return x + tf.matmul(h, block["feed_forward/wo/kernel"])

    def logits(self, weights: dict[str, tf.Tensor], x: tf.Tensor) -> tf.Tensor:
        """Returns logits [batch, vocab] of x [batch, d_model]."""
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
    if "output" in name:  # [heads, d_kv, d_model]
        return -1, value.shape[-1]
    return value.shape[0], -1  # [d_model, heads, d_kv]
