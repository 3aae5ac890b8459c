"""The programs of which a step of GPT consists, recorded and planned once for all sizes.

    programs = GptPrograms()
    programs.layer.seconds(durations), programs.head.seconds(durations)

A pipeline stage runs embedding, layers and head on one microbatch, forward and backward, on the
mesh "model:t". The planned program does not depend on sizes, so one of small sizes is timed
with the sizes of many runs at once (`forecast.time.durations.Sizes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import tensorflow as tf

import meshtf as mtf
from meshtf.forecast.time.durations import Durations, Sizes
from meshtf.forecast.time.schedule import Schedule
from meshtf.hardware import Hardware
from meshtf.partition import Compute, Program, Value, build
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.models.token_info import TokenInfo

# The sizes that programs are planned for; others take their place when they are timed.
PLANNED = {
    "batch": 2,
    "length": 32,
    "kv_length": 32,
    "d_model": 16,
    "d_ff": 64,
    "heads": 4,
    "d_kv": 8,
    "vocab": 128,
    "positions": 32,
}
LAYOUT = "heads:model; d_ff:model; vocab:model"


class Seconds(NamedTuple):
    """Seconds of one microbatch on one stage: numbers, or arrays with an entry for each run.

    Attributes:
      forward: those of the forward pass.
      backward: those of the backward pass.
    """

    forward: Any
    backward: Any


class MegatronDurations(Durations):
    """Durations of Megatron's programs. Weights are stored in half precision: casts of weights,
    which our float32 variables need, take no time. Its elementwise kernels are fused by hand,
    but no compiler merges its collectives.
    """

    merges_collectives = False

    def __init__(self, hardware: Hardware, mesh: mtf.Mesh, sizes: Sizes) -> None:
        super().__init__(hardware, mesh, sizes)
        self.weights: set[Value] = set()

    def compute(self, step: Compute, in_memory: Set[Value] | None) -> Any:
        """Returns the seconds of an op on one device."""
        if self._is_cast_of_weights(step):
            return 0.0
        return super().compute(step, in_memory)

    def has_kernel(self, step: Compute, in_memory: Set[Value] | None) -> bool:
        """Returns whether an op is started on its own."""
        if self._is_cast_of_weights(step):
            return False
        return super().has_kernel(step, in_memory)

    def _is_cast_of_weights(self, step: Compute) -> bool:
        is_cast = step.node.op.display_name == "cast"
        return is_cast and all(value in self.weights for value in step.ins)


@dataclasses.dataclass
class Piece:
    """A piece of a stage.

    Attributes:
      forward: the program of the forward pass.
      both: the program of the forward and the backward pass.
    """

    forward: Program
    both: Program

    def seconds(self, durations: MegatronDurations) -> Seconds:
        """Returns the seconds of one microbatch."""
        forward, both = (
            _seconds_of(program, durations) for program in (self.forward, self.both)
        )
        return Seconds(forward, both - forward)


def _seconds_of(program: Program, durations: MegatronDurations) -> Any:
    """Returns the seconds of a program."""
    durations.weights.update(
        out for step in program.steps if step.reads for out in step.outputs
    )
    return Schedule(program, durations).end


class GptPrograms:
    """The recorded pieces of GPT.

    Args:
      sizes: the sizes that programs are planned for.

    Attributes:
      sizes: the same.
      mesh: the mesh that they are planned for.
      embed, layer, head: the pieces.
    """

    def __init__(self, sizes: Mapping[str, int] = PLANNED) -> None:
        self.sizes = sizes
        self.mesh = mtf.Mesh("model:2", LAYOUT, devices="abstract")
        self._model = LanguageModel(self.mesh, _architecture(sizes), z_loss=0.0)
        self._block = self._model.decoder.blocks[0]
        batch, length, d_model = (sizes[k] for k in ("batch", "length", "d_model"))
        ids = tf.TensorSpec([batch, length], tf.int32)
        x = tf.TensorSpec([batch, length, d_model], tf.bfloat16)
        model = self._model
        self.embed = self._piece(self._embed, ids, model.embeddings.trainable_variables)
        weights = [w for w in self._block.trainable_variables if "norm" not in w.name]
        self.layer = self._piece(self._layer, x, weights)
        self.head = self._piece(self._head, x, [model.embeddings.token_embedding.table])

    def _embed(self, tokens: mtf.Tensor) -> mtf.Tensor:
        """Returns the residual stream [batch, length, d_model] of token ids."""
        model = self._model
        positions = mtf.range(self.mesh, tokens.shape.dim("length"))
        return model.dropout(model.embeddings(tokens, positions), training=True)

    def _layer(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns the residual stream [batch, length, d_model] after a block."""
        info = TokenInfo(mtf.range(self.mesh, x.shape.dim("length")))
        attention_mask = self._model.decoder.attention_mask(info)
        y, _report = self._block(x, attention_mask, training=True)
        return y

    def _head(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns the loss of the residual stream [batch, length, d_model]."""
        logits = self._model.predict(self._model.decoder.final_norm(x))
        targets = mtf.zeros(self.mesh, x.shape.only(["batch", "length"]), "int32")
        return mtf.layers.softmax_cross_entropy(logits, targets, "vocab")

    def _piece(
        self,
        fn: Callable[[mtf.Tensor], mtf.Tensor],
        x: tf.TensorSpec,
        weights: Sequence[mtf.Variable],
    ) -> Piece:
        """Returns the programs of a function of a microbatch."""
        names = ["batch", "length", "d_model"][: len(x.shape)]

        def forward(x: mtf.Tensor) -> mtf.Tensor:
            with mtf.seed(0, 0):
                return fn(x)

        def both(x: mtf.Tensor) -> list[mtf.Tensor]:
            with mtf.seed(0, 0):
                y = fn(x)
            inputs = [*([x] if "d_model" in names else []), *weights]
            gradients = mtf.gradients([y], inputs, grad_ys=[mtf.zeros_like(y)])
            return [y, *gradients]

        programs = []
        for function in (forward, both):
            recorder = mtf.function(function, mesh=self.mesh, x="; ".join(names))
            recorded = recorder.record_on(self.mesh, args=(x,), kwargs={}).recorded
            programs.append(build(recorded.nodes, recorded.results, self.mesh))
        return Piece(*programs)


def _architecture(sizes: Mapping[str, int]) -> Architecture:
    """Returns GPT-2's architecture in some sizes."""
    return Architecture(
        vocab=sizes["vocab"],
        d_model=sizes["d_model"],
        d_ff=sizes["d_ff"],
        heads=sizes["heads"],
        d_kv=sizes["d_kv"],
        blocks=1,
        activation="gelu",
        dropout=0.1,
        norm="layer",
        epsilon=1e-5,
        use_bias=True,
        positions="learned",
        max_length=sizes["positions"],
        tied=True,
        scaled_logits=False,
        dtype="bfloat16",
    )
