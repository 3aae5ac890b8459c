"""The language model as a pipeline: its blocks in stages that process different
microbatches at the same time.

    train.model = @PipelinedLanguageModel
    Mesh.axes = "stage:2;data:2;model:2"         # an axis of stages
    PipelinedLanguageModel.microbatches = 8

Embedding, blocks and logits are the layers of `mtf.pipeline.GPipe`, assigned to stages by
the FLOPs that are counted for each. The pipeline is for training; without `training` the
layers run one after the other, each on the stage of its variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import LENGTH, TokenInfo
from transformer.models.base import Batch
from transformer.models.language_model import LanguageModel

# The residual stream, and after it the loss of each mixture of experts so far.
Activations: TypeAlias = tuple[mtf.Tensor, ...]


class PipelineLayer(mtf.Module):
    """A layer of a pipeline: a function, and the modules whose variables it uses."""

    def __init__(
        self, name: str, fn: Callable[[Any], Activations], *modules: Any
    ) -> None:
        super().__init__(name)
        self.fn = fn
        self.modules = modules

    def __call__(self, x: Any) -> Activations:
        return self.fn(x)


@gin.configurable
class PipelinedLanguageModel(LanguageModel):
    """A language model that is trained as a pipeline; its results equal those of
    `LanguageModel`.

    Args:
      mesh: its axis of stages has a position for each stage.
      architecture: sizes and kinds; None: gin's `Architecture`.
      microbatches: into how many microbatches a batch is split.
      schedule: "1f1b" or "gpipe".
      chunks: how many chunks of consecutive layers each stage has.
      partition: how layers are assigned to stages: see `mtf.pipeline.split`.
      recompute: whether the backward pass recomputes the activations of each chunk.
      length: the length of the sequences on which FLOPs are counted.
      z_loss: weight of the squared logsumexp in the training loss.

    Raises:
      ParseError: blocks are scanned: they are one body, which cannot be split into
        stages.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture | None = None,
        microbatches: int = 8,
        schedule: str = "1f1b",
        chunks: int = 1,
        partition: str | Sequence[int] = "min_max",
        recompute: bool = False,
        length: int = 128,
        z_loss: float = 1e-4,
    ) -> None:
        super().__init__(mesh, architecture, z_loss)
        if self.architecture.scanned:
            raise mtf.ParseError(
                "scanned blocks are one body, and stages have different ones.\n  Take "
                "Architecture.scanned = False for a pipeline."
            )
        with mtf.layout("*:"):
            example = mtf.zeros(mesh, f"batch:1;length:{length}", "int32")
        # A plan prints "block_0", not "language_model/block_0".
        with self.outer_scope():
            self.pipe = mtf.pipeline.GPipe(
                self._pipeline_layers(),
                mesh.axes.get(mesh.stages, 1),
                microbatches,
                schedule,
                chunks,
                partition,
                recompute,
                inputs=example,
            )

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss as `LanguageModel` does; in training without reports of
        mixtures of experts.

        Raises:
          PlanError: in training, the batch has packed examples or weights.
        """
        if not training:
            return super().loss_and_reports(batch)
        if set(batch) - {"tokens", "targets"}:
            raise mtf.PlanError(
                f"a pipeline takes tokens and targets, not {sorted(batch)}.\n  Take data "
                "of one text in each example, or LanguageModel without a pipeline."
            )

        def loss_of(activations: Activations, targets: mtf.Tensor) -> mtf.Tensor:
            logits, *mixture_losses = activations
            loss = mtf.layers.softmax_cross_entropy(
                logits, targets, "vocab", self.z_loss
            )
            return mtf.add_n([loss, *mixture_losses])

        return self.pipe.loss(loss_of, batch["tokens"], batch["targets"]), {}

    def _pipeline_layers(self) -> list[PipelineLayer]:
        """Returns embedding, blocks and logits as functions of `Activations`."""

        def embed(tokens: mtf.Tensor) -> Activations:
            positions = self._positions(tokens).positions
            return (self.dropout(self.embeddings(tokens, positions), True),)

        def predict(activations: Activations) -> Activations:
            x, *losses = activations
            return self.predict(self.decoder.final_norm(x)), *losses

        shared = [] if self.decoder.relative is None else [self.decoder.relative]
        blocks = [
            PipelineLayer(block.path[-1], self._block_function(block), block, *shared)
            for block in self.decoder.blocks
        ]
        last_modules = [
            module for module in (self.decoder.norm, self.logits) if module is not None
        ]
        return [
            PipelineLayer("embed", embed, self.embeddings),
            *blocks,
            PipelineLayer("predict", predict, *last_modules),
        ]

    def _block_function(self, block: Any) -> Callable[[Activations], Activations]:
        """Returns a block as a function of `Activations`, to which a mixture of experts
        appends its loss.
        """

        def run(activations: Activations) -> Activations:
            x, *losses = activations
            attention_mask = self.decoder.attention_mask(self._positions(x))
            x, report = block(x, attention_mask, True)
            return (x, *losses) if report is None else (x, *losses, report.loss)

        return run

    def _positions(self, x: mtf.Tensor) -> TokenInfo:
        """Returns the positions of examples of one text each, such as x."""
        return TokenInfo(mtf.range(self.mesh, x.shape.dim(LENGTH)))
