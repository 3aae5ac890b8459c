"""An encoder-decoder, as for translation, summarization or T5's span corruption.

    model = EncoderDecoder(mesh, Architecture(positions="relative", scaled_attention=False))
    logits = model(inputs, tokens)        # int32 [batch, inputs_length], [batch, length]
    loss = model.loss({"inputs": inputs, "tokens": tokens, "targets": targets}, training=True)

`tokens` are the targets shifted right by one: the decoder's input where it predicts each
target. Inputs with id 0 are padding.
"""

from __future__ import annotations

from typing import NamedTuple

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.base import (
    Batch,
    Model,
    add_auxiliary_losses,
    metric_sums,
    target_weights,
)
from transformer.models.embeddings import (
    Embeddings,
    logits_layer,
    mask_padded_vocab,
)
from transformer.models.key_value_cache import KeyValueCache
from transformer.models.stack import Stack
from transformer.models.token_info import LENGTH, TokenInfo, counted_targets

_TOKENS = "batch; length"
_INPUTS = "batch; inputs_length"


class Encoded(NamedTuple):
    """An encoder's output.

    Attributes:
      x: the residual stream after the encoder, [batch, length, d_model].
      token_info: positions and segments of the inputs.
    """

    x: mtf.Tensor
    token_info: TokenInfo


@gin.configurable
class EncoderDecoder(Model):
    """An encoder, a decoder, and one embedding for both.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of layers of the encoder; None: `Architecture()`, as
        gin configures it.
      decoder: sizes and kinds of layers of the decoder; None: those of the encoder.
      z_loss: the weight of the mean squared logsumexp of logits in the training loss.
      label_smoothing: the fraction of a target's probability that is distributed evenly
        over all tokens in training.

    Raises:
      ShapeError: encoder and decoder differ in `vocab` or `d_model`, or labels are
        smoothed over a padded vocabulary.
    """

    # `counts` is 1 for each example, or 0 if it only pads the last batch.
    features = {
        "inputs": _INPUTS,
        "input_segments": _INPUTS,
        "input_positions": _INPUTS,
        "tokens": _TOKENS,
        "targets": _TOKENS,
        "weights": _TOKENS,
        "segments": _TOKENS,
        "positions": _TOKENS,
        "counts": "batch",
    }

    def __init__(
        self,
        mesh: mtf.Mesh,
        architecture: Architecture | None = None,
        decoder: Architecture | None = None,
        z_loss: float = 1e-4,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(mesh, architecture, name="encoder_decoder")
        self.z_loss = z_loss
        self.label_smoothing = label_smoothing
        architecture = self.architecture  # the default, if the argument is None
        decoder = decoder or architecture
        _check_architectures(architecture, decoder, label_smoothing)
        # In this scope, paths of variables start with the path of this module.
        with self.scope():
            self.embeddings = Embeddings(mesh, architecture)
            self.input_dropout = mtf.layers.Dropout(
                architecture.dropout, name="input_dropout"
            )
            self.dropout = mtf.layers.Dropout(architecture.dropout)
            self.encoder = Stack(mesh, architecture, causal=False, name="encoder")
            self.encoder_dropout = mtf.layers.Dropout(
                architecture.dropout, name="encoder_dropout"
            )
            self.decoder = Stack(
                mesh, decoder, causal=True, has_cross_attention=True, name="decoder"
            )
            self.logits = logits_layer(mesh, architecture)

    def __call__(
        self, inputs: mtf.Tensor, tokens: mtf.Tensor, training: bool = False
    ) -> mtf.Tensor:
        """Returns logits [batch, length, vocab].

        Args:
          inputs: token ids for the encoder, int32 [batch, inputs_length].
          tokens: token ids for the decoder, int32 [batch, length].
          training: whether dropout is applied.
        """
        batch = {"inputs": inputs, "tokens": tokens}
        logits, _ = self.logits_and_reports(batch, training)
        return logits

    def encode(
        self, batch: Batch, training: bool = False
    ) -> tuple[Encoded, dict[str, Report]]:
        """Returns the encoder's output for `inputs` [batch, inputs_length], and a dict of
        block name -> report of the block's mixture of experts: its auxiliary losses and
        statistics.

        Inputs are padding where `input_segments` is 0; without segments, where the id is
        0.
        """
        inputs = mtf.rename(batch["inputs"], "inputs_length", LENGTH)
        segments = _input_feature(batch, "input_segments")
        positions = _input_feature(batch, "input_positions")
        if segments is None:
            segments = mtf.cast(inputs != 0, "int32")
        token_info = TokenInfo.of(
            inputs, positions, segments, counts=self._counts(batch)
        )
        x = self.embeddings(inputs, token_info.positions)
        x = self.input_dropout(x, training)
        x, block_reports = self.encoder(x, token_info, training)
        x = self.encoder_dropout(x, training)
        reports = {f"encoder/{name}": report for name, report in block_reports.items()}
        return Encoded(x, token_info), reports

    def logits_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns logits [batch, length, vocab], and a dict of block name, such as
        "decoder/block_1" -> report of the block's mixture of experts.
        """
        encoded, reports = self.encode(batch, training)
        tokens = batch["tokens"]
        token_info = TokenInfo.of(
            tokens,
            positions=batch.get("positions"),
            segments=batch.get("segments"),
            counted=counted_targets(batch) if self._has_experts else None,
            counts=self._counts(batch),
        )
        x = self.embeddings(tokens, token_info.positions)
        x = self.dropout(x, training)
        x, decoder_reports = self.decoder(
            x,
            token_info,
            training,
            context=encoded.x,
            context_info=encoded.token_info,
        )
        for name, report in decoder_reports.items():
            reports[f"decoder/{name}"] = report
        return self.predict(x), reports

    @property
    def _has_experts(self) -> bool:
        """Whether there is a mixture of experts, whose router asks what is padding."""
        stacks = (self.encoder, self.decoder)
        return any(stack.architecture.moe_every > 0 for stack in stacks)

    def _counts(self, batch: Batch) -> mtf.Tensor | None:
        """Returns the counts of examples, if there are and a router asks for padding."""
        return batch.get("counts") if self._has_experts else None

    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [batch, length, vocab] for the decoder's output x [batch,
        length, d_model].
        """
        logits = self.embeddings.attend(x) if self.logits is None else self.logits(x)
        return mask_padded_vocab(logits, self.architecture)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the loss, a scalar, and the reports of mixtures of experts by block name.

        The loss is the mean of -ln p(target) over all targets that are not negative; in
        training, with smoothed labels, plus the z-loss and the losses of mixtures of experts.

        Args:
          batch: int32 `inputs` [batch, inputs_length], `tokens` and `targets` [batch,
            length]; optionally float32 `weights` [batch, length] and `counts` [batch]:
            see `target_weights`. Packed examples also have `input_segments`,
            `input_positions`, `segments` and `positions`.
          training: whether dropout is applied, labels are smoothed, and auxiliary losses
            are added.
        """
        logits, reports = self.logits_and_reports(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            logits,
            batch["targets"],
            dim="vocab",
            z_loss=self.z_loss if training else 0.0,
            weights=target_weights(batch),
            label_smoothing=self.label_smoothing if training else 0.0,
        )
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of `metric_sums`: nats, correct predictions and tokens."""
        logits, _ = self.logits_and_reports(batch)
        return metric_sums(logits, batch["targets"], target_weights(batch))

    def init_cache(
        self,
        batch_dims: mtf.Shape,
        num_positions: int,
        encoded: Encoded,
        window: int | None = None,
    ) -> KeyValueCache:
        """Returns the cache before the first decoding step.

        Args:
          batch_dims: the dimensions of the batch, such as [batch:8].
          num_positions: the maximum count of positions that are decoded.
          encoded: the encoder's output, from `encode`.
          window: the count of the last positions that a token of the decoder attends to,
            including its own; None: all.

        Raises:
          ShapeError: there are more positions than learned positions.
        """
        architecture = self.decoder.architecture
        self.embeddings.check_length(num_positions)
        # A residual stream at one position; only its shape and data type are used.
        x = mtf.zeros(
            self.mesh, batch_dims + architecture.dim("d_model"), architecture.dtype
        )
        return self.decoder.init_cache(
            x,
            num_positions,
            window=window,
            context=encoded.x,
            context_info=encoded.token_info,
        )

    def decode_step(
        self, position: mtf.Tensor, tokens: mtf.Tensor, cache: KeyValueCache
    ) -> tuple[mtf.Tensor, KeyValueCache]:
        """Returns logits [batch, vocab] of the next token, and the updated cache.

        Args:
          position: the position of the tokens, common to all examples: int32, a scalar.
          tokens: the token id of each example at this position, integers [batch].
          cache: the cache from `init_cache` or the previous step.
        """
        x = self.embeddings(tokens, position)
        x, cache = self.decoder.decode_step(x, cache, position)
        return self.predict(x), cache


def _input_feature(batch: Batch, name: str) -> mtf.Tensor | None:
    """Returns a feature of the inputs, with `inputs_length` renamed to `length`; None if
    the batch does not have it.
    """
    feature = batch.get(name)
    return None if feature is None else mtf.rename(feature, "inputs_length", LENGTH)


def _check_architectures(
    encoder: Architecture, decoder: Architecture, label_smoothing: float
) -> None:
    """Raises ShapeError if encoder and decoder cannot share an embedding, or if labels
    would be smoothed over a padded vocabulary.
    """
    if (encoder.vocab, encoder.d_model) != (decoder.vocab, decoder.d_model):
        raise mtf.ShapeError(
            "an encoder and a decoder share vocab and d_model:\n"
            f"  {encoder}\n  {decoder}"
        )
    vocab_dim = encoder.dim("vocab")
    if label_smoothing and vocab_dim.size > encoder.vocab:
        raise mtf.ShapeError(
            f"labels cannot be smoothed over {vocab_dim!r}, of which only "
            f"{encoder.vocab} are tokens.\n  Take Architecture.vocab = {vocab_dim.size}, "
            "or no label_smoothing."
        )
