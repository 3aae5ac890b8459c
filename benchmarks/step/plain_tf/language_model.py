"""The decoder-only language model, hand-written in TensorFlow, on one device.

loss = PlainLM(Config()).train_step()(batch)     # tokens, targets: int32 [batch, length]
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


class PlainLM(PlainModel):
    """Pre-norm blocks with rotary positions."""

    def loss(
        self,
        w: Weights,
        batch: dict[str, tf.Tensor],
        drop: Drop,
        cross_entropy: CrossEntropy,
    ) -> tf.Tensor:
        """Returns the mean cross entropy over all tokens, plus the losses of feed-forward
        sublayers.
        """
        config = self.config
        w = weights_below(w, f"{config.root}/")
        losses = []
        # Activations stay [batch * length, d_model]: a matmul of a 3-D by a 2-D tensor is
        # lowered to a broadcast batch matmul, which takes twice the time.
        x = tf.gather(w["embedding/table"], tf.reshape(batch["tokens"], [-1]))
        x = drop(x, "dropout")
        for i in range(config.layers):
            path = f"decoder/block_{i}/"
            block = weights_below(w, path)
            h = hand_written_kernels.rms_norm(x, block["attention_norm/scale"])
            h = self.attention(
                weights_below(block, "attention/"),
                h,
                drop=with_prefix(drop, f"{path}attention/"),
            )
            x += drop(h, path + "attention_dropout")
            h = hand_written_kernels.rms_norm(x, block["feed_forward_norm/scale"])
            h, losses_of_block = self.feed_forward(block, h)
            x += drop(h, path + "feed_forward_dropout")
            losses += losses_of_block
        logits = tf.matmul(
            hand_written_kernels.rms_norm(x, w["decoder/norm/scale"]),
            w["logits/kernel"],
        )
        loss = tf.reduce_mean(cross_entropy(logits, tf.reshape(batch["targets"], [-1])))
        return tf.add_n([loss, *losses])

    def feed_forward(
        self, w: Weights, x: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the output of the sublayer, [tokens, d_model], and its auxiliary losses,
        here none.

        Args:
          w: the weights of the block.
          x: the input, [tokens, d_model].
        """
        h = hand_written_kernels.gelu(tf.matmul(x, w["feed_forward/wi/kernel"]))
        return tf.matmul(h, w["feed_forward/wo/kernel"]), []

    def attention(
        self,
        w: Weights,
        x: tf.Tensor,
        drop: Drop,
    ) -> tf.Tensor:
        """Returns causal self-attention of x `[batch * length, d_model]`."""
        config = self.config
        query, key, value = (
            self.heads(w, name, x) for name in ("query", "key", "value")
        )
        return self.attend(
            w,
            query=hand_written_kernels.rotate(query, factor=config.d_kv**-0.5),
            key=hand_written_kernels.rotate(key),
            value=value,
            bias=hand_written_kernels.causal_mask(config.length),
            drop=drop,
        )
