"""An encoder and a decoder that looks at it: translation, summaries, T5's span
corruption.

    model = EncoderDecoder(mesh, Architecture(positions="relative", scaled_attention=False))
    logits = model(inputs, tokens)        # int32 [batch inputs], [batch length] -> [... vocab]
    loss = model.loss({"inputs": inputs, "tokens": tokens, "targets": targets}, training=True)

`tokens` are the targets, shifted right: what the decoder knows before each target.
Inputs whose number is 0 are padding.
"""

from __future__ import annotations

from typing import NamedTuple

import gin

import meshtf as mtf
from transformer.experts.moe_layer import Report
from transformer.models.architecture import Architecture
from transformer.models.attention_mask import LENGTH, TokenInfo
from transformer.models.base import Batch, Model, row_weights, sums, with_reports
from transformer.models.embeddings import Embeddings, of_tokens
from transformer.models.stack import KeyValueCache, Stack

_ROWS, _INPUTS = "batch; length", "batch; inputs_length"


class Encoded(NamedTuple):
    """What a decoder looks at."""

    x: mtf.Tensor  # [batch length d_model]
    places: TokenInfo


@gin.configurable
class EncoderDecoder(Model):
    """An encoder, a decoder, and one embedding for both.

    Args:
      mesh: where the variables lie.
      architecture: sizes and kinds of both; None: what gin says of `Architecture`.
      decoder: of the decoder, if it has others.
      z_loss: weight of the squared logsumexp in the training loss.
      label_smoothing: the share of a target's probability that all tokens have alike in
        training.

    Raises:
      ShapeError: the two have different vocabularies or streams; labels are smoothed,
        and the vocabulary is filled up.
    """

    features = {
        "inputs": _INPUTS,
        "input_segments": _INPUTS,
        "input_positions": _INPUTS,
        "tokens": _ROWS,
        "targets": _ROWS,
        "weights": _ROWS,
        "segments": _ROWS,
        "positions": _ROWS,
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
        self.z_loss, self.label_smoothing = z_loss, label_smoothing
        a, b = self.architecture, decoder or self.architecture
        if (a.vocab, a.d_model) != (b.vocab, b.d_model):
            raise mtf.ShapeError(
                f"an encoder and a decoder share vocab and d_model:\n  {a}\n  {b}"
            )
        if label_smoothing and a.dim("vocab").size > a.vocab:
            raise mtf.ShapeError(
                f"labels cannot be smoothed over {a.dim('vocab')!r} rows, of which "
                "only "
                f"{a.vocab} are tokens.\n  Take Architecture.vocab = "
                f"{a.dim('vocab').size}, or no label_smoothing."
            )
        with self.scope():
            self.embeddings = Embeddings(mesh, a)
            self.input_dropout = mtf.layers.Dropout(a.dropout, name="input_dropout")
            self.dropout = mtf.layers.Dropout(a.dropout)
            self.encoder = Stack(mesh, a, causal=False, name="encoder")
            self.encoder_dropout = mtf.layers.Dropout(a.dropout, name="encoder_dropout")
            self.decoder = Stack(mesh, b, causal=True, across=True, name="decoder")
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
        """Returns logits [batch length vocab] for inputs [batch inputs_length], tokens
        [batch length].
        """
        return self.logits_and_reports({"inputs": inputs, "tokens": tokens}, training)[
            0
        ]

    def encode(
        self, batch: Batch, training: bool = False
    ) -> tuple[Encoded, dict[str, Report]]:
        """Returns what the encoder makes of `inputs` [batch inputs_length], and what it
        reports.

        Inputs are real where `input_segments` are above 0; without these, where they
        are not 0.
        """
        inputs = _as_length(batch["inputs"])
        segments, positions = (
            None if (x := batch.get(f"input_{n}")) is None else _as_length(x)
            for n in ("segments", "positions")
        )
        if segments is None:
            segments = mtf.cast(inputs != 0, "int32")
        places = TokenInfo.of(inputs, positions, segments)
        x = self.input_dropout(self.embeddings(inputs, places.positions), training)
        x, reports = self.encoder(x, places, training)
        return (
            Encoded(self.encoder_dropout(x, training), places),
            {f"encoder/{name}": report for name, report in reports.items()},
        )

    def logits_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns logits [batch length vocab], and what mixtures of experts report."""
        encoded, reports = self.encode(batch, training)
        places = TokenInfo.of(
            batch["tokens"], batch.get("positions"), batch.get("segments")
        )
        x = self.dropout(self.embeddings(batch["tokens"], places.positions), training)
        x, more = self.decoder(x, places, training, encoded.x, encoded.places)
        return self.predict(x), reports | {
            f"decoder/{name}": report for name, report in more.items()
        }

    def predict(self, x: mtf.Tensor) -> mtf.Tensor:
        """Returns logits [batch length vocab] for the stream after the last block and
        its norm.
        """
        logits = self.embeddings.attend(x) if self.logits is None else self.logits(x)
        return of_tokens(logits, self.architecture)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Report]]:
        """Returns the mean of -ln p(target), and in training other losses besides; and
        reports.

        Args:
          batch: int32 `inputs` [batch inputs_length], `tokens` and `targets` [batch
            length]; perhaps `weights`, float32; where rows hold several texts,
            `input_segments`, `input_positions`,
            `segments` and `positions`.
          training: whether to drop, to smooth, and to add other losses.
        """
        logits, reports = self.logits_and_reports(batch, training)
        loss = mtf.layers.softmax_cross_entropy(
            logits,
            batch["targets"],
            "vocab",
            self.z_loss if training else 0.0,
            row_weights(batch),
            self.label_smoothing if training else 0.0,
        )
        return with_reports(loss, reports, training), reports

    def measure(self, batch: Batch) -> dict[str, mtf.Tensor]:
        """Returns nats, right guesses and the number of targets of a batch."""
        logits, _ = self.logits_and_reports(batch)
        return sums(logits, batch["targets"], row_weights(batch))

    def start(
        self,
        batch: mtf.Shape,
        positions: int,
        encoded: Encoded,
        window: int | None = None,
    ) -> KeyValueCache:
        """Returns what `step` keeps before the first position of rows of these
        dimensions.

        Arguments are those of `LanguageModel.start`, and what the encoder made.
        """
        a = self.decoder.architecture
        self.embeddings.refuse_length(positions)
        return self.decoder.start(
            mtf.zeros(self.mesh, batch + a.dim("d_model"), a.dtype),
            positions,
            window,
            encoded.x,
            encoded.places,
        )

    def step(
        self, position: mtf.Tensor, tokens: mtf.Tensor, held: KeyValueCache
    ) -> tuple[mtf.Tensor, KeyValueCache]:
        """Returns logits [batch vocab] of what follows tokens [batch], and what is
        kept.

        Arguments are those of `LanguageModel.step`.
        """
        x, held = self.decoder.step(self.embeddings(tokens, position), held, position)
        return self.predict(x), held


def _as_length(x: mtf.Tensor) -> mtf.Tensor:
    return mtf.rename(x, "inputs_length", LENGTH)
