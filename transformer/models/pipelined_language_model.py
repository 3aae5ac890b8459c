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
from transformer.models.base import Batch, target_weights
from transformer.models.language_model import LanguageModel
from transformer.models.token_info import TokenInfo

# What a layer passes to the next one: the residual stream "x" [batch, length, d_model], what
# the batch tells about its "tokens" (a dict, see `_TOKEN_FEATURES`), and "losses", a list of the
# auxiliary loss of each mixture of experts so far.
Activations: TypeAlias = dict[str, Any]
# The tensors of a batch that all blocks need, and those that the loss needs.
_TOKEN_FEATURES = ("segments", "positions", "prefix", "nonpadding")
_TARGET_FEATURES = ("targets", "weights", "counts")


class PipelineLayer(mtf.Module):
    """A layer of a pipeline: a function, and the modules whose variables it uses.

    Args:
      name: the name of the layer in the printed plan of the pipeline.
      fn: maps tensors of a batch, or `Activations`, to `Activations`.
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
                stages=mesh.num_stages,
                microbatches=microbatches,
                schedule=schedule,
                chunks=chunks,
                partition=partition,
                recompute=recompute,
                inputs={"tokens": example},
            )

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss and the reports of mixtures of experts by block name; in
        training the loss only, with no reports.

        The batch has the tensors that `LanguageModel.loss_and_reports` takes.
        """
        if not training:
            return super().loss_and_reports(batch)

        def loss_of(activations: Activations, targets: Batch) -> mtf.Tensor:
            """Returns the loss of a microbatch, with the losses of mixtures of experts."""
            # The last layer returns logits in place of the residual stream.
            loss = mtf.layers.softmax_cross_entropy(
                activations["x"],
                targets["targets"],
                "vocab",
                z_loss=self.z_loss,
                weights=target_weights(targets),
            )
            return mtf.add_n([loss, *activations["losses"]])

        inputs = _features(batch, "tokens", *_TOKEN_FEATURES)
        nonpadding = self._token_info_of(batch).nonpadding
        if self.architecture.moe_every and nonpadding is not None:
            inputs["nonpadding"] = nonpadding
        loss = self.pipe.loss(loss_of, inputs, _features(batch, *_TARGET_FEATURES))
        return loss, {}

    def _pipeline_layers(self) -> list[PipelineLayer]:
        """Returns embedding, blocks and logits as functions of `Activations`."""

        def embed(batch: Batch) -> Activations:
            """Returns the residual stream before the first block."""
            positions = _token_info(batch["tokens"], batch).positions
            x = self.embeddings(batch["tokens"], positions)
            return {
                "x": self.dropout(x, training=True),
                "tokens": _features(batch, *_TOKEN_FEATURES),
                "losses": [],
            }

        def predict(activations: Activations) -> Activations:
            """Returns the activations with logits in place of the residual stream."""
            logits = self.predict(self.decoder.final_norm(activations["x"]))
            return {"x": logits, "tokens": {}, "losses": activations["losses"]}

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
            """Returns the activations after the block."""
            x = activations["x"]
            token_info = _token_info(x, activations["tokens"])
            attention_mask = self.decoder.attention_mask(token_info)
            x, report = run_block(x, attention_mask, training=True)
            losses = [*activations["losses"]]
            if report is not None:
                losses.append(report.loss)
            return {"x": x, "tokens": activations["tokens"], "losses": losses}

        return run


def _token_info(x: mtf.Tensor, features: Batch) -> TokenInfo:
    """Returns the information about tokens.

    Args:
      x: a tensor [batch, length, ...]; without positions, tokens are counted along it.
      features: the tensors of `_TOKEN_FEATURES` that there are.
    """
    token_info = TokenInfo.of(
        x,
        positions=features.get("positions"),
        segments=features.get("segments"),
        prefix=features.get("prefix"),
    )
    return token_info._replace(nonpadding=features.get("nonpadding"))


def _features(batch: Batch, *names: str) -> dict[str, mtf.Tensor]:
    """Returns those of the named tensors that a batch has."""
    return {name: batch[name] for name in names if name in batch}


def _without_none(*modules: Any) -> list[Any]:
    """Returns the modules that are not None."""
    return [module for module in modules if module is not None]
