"""Generation of ids after prompts of any lengths, by one program for all of them.

    decoder = Decoder(model, max_new_tokens=200, max_prompt_length=64, top_p=0.95)
    for completion in decoder([[7, 4], [9, 1, 3]], seed=1):
      print(completion.ids, completion.score)

    decoder = Decoder(model, max_new_tokens=64, num_beams=4, eos_id=1)    # EncoderDecoder too

A language model continues its prompts; for an encoder-decoder they are the encoder's
inputs. Prompts are processed in one pass (prefill), and their keys and values are cached,
so each new id computes one position. Prompts are padded to a power of two, at most to
`max_prompt_length`: each padded length is traced once. Every layout generates the same
ids.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gin
import numpy as np

import meshtf as mtf
from transformer.inference.prompts import (
    PromptError,
    check_vocabulary,
    pad,
    until_eos,
)
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

_BEAM = "beam"
_POSITION_DIMS = ("length", "kv_length")
_MIN_PADDED_LENGTH = 16


class Completion(NamedTuple):
    """What a model generates for a prompt.

    Attributes:
      ids: the generated ids, up to the first of `eos_id` and without it.
      score: their log-probability in nats, that of the end included; of a beam search
        divided by the length penalty.
    """

    ids: list[int]
    score: float


@gin.configurable
class Decoder:
    """Generates ids after prompts: the likeliest, sampled, or found by beam search.

    Args:
      model: the model that generates.
      max_new_tokens: the maximum count of ids generated for a prompt.
      max_prompt_length: the maximum count of ids of a prompt.
      batch_size: prompts per batch.
      eos_id: the id that ends a sequence, or several such ids.
      bos_id: the id before a language model's prompts (None: none), or the initial id of
        an encoder-decoder's decoder (None: 0).
      temperature: divides logits before sampling; 0 takes the likeliest id.
      top_k: sample from the k likeliest ids.
      top_p: sample from the fewest ids that have this probability together.
      num_beams: how many sequences a beam search extends; 0: no beam search.
      alpha: the exponent of the length penalty of a beam search; larger values prefer
        longer sequences.
      window: how many of the last positions a position attends to; None: all.
      truncate: whether longer prompts are truncated, at their start (for an encoder at
        their end), rather than refused.
      vocab_size: ids from here on are never generated; None: the model's.
      prefix_lm: whether the ids of a prompt attend to later ones of it, as in a model
        trained as a prefix language model.

    Raises:
      PlanError: a setting out of its range.
      ShapeError: there are more positions than learned ones.
    """

    def __init__(
        self,
        model: LanguageModel | EncoderDecoder,
        max_new_tokens: int = 200,
        max_prompt_length: int = 64,
        batch_size: int = 8,
        eos_id: int | Sequence[int] | None = None,
        bos_id: int | None = None,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        num_beams: int = 0,
        alpha: float = 0.6,
        window: int | None = None,
        truncate: bool = False,
        vocab_size: int | None = None,
        prefix_lm: bool = False,
    ) -> None:
        if min(max_new_tokens, max_prompt_length, batch_size) < 1:
            raise mtf.PlanError(
                f"max_new_tokens={max_new_tokens}, max_prompt_length={max_prompt_length} "
                f"and batch_size={batch_size} must be at least 1."
            )
        self.model = model
        self.mesh = model.mesh
        self.has_encoder = isinstance(model, EncoderDecoder)
        self.max_new_tokens = max_new_tokens
        self.max_prompt_length = max_prompt_length
        self.batch_size = self._round_up(batch_size, "batch")
        self.eos_id = eos_id
        self.bos_id = 0 if self.has_encoder and bos_id is None else bos_id
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.num_beams = num_beams
        self.alpha = alpha
        self.window = window
        self.truncate = truncate
        model_vocab_size = model.architecture.vocab
        self.vocab_size = min(vocab_size or model_vocab_size, model_vocab_size)
        self.prefix_lm = prefix_lm
        # Positions of what is generated: the last known id, then the new ones.
        self.length = self._round_up(1 + max_new_tokens, *_POSITION_DIMS)
        self._generate_batch = mtf.function(
            self._generate,
            mesh=self.mesh,
            tokens="batch; length",
            inputs="batch; inputs_length",
            prompt_lengths="batch",
            max_length="",
            seed="",
            batch_index="",
        )

    @property
    def _max_input_length(self) -> int:
        """The maximum count of ids of a prompt, with `bos_id`."""
        has_bos = self.bos_id is not None and not self.has_encoder
        return self.max_prompt_length + int(has_bos)

    def _round_up(self, size: int, *dims: str) -> int:
        """Returns the next size that the layout can shard along all these dimensions.

        An axis that a rule names and the mesh lacks counts as size 1, as everywhere.
        """
        mesh = self.mesh
        axes = [axis for dim in dims for axis in mesh.layout.axes(dim)]
        num_shards = math.lcm(*(mesh.axes.get(axis, 1) for axis in axes))
        return -(-size // num_shards) * num_shards

    def generate(
        self, tokens: mtf.Tensor, inputs: mtf.Tensor | None = None
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns ids, int32 [batch, length], and scores, float32 [batch].

        It consists of named ops, so it can be called in a `mtf.function`, and exported.

        Args:
          tokens: int32 [batch, length]: at least one known id for each example, then
            negative elements where ids are to be generated.
          inputs: of an encoder, int32 [batch, inputs_length].
        """
        if self.has_encoder:
            assert inputs is not None, "an encoder has inputs"
            return self._generate(tokens, inputs)
        return self._continue(tokens)

    def _continue(self, tokens: mtf.Tensor) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns what `generate` does, of a language model."""
        length = tokens.shape["length"]
        positions = mtf.range(self.mesh, tokens.shape.dim("length"))
        prompt_lengths = mtf.reduce_sum(mtf.cast(tokens >= 0, "int32"), "length")
        num_new = length - prompt_lengths
        # The examples continue at different positions. Shifted, all do at position 0:
        # the last known id, negative elements for the new ones, 0 after them.
        last_ids = mtf.gather(tokens, prompt_lengths - 1, "length")
        is_new = mtf.outer(positions, num_new, mtf.less_equal)
        shifted = mtf.where(positions == 0, last_ids, mtf.where(is_new, -1, 0))
        ids, scores = self._generate(
            shifted,
            mtf.rename(mtf.maximum(tokens, 0), "length", "inputs_length"),
            prompt_lengths,
            mtf.reduce_max(num_new) + 1,
            cache_length=length,
        )
        source = mtf.outer(positions, prompt_lengths, mtf.subtract) + 1
        ids = mtf.take_along_axis(ids, mtf.maximum(source, 0), "length")
        return mtf.where(tokens < 0, ids, tokens), scores

    def _generate(
        self,
        tokens: mtf.Tensor,
        inputs: mtf.Tensor,
        prompt_lengths: mtf.Tensor | None = None,
        max_length: mtf.Tensor | None = None,
        seed: Any = 0,
        batch_index: Any = 0,
        cache_length: int | None = None,
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns ids, int32 [batch, length], and scores, float32 [batch].

        Args:
          tokens: int32 [batch, length]: of a language model the last id of each prompt,
            of an encoder-decoder `bos_id`; then negative elements.
          inputs: the encoder's inputs, or a language model's prompts: int32 [batch,
            inputs_length].
          prompt_lengths: of a language model, int32 [batch].
          max_length: how many positions of `tokens` are filled: int32, a scalar.
          seed: of the random draws: an int32 scalar.
          batch_index: another one draws other ids: an int32 scalar.
          cache_length: positions of a prompt and its new ids together; None: the maximum
            of any prompt of this padded length.
        """
        step, cache = self._prefill(tokens.shape, inputs, prompt_lengths, cache_length)
        settings: dict[str, Any] = {
            "eos_id": self.eos_id,
            "vocab_size": self.vocab_size,
            "max_length": max_length,
        }
        if self.num_beams:
            beam = mtf.Dimension(_BEAM, self.num_beams)
            ids, scores = mtf.decoding.beam_search(
                step, tokens, beam, cache, alpha=self.alpha, **settings
            )
            best = mtf.zeros(self.mesh, "", "int32")
            return mtf.gather(ids, best, _BEAM), mtf.gather(scores, best, _BEAM)
        with mtf.seed(seed, batch_index):
            ids, log_probs = mtf.decoding.sample(
                step,
                tokens,
                cache,
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                **settings,
            )
        return ids, mtf.reduce_sum(mtf.where(tokens < 0, log_probs, 0.0), "length")

    def _prefill(
        self,
        shape: mtf.Shape,
        inputs: mtf.Tensor,
        prompt_lengths: mtf.Tensor | None,
        cache_length: int | None,
    ) -> tuple[mtf.decoding.Step, Any]:
        """Returns the step function after the inputs, and its initial cache.

        Args:
          shape: of what is generated, [batch, length].
          inputs: see `_generate`, as for the other arguments.
          prompt_lengths: int32 [batch].
          cache_length: positions of the cache.
        """
        model = self.model
        new_length = shape["length"]
        batch = shape.without("length")
        if self.num_beams:
            batch = batch + [(_BEAM, self.num_beams)]
        if isinstance(model, EncoderDecoder):
            encoded, _ = model.encode({"inputs": inputs})
            return model.decode_step, model.init_cache(
                batch, new_length, encoded, self.window
            )
        assert prompt_lengths is not None, "prompts have lengths"
        prompts = mtf.rename(inputs, "inputs_length", "length")
        padded_length = prompts.shape["length"]
        if cache_length is None:
            cache_length = min(
                self._round_up(padded_length + new_length - 1, *_POSITION_DIMS),
                self._max_cache_length,
            )
        cache = model.init_cache(batch, cache_length, self.window)
        cache = model.prefill(prompts, cache, prompt_lengths, self.prefix_lm)

        def step(
            position: mtf.Tensor, ids: mtf.Tensor, cache: Any
        ) -> tuple[mtf.Tensor, Any]:
            # Position 0 of what is generated is the last id of the prompt.
            return model.decode_step(position + (padded_length - 1), ids, cache)

        return step, cache

    @property
    def _max_cache_length(self) -> int:
        """Positions of a cache for the longest prompt and the most new ids."""
        length = self._max_input_length + self.max_new_tokens
        return self._round_up(length, *_POSITION_DIMS)

    def __call__(
        self,
        prompts: Iterable[Sequence[int]],
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> list[Completion]:
        """Returns a completion for each prompt.

        Random draws depend on the seed and the index of a prompt.

        Args:
          prompts: the ids of each prompt.
          max_new_tokens: at most the decoder's, which is the default.
          seed: of the random draws.

        Raises:
          PromptError: a prompt is empty, too long, or has an id outside of the
            vocabulary.
          PlanError: `max_new_tokens` is more than the decoder's.
        """
        batches = self.iterate(prompts, max_new_tokens, seed)
        return [completion for batch in batches for completion in batch]

    def iterate(
        self,
        prompts: Iterable[Sequence[int]],
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> Iterator[list[Completion]]:
        """Yields the completions of each batch. Arguments and errors are those of
        `__call__`.
        """
        if max_new_tokens is None:
            max_new_tokens = self.max_new_tokens
        if not 1 <= max_new_tokens <= self.max_new_tokens:
            raise mtf.PlanError(
                f"max_new_tokens={max_new_tokens}, but the decoder generates 1 to "
                f"{self.max_new_tokens}.\n  Make it with "
                f"Decoder(..., max_new_tokens={max_new_tokens})."
            )
        if not self.has_encoder:
            self.model.embeddings.check_length(self._max_cache_length)
        checked = [
            self._checked_prompt(i, [int(x) for x in prompt])
            for i, prompt in enumerate(prompts)
        ]
        for start in range(0, len(checked), self.batch_size):
            batch = checked[start : start + self.batch_size]
            batch_index = start // self.batch_size
            yield self._complete(batch, max_new_tokens, seed, batch_index)

    def _complete(
        self,
        prompts: Sequence[list[int]],
        max_new_tokens: int,
        seed: int,
        batch_index: int,
    ) -> list[Completion]:
        """Returns the completions of at most `batch_size` prompts."""
        # The last prompt pads a batch, so that all batches have the same size.
        num_missing = self.batch_size - len(prompts)
        padded = [*prompts, *[prompts[-1]] * num_missing]
        bos = [] if self.bos_id is None else [self.bos_id]
        all_inputs = padded if self.has_encoder else [bos + ids for ids in padded]
        lengths = np.array([len(ids) for ids in all_inputs], np.int32)
        inputs = pad(all_inputs, self._padded_length(int(lengths.max())))
        tokens = np.full((self.batch_size, self.length), -1, np.int32)
        tokens[:, 0] = bos if self.has_encoder else [ids[-1] for ids in all_inputs]
        ids, scores = self._generate_batch(
            tokens,
            inputs,
            None if self.has_encoder else lengths,
            np.int32(1 + max_new_tokens),
            np.int32(seed),
            np.int32(batch_index),
        )
        new_ids = ids.numpy()[: len(prompts), 1 : 1 + max_new_tokens].tolist()
        return [
            Completion(until_eos(ids, self.eos_id), float(score))
            for ids, score in zip(new_ids, scores.numpy())
        ]

    def _padded_length(self, length: int) -> int:
        """Returns to what length inputs of up to `length` ids are padded."""
        a = self.model.architecture
        padded = max(_MIN_PADDED_LENGTH, 1 << (length - 1).bit_length())
        if a.attention != "full" and length <= a.block_length:
            padded = min(padded, a.block_length)
        elif a.attention != "full":
            padded = -(-padded // a.block_length) * a.block_length
        padded = min(padded, self._max_input_length)
        return self._round_up(padded, "inputs_length", *_POSITION_DIMS)

    def _checked_prompt(self, index: int, ids: list[int]) -> list[int]:
        """Returns the ids of a prompt, truncated if need be. Raises PromptError."""
        if not ids and (self.bos_id is None or self.has_encoder):
            raise PromptError(
                f"prompt {index + 1} is empty.\n  Give it at least one id."
            )
        check_vocabulary(index, ids, self.model.architecture.vocab)
        max_length = self.max_prompt_length
        if len(ids) > max_length and not self.truncate:
            raise PromptError(
                f"prompt {index + 1} has {len(ids)} ids, more than "
                f"max_prompt_length={max_length}.\n  Take "
                f"max_prompt_length={len(ids)}, or truncate=True to truncate prompts."
            )
        return ids[:max_length] if self.has_encoder else ids[-max_length:]
