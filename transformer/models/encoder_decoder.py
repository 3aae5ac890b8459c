"""An encoder-decoder: translation, summaries, T5's span corruption.

    model = EncoderDecoder(mesh, Architecture(positions="relative", scaled_attention=False))
    logits = model(inputs, tokens)        # int32 [batch, inputs_length], [batch, length]
    loss = model.loss({"inputs": inputs, "tokens": tokens, "targets": targets}, training=True)

`tokens` are the targets, shifted right: the input of the decoder at each target. Inputs
whose id is 0 are padding.
"""

from __future__ import annotations

from typing import NamedTuple

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import LENGTH, TokenInfo
from transformer.models.base import (
    Batch,
    Model,
    add_auxiliary_losses,
    metric_sums,
    target_weights,
)
from transformer.models.embeddings import Embeddings, mask_padded_vocab
from transformer.models.key_value_cache import KeyValueCache
from transformer.models.stack import Stack

_TOKENS = "batch; length"
_INPUTS = "batch; inputs_length"


class Encoded(NamedTuple):
    """An encoder's output.

    Attributes:
      x: [batch, length, d_model].
      token_info: positions and segments of the inputs.
    """

    x: mtf.Tensor
    token_info: TokenInfo


@gin.configurable
class EncoderDecoder(Model):
    """An encoder, a decoder, and one embedding for both.

    Args:
      mesh: the mesh of the variables.
      architecture: sizes and kinds of both; None: what gin says of `Architecture`.
      decoder: sizes and kinds of the decoder, if they differ.
      z_loss: weight of the squared logsumexp in the training loss.
      label_smoothing: the share of a target's probability that is spread evenly over all
        tokens in training.

    Raises:
      ShapeError: encoder and decoder differ in `vocab` or `d_model`; labels are smoothed
        over a padded vocabulary.
    """

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
        super().__init__(mesh, architecture, "encoder_decoder")
        self.z_loss = z_loss
        self.label_smoothing = label_smoothing
        a = self.architecture
        decoder = decoder or a
        _check_architectures(a, decoder, label_smoothing)
        with self.scope():
            self.embeddings = Embeddings(mesh, a)
            self.input_dropout = mtf.layers.Dropout(a.dropout, name="input_dropout")
            self.dropout = mtf.layers.Dropout(a.dropout)
            self.encoder = Stack(mesh, a, causal=False, name="encoder")
            self.encoder_dropout = mtf.layers.Dropout(a.dropout, name="encoder_dropout")
            self.decoder = Stack(
                mesh, decoder, causal=True, across=True, name="decoder"
            )
            self.logits = (
                None
                if a.tied
                else mtf.layers.Dense(
                    mesh,
                    a.dim("d_model"),
                    a.dim("vocab"),
                    use_bias=False,
                    name="logits",
                )
            )

    def __call__(
        self, inputs: mtf.Tensor, tokens: mtf.Tensor, training: bool = False
    ) -> mtf.Tensor:
        """Returns logits [batch, length, vocab].

        Args:
          inputs: of the encoder, int32 [batch, inputs_length].
          tokens: of the decoder, int32 [batch, length].
          training: whether dropout is applied.
        """
        batch = {"inputs": inputs, "tokens": tokens}
        logits, _ = self.logits_and_reports(batch, training)
        return logits

    def encode(
        self, batch: Batch, training: bool = False
    ) -> tuple[Encoded, dict[str, Report]]:
        """Returns the encoder's output for `inputs` [batch, inputs_length], and the
        reports of its mixtures of experts.

        Inputs are padding where `input_segments` is 0; without segments, where the input
        is 0.
        """
        inputs = mtf.rename(batch["inputs"], "inputs_length", LENGTH)
        segments = _input_feature(batch, "input_segments")
        positions = _input_feature(batch, "input_positions")
        if segments is None:
            segments = mtf.cast(inputs != 0, "int32")
        token_info = TokenInfo.of(inputs, positions, segments)
        x = self.input_dropout(self.embeddings(inputs, token_info.positions), training)
        x, reports = self.encoder(x, token_info, training)
        encoded = Encoded(self.encoder_dropout(x, training), token_info)
        return encoded, {f"encoder/{name}": report for name, report in reports.items()}

    def logits_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns logits [batch, length, vocab], and the reports of mixtures of experts
        by stack and block name.
        """
        encoded, reports = self.encode(batch, training)
        tokens = batch["tokens"]
        token_info = TokenInfo.of(tokens, batch.get("positions"), batch.get("segments"))
        x = self.dropout(self.embeddings(tokens, token_info.positions), training)
        x, decoder_reports = self.decoder(
            x, token_info, training, encoded.x, encoded.token_info
        )
        for name, report in decoder_reports.items():
            reports[f"decoder/{name}"] = report
        return self.predict(x), reports

    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [batch, length, vocab] for the decoder's output x [batch,
        length, d_model].
        """
        logits = self.embeddings.attend(x) if self.logits is None else self.logits(x)
        return mask_padded_vocab(logits, self.architecture)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p(target), in training plus auxiliary losses; and the
        reports of mixtures of experts.

        Args:
          batch: int32 `inputs` [batch, inputs_length], `tokens` and `targets` [batch,
            length]; optionally `weights`, float32; of packed examples `input_segments`,
            `input_positions`, `segments` and `positions`.
          training: whether dropout is applied, labels are smoothed, and auxiliary losses
            are added.
        """
        logits, reports = self.logits_and_reports(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            logits,
            batch["targets"],
            "vocab",
            self.z_loss if training else 0.0,
            target_weights(batch),
            self.label_smoothing if training else 0.0,
        )
        return add_auxiliary_losses(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns the sums of nats, of correct predictions and of targets of a batch."""
        logits, _ = self.logits_and_reports(batch)
        return metric_sums(logits, batch["targets"], target_weights(batch))

    def init_cache(
        self,
        batch: mtf.Shape,
        positions: int,
        encoded: Encoded,
        window: int | None = None,
    ) -> KeyValueCache:
        """Returns the cache before the first decoding step.

        Arguments are those of `LanguageModel.init_cache`, and the encoder's output.
        """
        a = self.decoder.architecture
        self.embeddings.check_length(positions)
        x = mtf.zeros(self.mesh, batch + a.dim("d_model"), a.dtype)
        return self.decoder.init_cache(
            x, positions, window, encoded.x, encoded.token_info
        )

    def decode_step(
        self, position: mtf.Tensor, tokens: mtf.Tensor, cache: KeyValueCache
    ) -> tuple[mtf.Tensor, KeyValueCache]:
        """Returns logits [batch, vocab] of the next token, and the updated cache.

        Arguments are those of `LanguageModel.decode_step`.
        """
        x = self.embeddings(tokens, position)
        x, cache = self.decoder.decode_step(x, cache, position)
        return self.predict(x), cache


def _input_feature(batch: Batch, name: str) -> mtf.Tensor | None:
    """Returns a feature of the inputs as [batch, length]; None: the batch lacks it."""
    feature = batch.get(name)
    return None if feature is None else mtf.rename(feature, "inputs_length", LENGTH)


def _check_architectures(
    encoder: Architecture, decoder: Architecture, label_smoothing: float
) -> None:
    """Raises ShapeError where the two do not share an embedding, or labels are smoothed
    over a padded vocabulary.
    """
    if (encoder.vocab, encoder.d_model) != (decoder.vocab, decoder.d_model):
        raise mtf.ShapeError(
            "an encoder and a decoder share vocab and d_model:\n"
            f"  {encoder}\n  {decoder}"
        )
    padded = encoder.dim("vocab")
    if label_smoothing and padded.size > encoder.vocab:
        raise mtf.ShapeError(
            f"labels cannot be smoothed over {padded!r}, of which only "
            f"{encoder.vocab} are tokens.\n  Take Architecture.vocab = {padded.size}, "
            "or no label_smoothing."
        )
