"""The language model as a pipeline: its layers are split into stages, which process
different microbatches at the same time.

    train.model = @PipelinedLanguageModel
    Mesh.axes = "stage:2;data:2;model:2"         # 2 stages, each of 2 * 2 devices
    PipelinedLanguageModel.microbatches = 8

A *stage* is a group of devices that runs some of the layers and has their variables.
Embedding, blocks and logits are the layers of `mtf.pipeline.GPipe`, which assigns them to
stages by their FLOPs. Only training is pipelined; without `training`, the layers run one
after the other, each on its stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.base import Batch
from transformer.models.language_model import LanguageModel
from transformer.models.token_info import LENGTH, TokenInfo

# What a layer passes to the next one: the residual stream [batch, length, d_model], followed
# by the auxiliary loss of each mixture of experts so far.
Activations: TypeAlias = tuple[mtf.Tensor, ...]


class PipelineLayer(mtf.Module):
    """A layer of a pipeline: a function, and the modules whose variables it uses.

    Args:
      name: the name of the layer in the printed plan of the pipeline.
      fn: maps token ids or `Activations` to `Activations`.
      *modules: the modules that `fn` calls. As attributes of the layer, they make their
        variables variables of the layer.
    """

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
    """A language model that is trained as a pipeline, with the results of `LanguageModel`.

    Args:
      mesh: the mesh of the variables; the size of its axis of stages is the count of
        stages.
      architecture: sizes and kinds of layers; None: `Architecture()`, as gin configures
        it.
      microbatches: the count of microbatches that a batch is split into.
      schedule: the order of the passes of microbatches on a stage. "gpipe": all forward
        passes, then all backward passes; "1f1b": one forward, one backward, in turn.
      chunks: the count of chunks of consecutive layers on each stage.
      partition: the assignment of layers to stages: see `mtf.pipeline.split`.
      recompute: whether the backward pass recomputes the activations of each chunk from
        its input, in addition to those of each block (`Architecture.recompute`). Of a chunk
        of many blocks, the latter keeps more inputs, and has fewer activations at a time.
      length: the length of the sequence for which the FLOPs of layers are counted.
      z_loss: the weight of the mean squared logsumexp of logits in the training loss.

    Raises:
      ParseError: blocks are scanned, which makes them one layer: it cannot be split.
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
        super().__init__(mesh, architecture, z_loss=z_loss)
        if self.architecture.scanned:
            raise mtf.ParseError(
                "scanned blocks are one body, and stages have different ones.\n  Take "
                "Architecture.scanned = False for a pipeline."
            )
        # An input for counting FLOPs. The layout "*:" shards no dimension: a batch of one
        # example could not be sharded along a mesh axis.
        with mtf.layout("*:"):
            example = mtf.zeros(mesh, f"batch:1;length:{length}", "int32")
        # In the outer scope, a plan prints "block_0", not "language_model/block_0".
        with self.outer_scope():
            self.pipe = mtf.pipeline.GPipe(
                self._pipeline_layers(),
                stages=mesh.axes.get(mesh.stages, 1),
                microbatches=microbatches,
                schedule=schedule,
                chunks=chunks,
                partition=partition,
                recompute=recompute,
                inputs=example,
            )

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss and the reports of mixtures of experts by block name; in
        training the loss only, with no reports.

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
            """Returns the loss of a microbatch, with the losses of mixtures of experts."""
            # The last layer returns logits in place of the residual stream.
            logits, *mixture_losses = activations
            loss = mtf.layers.softmax_cross_entropy(
                logits, targets, "vocab", z_loss=self.z_loss
            )
            return mtf.add_n([loss, *mixture_losses])

        loss = self.pipe.loss(loss_of, batch["tokens"], batch["targets"])
        return loss, {}

    def _pipeline_layers(self) -> list[PipelineLayer]:
        """Returns embedding, blocks and logits as functions of `Activations`."""

        def embed(tokens: mtf.Tensor) -> Activations:
            """Returns the residual stream before the first block."""
            positions = self._token_info(tokens).positions
            x = self.embeddings(tokens, positions)
            return (self.dropout(x, training=True),)

        def predict(activations: Activations) -> Activations:
            """Returns the logits, followed by the losses of mixtures of experts."""
            x, *mixture_losses = activations
            return self.predict(self.decoder.final_norm(x)), *mixture_losses

        layers = [PipelineLayer("embed", embed, self.embeddings)]
        for block in self.decoder.blocks:
            # All blocks share `relative`, the bias of relative positions. It is None, as are
            # `norm` and `logits`, in an architecture without such a module.
            modules = _without_none(block, self.decoder.relative)
            run_block = self._block_function(block)
            layers.append(PipelineLayer(block.path[-1], run_block, *modules))
        modules = _without_none(self.decoder.norm, self.logits)
        layers.append(PipelineLayer("predict", predict, *modules))
        return layers

    def _block_function(self, block: Any) -> Callable[[Activations], Activations]:
        """Returns a block as a function of `Activations`; a mixture of experts appends its
        loss to them.
        """
        run_block = mtf.recompute(block) if self.architecture.recompute else block

        def run(activations: Activations) -> Activations:
            """Returns the residual stream after the block, and the losses so far."""
            x, *mixture_losses = activations
            attention_mask = self.decoder.attention_mask(self._token_info(x))
            x, report = run_block(x, attention_mask, training=True)
            if report is None:
                return x, *mixture_losses
            return x, *mixture_losses, report.loss

        return run

    def _token_info(self, x: mtf.Tensor) -> TokenInfo:
        """Returns the positions of x [batch, length, ...], from 0 on in each example."""
        return TokenInfo(mtf.range(self.mesh, x.shape.dim(LENGTH)))


def _without_none(*modules: Any) -> list[Any]:
    """Returns the modules that are not None."""
    return [module for module in modules if module is not None]
