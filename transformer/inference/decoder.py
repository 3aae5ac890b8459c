"""Texts that models write: prompts of any lengths in, ids out, by one program for all
of them.

    decoder = Decoder(model, max_new_tokens=200, prompt_length=64, top_p=0.95)
    for written in decoder([[7, 4], [9, 1, 3]], seed=1):
      print(written.ids, written.score)

    decoder = Decoder(model, max_new_tokens=64, beams=4, eos_id=1)     # EncoderDecoder too

A language model goes on with its prompts; an encoder-decoder reads them as its inputs.
Either reads them all at once. Keys and values of what was read are kept, so each id
costs one position. Prompts are filled up to a power of two, or to `prompt_length`:
there is one program for each such size. Every layout writes the same ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gin
import numpy as np

import meshtf as mtf
from transformer.data import DataError
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

_BEAM = "beam"
_POSITIONS = "length", "kv_length"
_SMALLEST = 16  # what prompts are filled up to at least


class PromptError(DataError):
    """A prompt that a model cannot read."""


class Written(NamedTuple):
    """What was written after a prompt."""

    ids: list[int]  # up to an end, and without it
    score: (
        float  # their log-probability with the end; of beams, over the length penalty
    )


@gin.configurable
class Decoder:
    """Writes on, id by id.

    Args:
      model: what writes.
      max_new_tokens: the most ids that are written after a prompt.
      prompt_length: the most ids of a prompt.
      batch_size: prompts that are read at a time.
      eos_id: the id that ends a text, or several.
      bos_id: the id before the first one that is known: before a language model's
        prompts (None: nothing), or what a decoder is given first (None: 0).
      temperature: 0 takes the likeliest; below 1 likely ids become likelier.
      top_k: draw from so many of the likeliest ids.
      top_p: draw from the fewest ids that have this probability together.
      beams: how many beginnings a beam search follows; 0: there is none, and ids are
        drawn.
      alpha: of the length penalty of a beam search; above 0 longer texts are preferred.
      window: how many of the last ids a position sees; None: all.
      truncate: whether to truncate prompts that are too long, at their start (those of
        an encoder at their end), rather than refuse them.
      vocab: ids from here on are never written; None: all of the model's may be.
      prefix: whether ids of a prompt see those after them, as language models learn it
        from prefixes.

    Raises:
      PlanError: a setting out of its range.
      ShapeError: there are more positions than learned ones.
    """

    def __init__(
        self,
        model: LanguageModel | EncoderDecoder,
        max_new_tokens: int = 200,
        prompt_length: int = 64,
        batch_size: int = 8,
        eos_id: int | Sequence[int] | None = None,
        bos_id: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        beams: int = 0,
        alpha: float = 0.6,
        window: int | None = None,
        truncate: bool = False,
        vocab: int | None = None,
        prefix: bool = False,
    ) -> None:
        if min(max_new_tokens, prompt_length, batch_size) < 1:
            raise mtf.PlanError(
                f"max_new_tokens={max_new_tokens}, prompt_length={prompt_length} and "
                f"batch_size={batch_size} must be at least 1."
            )
        self.model = model
        self.mesh = model.mesh
        self.max_new_tokens = max_new_tokens
        self.truncate = truncate
        self.encodes, self.beams, self.alpha, self.window = (
            isinstance(model, EncoderDecoder),
            beams,
            alpha,
            window,
        )
        self.prefix = prefix
        self.bos_id = 0 if self.encodes and bos_id is None else bos_id
        self.vocab = min(vocab or model.architecture.vocab, model.architecture.vocab)
        self._settings: dict[str, Any] = {"end": eos_id, "vocab_size": self.vocab}
        self._drawing: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        self.prompt_length = prompt_length
        given = int(
            self.bos_id is not None and not self.encodes
        )  # ids before those of a prompt
        self._longest, self.length = (
            given + prompt_length,
            self._even(1 + max_new_tokens, *_POSITIONS),
        )
        self.batch_size = self._even(batch_size, "batch")
        self._run = mtf.function(
            self._after,
            mesh=self.mesh,
            texts="batch; length",
            inputs="batch; inputs_length",
            lengths="batch",
            until="",
            seed="",
            turn="",
        )

    def _even(self, size: int, *names: str) -> int:
        """Returns the next size that the mesh can shard along these dimensions.

        An axis that a rule names and the mesh lacks counts as size 1, as everywhere.
        """
        axes = self.mesh.axes
        sizes = [
            axes.get(axis, 1) for name in names for axis in self.mesh.layout.axes(name)
        ]
        parts = math.lcm(*sizes)
        return -(-size // parts) * parts

    def write(
        self, texts: mtf.Tensor, inputs: mtf.Tensor | None = None
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns ids, int32 [batch length], and scores, float32 [batch]: a program, in
        named ops.

        Args:
          texts: int32 [batch length]: what is given, and negative from there on, where
            ids are to be written.
          inputs: of an encoder, [batch inputs_length].
        """
        if self.encodes:
            assert inputs is not None, "an encoder has inputs"
            return self._after(texts, inputs)
        place = mtf.range(self.mesh, texts.shape.dim("length"))
        lengths = mtf.reduce_sum(mtf.cast(texts >= 0, "int32"), "length")
        wanted = texts.shape["length"] - lengths
        last = mtf.gather(texts, lengths - 1, "length")
        ids, scores = self._after(
            mtf.where(
                place == 0,
                last,
                mtf.where(mtf.outer(place, wanted, mtf.less_equal), -1, 0),
            ),
            mtf.rename(mtf.maximum(texts, 0), "length", "inputs_length"),
            lengths,
            mtf.reduce_max(wanted) + 1,
            positions=texts.shape["length"],
        )
        ids = mtf.take_along_axis(
            ids, mtf.maximum(mtf.outer(place, lengths, mtf.subtract) + 1, 0), "length"
        )
        return mtf.where(texts < 0, ids, texts), scores

    def _after(
        self,
        texts: mtf.Tensor,
        inputs: mtf.Tensor,
        lengths: mtf.Tensor | None = None,
        until: mtf.Tensor | None = None,
        seed: Any = 0,
        turn: Any = 0,
        positions: int | None = None,
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns ids, int32 [batch length], and scores, float32 [batch].

        Args:
          texts: int32 [batch length]: the last id that is given, then negative ones.
          inputs: of an encoder, or prompts to go on with: int32 [batch inputs_length].
          lengths: of prompts, int32 [batch].
          until: positions of texts from here on are not looked for.
          seed: another seed, other draws.
          turn: likewise; the number of the batch.
          positions: of a prompt and what follows, if some of the texts have too many.
        """
        step, held = self._started(texts.shape, inputs, lengths, positions)
        settings = {**self._settings, "until": until}
        if self.beams:
            ids, scores = mtf.decoding.beam_search(
                step,
                texts,
                mtf.Dimension(_BEAM, self.beams),
                held,
                alpha=self.alpha,
                **settings,
            )
            best = mtf.zeros(self.mesh, "", "int32")
            return mtf.gather(ids, best, _BEAM), mtf.gather(scores, best, _BEAM)
        with mtf.seed(seed, turn):
            ids, log_probs = mtf.decoding.sample(
                step, texts, held, **settings, **self._drawing
            )
        return ids, mtf.reduce_sum(mtf.where(texts < 0, log_probs, 0.0), "length")

    def _started(
        self,
        texts: mtf.Shape,
        inputs: mtf.Tensor,
        lengths: mtf.Tensor | None,
        positions: int | None,
    ) -> tuple[mtf.decoding.Step, Any]:
        """Returns the step after what was read, and what it begins with."""
        rows, more = texts.without("length"), texts["length"]
        rows = rows + [(_BEAM, self.beams)] if self.beams else rows
        if isinstance(self.model, EncoderDecoder):
            encoded, _ = self.model.encode({"inputs": inputs})
            return self.model.decode_step, self.model.init_cache(
                rows, more, encoded, self.window
            )
        assert lengths is not None, "prompts have lengths"
        model, tokens = self.model, mtf.rename(inputs, "inputs_length", "length")
        most = positions or min(
            self._even(tokens.shape["length"] + more - 1, *_POSITIONS),
            self._even(self._longest + self.max_new_tokens, *_POSITIONS),
        )
        held = model.prefill(
            tokens, model.init_cache(rows, most, self.window), lengths, self.prefix
        )
        last = tokens.shape["length"] - 1

        def step(
            position: mtf.Tensor, ids: mtf.Tensor, held: Any
        ) -> tuple[mtf.Tensor, Any]:
            return model.decode_step(position + last, ids, held)

        return step, held

    def __call__(
        self,
        prompts: Iterable[Sequence[int]],
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> list[Written]:
        """Returns what was written after each prompt.

        Draws follow the seed and the place of a prompt among the others.

        Args:
          prompts: the ids of each.
          max_new_tokens: the most ids after each, if fewer than the decoder's.
          seed: another seed, other draws.

        Raises:
          PromptError: a prompt is empty, too long, or has ids that the model does not
            have.
          PlanError: more ids are asked for than the decoder was made for.
        """
        return [
            written
            for some in self.each(prompts, max_new_tokens, seed)
            for written in some
        ]

    def each(
        self,
        prompts: Iterable[Sequence[int]],
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> Iterator[list[Written]]:
        """Yields what `__call__` returns, batch by batch."""
        max_new_tokens = (
            self.max_new_tokens if max_new_tokens is None else max_new_tokens
        )
        if not 1 <= max_new_tokens <= self.max_new_tokens:
            raise mtf.PlanError(
                f"{max_new_tokens} ids cannot be written by a decoder made for 1 to "
                f"{self.max_new_tokens}.\n  Make it for more: max_new_tokens={max_new_tokens}."
            )
        if not self.encodes:
            self.model.embeddings.check_length(
                self._even(self._longest + self.max_new_tokens, *_POSITIONS)
            )
        fitting = [
            self._fitting(i, [int(x) for x in prompt])
            for i, prompt in enumerate(prompts)
        ]
        for first in range(0, len(fitting), self.batch_size):
            yield self._written(
                fitting[first : first + self.batch_size],
                max_new_tokens,
                seed,
                first // self.batch_size,
            )

    def _written(
        self, prompts: Sequence[list[int]], max_new_tokens: int, seed: int, turn: int
    ) -> list[Written]:
        """Returns what is written after no more prompts than a batch has."""
        filled = [*prompts, *[prompts[-1]] * (self.batch_size - len(prompts))]
        before = [] if self.bos_id is None else [self.bos_id]
        read = filled if self.encodes else [before + prompt for prompt in filled]
        lengths = np.array([len(ids) for ids in read], np.int32)
        inputs = np.zeros((self.batch_size, self._size(max(map(len, read)))), np.int32)
        for row, ids in zip(inputs, read):
            row[: len(ids)] = ids
        texts = np.full((self.batch_size, self.length), -1, np.int32)
        texts[:, 0] = before if self.encodes else [ids[-1] for ids in read]
        found, scores = self._run(
            texts,
            inputs,
            None if self.encodes else lengths,
            np.int32(1 + max_new_tokens),
            np.int32(seed),
            np.int32(turn),
        )
        return [
            Written(self._until_end(row[1 : 1 + max_new_tokens].tolist()), float(score))
            for row, score, _ in zip(found.numpy(), scores.numpy(), prompts)
        ]

    def _size(self, longest: int) -> int:
        """Returns what prompts of up to so many ids are filled up to."""
        a, size = (
            self.model.architecture,
            max(_SMALLEST, 1 << (longest - 1).bit_length()),
        )
        if a.attention != "full":
            size = (
                min(size, a.block_length)
                if longest <= a.block_length
                else (-(-size // a.block_length) * a.block_length)
            )
        return self._even(min(size, self._longest), "inputs_length", *_POSITIONS)

    def _until_end(self, ids: list[int]) -> list[int]:
        end = self._settings["end"]
        ends = () if end is None else end if isinstance(end, Sequence) else (end,)
        return ids[: next((i for i, x in enumerate(ids) if x in ends), len(ids))]

    def _fitting(self, number: int, ids: list[int]) -> list[int]:
        """Returns a prompt as it is read. Raises PromptError."""
        if not ids and (self.bos_id is None or self.encodes):
            raise PromptError(
                f"prompt {number + 1} is empty, and there is nothing to begin with.\n"
                "  Give it at least one id."
            )
        wrong = next(
            (x for x in ids if not 0 <= x < self.model.architecture.vocab), None
        )
        if wrong is not None:
            raise PromptError(
                f"prompt {number + 1} has the id {wrong}; the model's are 0 to "
                f"{self.model.architecture.vocab - 1}.\n  Was it made by the "
                "vocabulary "
                "that the model was trained with?"
            )
        if len(ids) > self.prompt_length and not self.truncate:
            raise PromptError(
                f"prompt {number + 1} has {len(ids)} ids, and there is room for "
                f"{self.prompt_length}.\n  Make room: prompt_length={len(ids)}; or "
                "truncate it: truncate=True."
            )
        return ids[: self.prompt_length] if self.encodes else ids[-self.prompt_length :]
