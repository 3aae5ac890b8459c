"""The language model as a pipeline: its blocks in stages that work on microbatches side by side.

    train.model = @PipelinedLanguageModel
    Mesh.axes = "stage:2;data:2;model:2"         # as many stages as the axis is long
    PipelinedLanguageModel.microbatches = 8

Embedding, blocks and logits are the layers of `mtf.pipeline.GPipe`, split by the flops that are
counted for each. The pipeline is for training; without `training` the model runs as it stands, each
part where its variables lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gin

import meshtf as mtf
from transformer.model import LanguageModel


class Part(mtf.Module):
  """A layer of a pipeline: a function, and the modules whose variables it uses."""

  def __init__(self, name: str, fn: Callable[[mtf.Tensor], mtf.Tensor], *modules: Any) -> None:
    super().__init__(name)
    self.fn, self.modules = fn, modules

  def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
    return self.fn(x)


@gin.configurable
class PipelinedLanguageModel(LanguageModel):
  """A language model whose training is a pipeline; its numbers are those of `LanguageModel`.

  Args:
    mesh: its axis for stages says how many there are.
    microbatches: how many parts of a batch are under way.
    schedule: "1f1b" or "gpipe".
    chunks: cells of each stage.
    partition: how layers are split: see `mtf.pipeline.split`.
    recompute: whether the backward pass computes each cell again.
    length: of the sequences on which costs are counted.
    **sizes: arguments of `LanguageModel`.
  """

  def __init__(self, mesh: mtf.Mesh, microbatches: int = 8, schedule: str = "1f1b",
               chunks: int = 1, partition: str | Sequence[int] = "min_max",
               recompute: bool = False, length: int = 128, **sizes: Any) -> None:
    super().__init__(mesh, **sizes)
    with mtf.layout("*:"):
      example = mtf.zeros(mesh, f"batch:1;length:{length}", "int32")
    self.pipe = mtf.pipeline.GPipe(
        self._parts(), mesh.axes.get(mesh.stages, 1), microbatches, schedule, chunks, partition,
        recompute, inputs=example)

  def loss(self, tokens: mtf.Tensor, targets: mtf.Tensor, training: bool = False) -> mtf.Tensor:
    """Returns the mean of -ln p(target), as `LanguageModel.loss` does."""
    if not training:
      return super().loss(tokens, targets)
    def loss_of(logits: mtf.Tensor, targets: mtf.Tensor) -> mtf.Tensor:
      return mtf.layers.softmax_cross_entropy(logits, targets, "vocab", self.z_loss)
    return self.pipe.loss(loss_of, tokens, targets)

  def _parts(self) -> list[Part]:
    def run(block: Any) -> Callable[[mtf.Tensor], mtf.Tensor]:
      return lambda x: block(x, *self.places(x.shape.dim("length")), True)
    last = [self.norm] if self.logits is None else [self.norm, self.logits]
    return [Part("embed", lambda tokens: self.embed(tokens, True), self.embedding),
            *(Part(block.path[-1], run(block), block) for block in self.blocks),
            Part("predict", self.predict, *last)]
