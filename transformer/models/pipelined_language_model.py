"""The language model as a pipeline: its blocks in stages that work on microbatches side
by side.

    train.model = @PipelinedLanguageModel
    Mesh.axes = "stage:2;data:2;model:2"         # as many stages as the axis is long
    PipelinedLanguageModel.microbatches = 8

Embedding, blocks and logits are the layers of `mtf.pipeline.GPipe`, split by the flops
that are counted for each. The pipeline is for training; without `training` the model
runs as it stands, each part where its variables lie.
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

Parts: TypeAlias = tuple[mtf.Tensor, ...]


class Part(mtf.Module):
    """A layer of a pipeline: a function, and the modules whose variables it uses."""

    def __init__(self, name: str, fn: Callable[[Any], Parts], *modules: Any) -> None:
        super().__init__(name)
        self.fn, self.modules = fn, modules

    def __call__(self, x: Any) -> Parts:
        return self.fn(x)


@gin.configurable
class PipelinedLanguageModel(LanguageModel):
    """A language model whose training is a pipeline; its numbers are those of
    `LanguageModel`.

    Args:
      mesh: its axis for stages says how many there are.
      architecture: sizes and kinds; None: what gin says of `Architecture`.
      microbatches: how many parts of a batch are under way.
      schedule: "1f1b" or "gpipe".
      chunks: cells of each stage.
      partition: how layers are split: see `mtf.pipeline.split`.
      recompute: whether the backward pass computes each cell again.
      length: of the sequences on which costs are counted.
      z_loss: weight of the squared logsumexp in the training loss.

    Raises:
      ParseError: blocks are scanned: they are one body, which no stage can have a part
        of.
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
        self.pipe = mtf.pipeline.GPipe(
            self._parts(),
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
        """Returns the loss as `LanguageModel` does; in training mixtures of experts
        report nothing.

        Raises:
          PlanError: in training, of rows with several texts, or with weights.
        """
        if not training:
            return super().loss_and_reports(batch)
        if set(batch) - {"tokens", "targets"}:
            raise mtf.PlanError(
                f"a pipeline is given tokens and targets, not {sorted(batch)}.\n  Take "
                "data of one text a row, or LanguageModel without a pipeline."
            )

        def loss_of(parts: Parts, targets: mtf.Tensor) -> mtf.Tensor:
            logits, *more = parts
            loss = mtf.layers.softmax_cross_entropy(
                logits, targets, "vocab", self.z_loss
            )
            return mtf.add_n([loss, *more])

        return self.pipe.loss(loss_of, batch["tokens"], batch["targets"]), {}

    def _parts(self) -> list[Part]:
        """Returns layers that pass on the stream, and after it the losses of mixtures
        of experts.
        """

        def places(x: mtf.Tensor) -> TokenInfo:
            return TokenInfo(mtf.range(self.mesh, x.shape.dim(LENGTH)))

        def embed(tokens: mtf.Tensor) -> Parts:
            return (
                self.dropout(self.embeddings(tokens, places(tokens).positions), True),
            )

        def run(block: Any) -> Callable[[Parts], Parts]:
            def part(parts: Parts) -> Parts:
                x, *losses = parts
                x, report = block(x, self.decoder.sight(places(x)), True)
                return (x, *losses) if report is None else (x, *losses, report.loss)

            return part

        def predict(parts: Parts) -> Parts:
            return self.predict(self.decoder.finish(parts[0])), *parts[1:]

        shared = [] if self.decoder.relative is None else [self.decoder.relative]
        last = [
            module for module in (self.decoder.norm, self.logits) if module is not None
        ]
        return [
            Part("embed", embed, self.embeddings),
            *(
                Part(block.path[-1], run(block), block, *shared)
                for block in self.decoder.blocks
            ),
            Part("predict", predict, *last),
        ]
