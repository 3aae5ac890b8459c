"""BERT's pretraining, hand-written in TensorFlow, on one device.

loss = PlainBert(Config("bert")).train_step()(batch)     # arrays of `feeds.batches`
"""

from __future__ import annotations

import tensorflow as tf

from benchmarks.ops import hand_written_kernels
from benchmarks.step.plain_tf.training_step import (
    CrossEntropy,
    Drop,
    PlainModel,
    Weights,
    weights_below,
    with_prefix,
)

_EPSILON = 1e-12  # of layer norms


class PlainBert(PlainModel):
    """Post-norm blocks, learned positions, and the two pretraining tasks."""

    def loss(
        self,
        w: Weights,
        batch: dict[str, tf.Tensor],
        drop: Drop,
        cross_entropy: CrossEntropy,
    ) -> tf.Tensor:
        """Returns the mean cross entropy over masked tokens, plus that over pairs of texts."""
        config = self.config
        encoder = weights_below(w, "bert/")
        table = encoder["embedding/table"]
        x = self.encode(encoder, table, batch, drop)
        tasks = weights_below(w, "pretraining/")
        # The index in x of the first token of each example.
        starts = tf.range(x.shape[0] // config.length) * config.length
        indices = tf.reshape(batch["masked_positions"] + starts[:, None], [-1])
        masked = dense(tasks, "transform", tf.gather(x, indices))
        masked = norm(tasks, "transform", hand_written_kernels.gelu_exact(masked))
        logits = tf.nn.bias_add(
            tf.matmul(masked, table, transpose_b=True), tasks["logits_bias"]
        )
        losses = cross_entropy(logits, tf.reshape(batch["masked_ids"], [-1]))
        weights = tf.reshape(batch["masked_weights"], [-1])  # 0 for padding
        pooled = tf.tanh(dense(encoder, "pooler", tf.gather(x, starts)))
        pair_losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=batch["next_sentence_labels"],
            logits=dense(tasks, "next_sentence", pooled),
        )
        # A shard of a batch has "masked_count": the mean count of masked tokens of all
        # shards, so that the mean of the shards' losses is the loss of the batch.
        masked_count = batch.get("masked_count", tf.reduce_sum(weights))
        masked_loss = tf.reduce_sum(losses * weights) / masked_count
        return masked_loss + tf.reduce_mean(pair_losses)

    def encode(
        self,
        w: Weights,
        table: tf.Tensor,
        batch: dict[str, tf.Tensor],
        drop: Drop,
    ) -> tf.Tensor:
        """Returns the output of the last block, `[batch * length, d_model]`.

        Args:
          w: the weights of the encoder.
          table: the embedding table `[vocab, d_model]`.
          batch: the inputs.
          drop: the dropout function.
        """
        config = self.config
        x = hand_written_kernels.embed(table, tf.reshape(batch["tokens"], [-1]))
        # With two entries a one-hot matmul is faster than a gather and its gradient.
        type_one_hot = tf.one_hot(tf.reshape(batch["token_types"], [-1]), 2)
        x += tf.matmul(type_one_hot, w["type_embedding/table"])
        x = (
            tf.reshape(x, [-1, config.length, config.d_model])
            + w["position_embedding/table"]
        )
        x = norm(w, "embedding", tf.reshape(x, [-1, config.d_model]))
        x = drop(x, "dropout")
        # What is added to attention scores: [batch, 1, 1, length]; token 0 is padding.
        bias = tf.where(batch["tokens"] > 0, 0.0, -1e9)[:, None, None]
        for i in range(config.layers):
            path = f"encoder/block_{i}/"
            block = weights_below(w, path)
            h = self.attention(
                weights_below(block, "attention/"),
                x,
                bias=bias,
                drop=with_prefix(drop, f"{path}attention/"),
            )
            x = norm(block, "attention", x + drop(h, path + "attention_dropout"))
            h = hand_written_kernels.gelu_exact(dense(block, "feed_forward/wi", x))
            h = dense(block, "feed_forward/wo", h)
            x = norm(block, "feed_forward", x + drop(h, path + "feed_forward_dropout"))
        return x

    def attention(
        self,
        w: Weights,
        x: tf.Tensor,
        bias: tf.Tensor,
        drop: Drop,
    ) -> tf.Tensor:
        """Returns self-attention of x `[batch * length, d_model]`; `bias` `[batch, 1, 1,
        length]` masks padding.
        """
        query, key, value = (
            self.heads(w, name, x) for name in ("query", "key", "value")
        )
        query *= self.config.d_kv**-0.5
        y = self.attend(w, query, key, value, bias, drop)
        return tf.nn.bias_add(y, w["output/bias"])


def dense(w: Weights, name: str, x: tf.Tensor) -> tf.Tensor:
    """Returns a dense layer of x `[tokens, inputs]`."""
    return tf.nn.bias_add(tf.matmul(x, w[f"{name}/kernel"]), w[f"{name}/bias"])


def norm(w: Weights, name: str, x: tf.Tensor) -> tf.Tensor:
    """Returns the layer norm of x `[tokens, d_model]`, by the weights "<name>_norm/..."."""
    return hand_written_kernels.layer_norm(
        x,
        w[f"{name}_norm/scale"],
        w[f"{name}_norm/bias"],
        epsilon=_EPSILON,
    )
