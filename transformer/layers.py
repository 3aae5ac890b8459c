"""A block of a Transformer, of the layers of `meshtf.layers`.

    block = Block(mesh, sizes, dropout=0.1, name="block_0")
    x, _ = block(x, bias, angles, training)        # [batch length d_model] -> the same

Both halves add to a stream that runs through all blocks, after a norm of their own ("pre-norm").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import meshtf as mtf
from transformer.moe import Report


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of a Transformer."""

  vocab: int = 256
  d_model: int = 128
  d_ff: int = 512
  heads: int = 4
  d_kv: int = 32
  blocks: int = 3

  def dim(self, name: str) -> mtf.Dimension:
    """Returns the dimension called like one of the sizes."""
    return mtf.Dimension(name, getattr(self, name))


class Block(mtf.Module):
  """x + attention(norm(x)), then x + feed_forward(norm(x)).

  Args:
    mesh: where the variables lie.
    sizes: of the Transformer.
    activation: of the feed-forward half, one of those that `mtf.layers.FeedForward` takes.
    dropout: the share of what a half adds to the stream, and of attention weights, that is dropped.
    name: the last part of the path of its variables.
    feed_forward: makes the second half, as `mtf.layers.FeedForward` or `MixtureOfExperts` do.
  """

  def __init__(self, mesh: mtf.Mesh, sizes: Sizes, activation: str, dropout: float, name: str,
               feed_forward: Callable[..., Any] = mtf.layers.FeedForward) -> None:
    super().__init__(name)
    d_model = sizes.dim("d_model")
    with self.scope():
      self.attention_norm = mtf.layers.RMSNorm(mesh, d_model, name="attention_norm")
      self.attention = mtf.layers.MultiHeadAttention(
          mesh, d_model, sizes.dim("heads"), sizes.dim("d_kv"), dropout_rate=dropout,
          output_initializer=into_stream("heads;d_kv", sizes))
      self.attention_dropout = mtf.layers.Dropout(dropout, name="attention_dropout")
      self.feed_forward_norm = mtf.layers.RMSNorm(mesh, d_model, name="feed_forward_norm")
      self.feed_forward = feed_forward(mesh, d_model, sizes.dim("d_ff"), activation=activation,
                                       output_initializer=into_stream("d_ff", sizes))
      self.feed_forward_dropout = mtf.layers.Dropout(dropout, name="feed_forward_dropout")

  def __call__(self, x: mtf.Tensor, bias: mtf.Tensor, angles: mtf.layers.Angles,
               training: bool) -> tuple[mtf.Tensor, Report | None]:
    """Returns the stream [batch length d_model] after both halves, and what a mixture reports.

    Args:
      x: the stream before.
      bias: the causal mask, [length memory_length].
      angles: rotary positions.
      training: whether to drop.
    """
    seen = self.attention(self.attention_norm(x), bias=bias, angles=angles, training=training)
    x = x + self.attention_dropout(seen, training)
    thought = self.feed_forward(self.feed_forward_norm(x), training)
    thought, report = thought if isinstance(thought, tuple) else (thought, None)
    return x + self.feed_forward_dropout(thought, training), report


def into_stream(reduced_dims: str, sizes: Sizes) -> mtf.layers.initializers.Initializer:
  """Returns the initializer of a kernel whose product is added to the stream.

  2 * blocks of them are added, so each begins with a variance that much smaller (GPT-2).
  """
  return mtf.layers.initializers.variance_scaling(reduced_dims, scale=1.0 / (2 * sizes.blocks))
