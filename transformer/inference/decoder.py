"""Generation: prompts of any lengths in, token ids out, by one program for each padded
length.

    decoder = Decoder(model, number=200, prompt_length=64, batch_size=8, top_p=0.95)
    for written in decoder([[7, 4], [9, 1, 3]], seed=1):
      print(written.ids, written.score)

    decoder = Decoder(model, number=64, prompt_length=512, beams=4, end=1)     # EncoderDecoder too

A language model continues its prompts; an encoder-decoder takes them as its inputs. Both
process all positions of the prompts at once. Their keys and values are cached, so each
new id costs one position. Prompts are padded to a power of two, or to `prompt_length`;
each padded length has its own program. Every layout generates the same ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import gin
import numpy as np

import meshtf as mtf
from transformer.inference.results import PromptError, Written
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

_BEAM = "beam"
_POSITIONS = ("length", "memory_length")
_MIN_PADDED_LENGTH = 16  # of prompts


@gin.configurable
class Decoder:
    """Generates token ids one at a time, by sampling or beam search.

    Args:
      model: a language model or an encoder-decoder.
      number: the maximum count of ids that are generated after a prompt.
      prompt_length: the maximum count of ids of a prompt.
      batch_size: how many prompts are processed at a time.
      end: the id that ends a text, or several.
      begin: the id at the start of each text: before a language model's prompts (None:
        no id), or the first input of an encoder-decoder's decoder (None: 0).
      temperature: logits are divided by it; 0 takes the likeliest id.
      top_k: samples from this many of the likeliest ids.
      top_p: samples from the smallest set of ids whose probabilities sum to this
        (nucleus sampling).
      beams: the count of beams of beam search; 0: ids are sampled.
      alpha: of the length penalty of beam search; above 0 longer texts are preferred.
      window: how many of the last ids a position attends to; None: all.
      cut: whether prompts that are too long are truncated at their start (an encoder's:
        at their end); else they are refused.
      vocab: ids from this one on are never generated; None: all ids of the model may be.
      prefix: whether ids of a prompt attend to later ones, as prefix language models do.

    Raises:
      PlanError: a setting out of its range.
      ShapeError: there are more positions than learned positions.
    """

    def __init__(
        self,
        model: LanguageModel | EncoderDecoder,
        number: int = 200,
        prompt_length: int = 64,
        batch_size: int = 8,
        end: int | Sequence[int] | None = None,
        begin: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        beams: int = 0,
        alpha: float = 0.6,
        window: int | None = None,
        cut: bool = False,
        vocab: int | None = None,
        prefix: bool = False,
    ) -> None:
        if min(number, prompt_length, batch_size) < 1:
            raise mtf.PlanError(
                f"number={number}, prompt_length={prompt_length} and batch_size={batch_size} "
                "must be at least 1."
            )
        self.model = model
        self.mesh = model.mesh
        self.number = number
        self.cut = cut
        self.encodes = isinstance(model, EncoderDecoder)
        self.beams = beams
        self.alpha = alpha
        self.window = window
        self.prefix = prefix
        self.begin = 0 if self.encodes and begin is None else begin
        model_vocab = model.architecture.vocab
        self.vocab = min(vocab or model_vocab, model_vocab)
        self._settings: dict[str, Any] = {"end": end, "vocab_size": self.vocab}
        self._sampling: dict[str, Any] = {
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
        }
        self.prompt_length = prompt_length
        has_begin_id = self.begin is not None and not self.encodes
        self._max_input_length = prompt_length + int(has_begin_id)
        self.length = self._shardable_size(1 + number, *_POSITIONS)
        self.batch_size = self._shardable_size(batch_size, "batch")
        self._run = mtf.function(
            self._generate,
            mesh=self.mesh,
            texts="batch; length",
            inputs="batch; inputs_length",
            lengths="batch",
            until="",
            seed="",
            batch_index="",
        )

    def _shardable_size(self, size: int, *names: str) -> int:
        """Returns the smallest size from `size` on that the mesh can shard evenly, for
        dimensions of all these names.

        An axis that a rule names and the mesh lacks counts as size 1, as everywhere.
        """
        axis_sizes = [
            self.mesh.axes.get(axis, 1)
            for name in names
            for axis in self.mesh.layout.axes(name)
        ]
        num_shards = math.lcm(*axis_sizes)
        shard_size = -(-size // num_shards)
        return shard_size * num_shards

    def write(
        self, texts: mtf.Tensor, inputs: mtf.Tensor | None = None
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns ids, int32 [batch, length], and scores, float32 [batch]. It consists of
        named ops, for use in an `mtf.function`.

        Args:
          texts: int32 [batch, length]: the prompts, and negative where ids are to be
            generated.
          inputs: of an encoder, int32 [batch, inputs_length].
        """
        if self.encodes:
            assert inputs is not None, "an encoder has inputs"
            return self._generate(texts, inputs)
        # `_generate` continues from the last id of each prompt, at index 0: so a prompt of
        # n ids is shifted by n - 1 on the way in, and back on the way out.
        index = mtf.range(self.mesh, texts.shape.dim("length"))
        lengths = mtf.reduce_sum(mtf.cast(texts >= 0, "int32"), "length")
        num_new_ids = texts.shape["length"] - lengths
        last_ids = mtf.gather(texts, lengths - 1, "length")
        is_new = mtf.outer(index, num_new_ids, mtf.less_equal)
        new_ids = mtf.where(is_new, -1, 0)
        continuations = mtf.where(index == 0, last_ids, new_ids)
        prompts = mtf.maximum(texts, 0)
        ids, scores = self._generate(
            continuations,
            mtf.rename(prompts, "length", "inputs_length"),
            lengths,
            mtf.reduce_max(num_new_ids) + 1,
            positions=texts.shape["length"],
        )
        source_index = mtf.outer(index, lengths, mtf.subtract) + 1
        ids = mtf.take_along(ids, mtf.maximum(source_index, 0), "length")
        return mtf.where(texts < 0, ids, texts), scores

    def _generate(
        self,
        texts: mtf.Tensor,
        inputs: mtf.Tensor,
        lengths: mtf.Tensor | None = None,
        until: mtf.Tensor | None = None,
        seed: Any = 0,
        batch_index: Any = 0,
        positions: int | None = None,
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns ids, int32 [batch, length], and scores, float32 [batch].

        Args:
          texts: int32 [batch, length]: the last id of each prompt, then negative values
            where ids are generated.
          inputs: of an encoder, or prompts to continue: int32 [batch, inputs_length].
          lengths: of prompts, int32 [batch].
          until: generation stops at this index of `length`.
          seed: of the random numbers.
          batch_index: of the random numbers, too: batches of one seed differ.
          positions: the count of positions of prompts and continuations together; None:
            as many as the prompts and texts have.
        """
        step, cache = self._start(texts.shape, inputs, lengths, positions)
        settings = {**self._settings, "until": until}
        if self.beams:
            ids, scores = mtf.decoding.beam_search(
                step,
                texts,
                mtf.Dimension(_BEAM, self.beams),
                cache,
                alpha=self.alpha,
                **settings,
            )
            # Beams are sorted by score, the best first.
            best = mtf.zeros(self.mesh, "", "int32")
            return mtf.gather(ids, best, _BEAM), mtf.gather(scores, best, _BEAM)
        with mtf.seed(seed, batch_index):
            ids, log_probs = mtf.decoding.sample(
                step, texts, cache, **settings, **self._sampling
            )
        return ids, mtf.reduce_sum(mtf.where(texts < 0, log_probs, 0.0), "length")

    def _start(
        self,
        texts: mtf.Shape,
        inputs: mtf.Tensor,
        lengths: mtf.Tensor | None,
        positions: int | None,
    ) -> tuple[mtf.decoding.Step, Any]:
        """Returns the function of a decoding step, and the cache before the first one.

        Arguments are those of `_generate`; of the texts it takes the shape.
        """
        batch = texts.without("length")
        if self.beams:
            batch = batch + [(_BEAM, self.beams)]
        length = texts["length"]
        if isinstance(self.model, EncoderDecoder):
            encoded, _ = self.model.encode({"inputs": inputs})
            cache = self.model.start(batch, length, encoded, self.window)
            return self.model.step, cache
        assert lengths is not None, "prompts have lengths"
        model = self.model
        tokens = mtf.rename(inputs, "inputs_length", "length")
        last_position = tokens.shape["length"] - 1
        if positions is None:
            positions = min(
                self._shardable_size(last_position + length, *_POSITIONS),
                self._max_positions,
            )
        empty_cache = model.start(batch, positions, self.window)
        cache = model.prefill(tokens, empty_cache, lengths, self.prefix)

        def step(
            position: mtf.Tensor, ids: mtf.Tensor, cache: Any
        ) -> tuple[mtf.Tensor, Any]:
            position = position + last_position
            return model.step(position, ids, cache)

        return step, cache

    @property
    def _max_positions(self) -> int:
        """The count of positions of the longest prompt and its continuation."""
        length = self._max_input_length + self.number
        return self._shardable_size(length, *_POSITIONS)

    def __call__(
        self, prompts: Iterable[Sequence[int]], number: int | None = None, seed: int = 0
    ) -> list[Written]:
        """Returns the continuation of each prompt.

        Samples depend on the seed and on the index of a prompt.

        Args:
          prompts: the ids of each.
          number: the maximum count of ids after each, if fewer than the decoder's.
          seed: another seed gives other samples.

        Raises:
          PromptError: a prompt is empty, too long, or has ids that the model does not
            have.
          PlanError: `number` exceeds that of the decoder.
        """
        results = []
        for batch in self.each(prompts, number, seed):
            results.extend(batch)
        return results

    def each(
        self, prompts: Iterable[Sequence[int]], number: int | None = None, seed: int = 0
    ) -> Iterator[list[Written]]:
        """Yields what `__call__` returns, batch by batch."""
        number = self.number if number is None else number
        if not 1 <= number <= self.number:
            raise mtf.PlanError(
                f"{number} ids cannot be written by a decoder made for 1 to "
                f"{self.number}.\n  Make it for more: number={number}."
            )
        if not self.encodes:
            self.model.embeddings.check_length(self._max_positions)
        valid_prompts = []
        for index, prompt in enumerate(prompts):
            ids = [int(x) for x in prompt]
            valid_prompts.append(self._validate(index, ids))
        size = self.batch_size
        for start in range(0, len(valid_prompts), size):
            batch = valid_prompts[start : start + size]
            batch_index = start // size
            yield self._generate_batch(batch, number, seed, batch_index)

    def _generate_batch(
        self, prompts: Sequence[list[int]], number: int, seed: int, batch_index: int
    ) -> list[Written]:
        """Returns the continuations of at most `batch_size` prompts."""
        padding = [prompts[-1]] * (self.batch_size - len(prompts))
        inputs = [*prompts, *padding]
        begin_ids = [] if self.begin is None else [self.begin]
        lengths = None
        texts = np.full((self.batch_size, self.length), -1, np.int32)
        if self.encodes:
            texts[:, 0] = begin_ids
        else:
            inputs = [begin_ids + prompt for prompt in inputs]
            lengths = np.array([len(ids) for ids in inputs], np.int32)
            texts[:, 0] = [ids[-1] for ids in inputs]
        padded_inputs = self._pad_inputs(inputs)
        ids, scores = self._run(
            texts,
            padded_inputs,
            lengths,
            np.int32(1 + number),
            np.int32(seed),
            np.int32(batch_index),
        )
        results = []
        for text, score, _ in zip(ids.numpy(), scores.numpy(), prompts):
            new_ids = text[1 : 1 + number].tolist()
            new_ids = self._before_end(new_ids)
            results.append(Written(new_ids, float(score)))
        return results

    def _pad_inputs(self, inputs: Sequence[list[int]]) -> np.ndarray:
        """Returns inputs as int32 [batch, inputs_length], padded with 0."""
        longest = max(len(ids) for ids in inputs)
        length = self._padded_length(longest)
        padded = np.zeros((self.batch_size, length), np.int32)
        for row, ids in zip(padded, inputs):
            row[: len(ids)] = ids
        return padded

    def _padded_length(self, length: int) -> int:
        """Returns the size to which inputs of up to `length` ids are padded."""
        a = self.model.architecture
        power_of_two = 1 << (length - 1).bit_length()
        padded = max(_MIN_PADDED_LENGTH, power_of_two)
        if a.attention != "full":
            if length <= a.block_length:
                padded = min(padded, a.block_length)
            else:
                num_blocks = -(-padded // a.block_length)
                padded = num_blocks * a.block_length
        padded = min(padded, self._max_input_length)
        return self._shardable_size(padded, "inputs_length", *_POSITIONS)

    def _before_end(self, ids: list[int]) -> list[int]:
        """Returns the ids before the first end id."""
        end = self._settings["end"]
        if end is None:
            return ids
        end_ids = end if isinstance(end, Sequence) else (end,)
        for index, token_id in enumerate(ids):
            if token_id in end_ids:
                return ids[:index]
        return ids

    def _validate(self, index: int, ids: list[int]) -> list[int]:
        """Returns a prompt, truncated if it is too long and `cut`.

        Raises:
          PromptError: as `__call__`.
        """
        if not ids and (self.begin is None or self.encodes):
            raise PromptError(
                f"prompt {index + 1} is empty, and there is nothing to begin with.\n"
                "  Give it at least one id."
            )
        vocab = self.model.architecture.vocab
        unknown = next((x for x in ids if not 0 <= x < vocab), None)
        if unknown is not None:
            raise PromptError(
                f"prompt {index + 1} has the id {unknown}; the model's are 0 to "
                f"{vocab - 1}.\n  Was it made by the vocabulary that the model was "
                "trained with?"
            )
        if len(ids) > self.prompt_length and not self.cut:
            raise PromptError(
                f"prompt {index + 1} has {len(ids)} ids, and there is room for "
                f"{self.prompt_length}.\n  Make room: prompt_length={len(ids)}; or "
                "truncate it: cut=True."
            )
        return ids[: self.prompt_length] if self.encodes else ids[-self.prompt_length :]
