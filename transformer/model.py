"""A decoder-only Transformer language model, written once for every layout.

    mesh = mtf.Mesh("data:4;model:2", layout="batch:data; heads:model; d_ff:model; vocab:model")
    model = LanguageModel(mesh, d_model=128, blocks=3)
    logits = model(tokens)                    # int32 [batch length] -> [batch length vocab]
    loss = model.loss(tokens, targets, training=True)

The layout says what lies where; nothing in this file does.
"""

from __future__ import annotations

from collections.abc import Callable

import gin

import meshtf as mtf
from transformer.layers import Block, Sizes
from transformer.moe import MixtureOfExperts, Report


@gin.configurable
class LanguageModel(mtf.Module):
  """Embedding, blocks, a norm, and logits for the token that comes next.

  Args:
    mesh: where the variables lie.
    vocab: how many different tokens there are.
    d_model: the size of the stream that runs through all blocks.
    d_ff: the size inside of the feed-forward halves.
    heads: the number of attention heads.
    d_kv: the size of a head.
    blocks: the number of blocks.
    activation: gelu, relu, silu, or gated: geglu, reglu, swiglu.
    dropout: the share that is dropped in training.
    tied: whether logits are products with the embedding's rows, instead of a kernel of their own.
    z_loss: weight of the squared logsumexp in the training loss.
    moe_every: each so-many-th block has a mixture of experts as its feed-forward half; 0: none has.
    mixture: makes these mixtures, whose experts have hidden layers of d_ff numbers.
  """

  def __init__(self, mesh: mtf.Mesh, vocab: int = 256, d_model: int = 128, d_ff: int = 512,
               heads: int = 4, d_kv: int = 32, blocks: int = 3, activation: str = "gelu",
               dropout: float = 0.0, tied: bool = False, z_loss: float = 1e-4, moe_every: int = 0,
               mixture: Callable[..., MixtureOfExperts] = MixtureOfExperts) -> None:
    super().__init__("language_model")
    self.mesh, self.z_loss = mesh, z_loss
    self.sizes = sizes = Sizes(vocab, d_model, d_ff, heads, d_kv, blocks)
    rows, width = sizes.dim("vocab"), sizes.dim("d_model")
    with self.scope():
      self.embedding = mtf.layers.Embedding(mesh, rows, width,
                                            mtf.layers.initializers.normal(0.5))
      self.dropout = mtf.layers.Dropout(dropout)
      mixed = [moe_every > 0 and (i + 1) % moe_every == 0 for i in range(blocks)]
      self.blocks = [Block(mesh, sizes, activation, dropout, f"block_{i}",
                           mixture if mixed[i] else mtf.layers.FeedForward) for i in range(blocks)]
      self.norm = mtf.layers.RMSNorm(mesh, width, name="norm")
      self.logits = None if tied else mtf.layers.Dense(mesh, width, rows, use_bias=False,
                                                       name="logits")

  def __call__(self, tokens: mtf.Tensor, training: bool = False) -> mtf.Tensor:
    """Returns logits [batch length vocab] for int32 tokens [batch length]."""
    return self.logits_and_reports(tokens, training)[0]

  def logits_and_reports(self, tokens: mtf.Tensor,
                         training: bool = False) -> tuple[mtf.Tensor, dict[str, Report]]:
    """Returns logits, and what mixtures of experts report, by the names of their blocks."""
    places = self.places(tokens.shape.dim("length"))
    x, reports = self.embed(tokens, training), {}
    for block in self.blocks:
      x, report = block(x, *places, training)
      if report is not None:
        reports[block.path[-1]] = report
    return self.predict(x), reports

  def places(self, length: mtf.Dimension) -> tuple[mtf.Tensor, mtf.layers.Angles]:
    """Returns what all blocks know of positions: the causal mask, and rotary angles."""
    memory = mtf.Dimension("memory_length", length.size)
    return (mtf.layers.causal_bias(self.mesh, length, memory),
            mtf.layers.rotary_angles(mtf.range(self.mesh, length), self.sizes.dim("d_kv")))

  def embed(self, tokens: mtf.Tensor, training: bool) -> mtf.Tensor:
    """Returns the stream [batch length d_model] before the first block."""
    return self.dropout(self.embedding(tokens), training)

  def predict(self, x: mtf.Tensor) -> mtf.Tensor:
    """Returns logits [batch length vocab] for the stream after the last block."""
    x = self.norm(x)
    if self.logits is not None:
      return self.logits(x)
    return self.embedding.attend(x * self.sizes.d_model ** -0.5)

  def loss(self, tokens: mtf.Tensor, targets: mtf.Tensor, training: bool = False) -> mtf.Tensor:
    """Returns the mean of -ln p(target), and in training other losses besides: a scalar.

    Args:
      tokens: int32 [batch length].
      targets: the token after each of them, int32 [batch length].
      training: whether to drop, and to add the z-loss and what mixtures of experts ask for.
    """
    return self.loss_and_reports(tokens, targets, training)[0]

  def loss_and_reports(self, tokens: mtf.Tensor, targets: mtf.Tensor,
                       training: bool = False) -> tuple[mtf.Tensor, dict[str, Report]]:
    """Returns the loss as `loss` does, and what mixtures report, by the names of their blocks."""
    logits, reports = self.logits_and_reports(tokens, training)
    z_loss = self.z_loss if training else 0.0
    loss = mtf.layers.softmax_cross_entropy(logits, targets, "vocab", z_loss)
    if training and reports:
      loss = mtf.add_n([loss, *(report.loss for report in reports.values())])
    return loss, reports
