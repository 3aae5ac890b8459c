"""Generation of token ids after prompts: greedy, sampled, or by beam search.

    decoder = Decoder(model, max_new_tokens=200, max_prompt_length=64, top_p=0.95)
    for completion in decoder([[7, 4], [9, 1, 3]], seed=1):
      print(completion.ids, completion.score)

    decoder = Decoder(model, max_new_tokens=64, num_beams=4, eos_id=1)    # EncoderDecoder too

A language model continues its prompts; for an encoder-decoder, prompts are the encoder's
inputs. A prompt is processed in one pass (prefill), and the keys and values of its positions
are cached, so each new id computes one position. Prompts of a batch are padded to one length,
a power of two; a program is traced for each. Every layout generates the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import gin
import numpy as np

import meshtf as mtf
from transformer.inference.padded_lengths import PaddedLengths, round_up_batch
from transformer.inference.prompts import (
    PromptError,
    check_length,
    check_vocabulary,
    pad,
    until_eos,
)
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

_BEAM = "beam"


class Completion(NamedTuple):
    """The ids that a model generates for a prompt.

    Attributes:
      ids: the generated ids, without `eos_id` and the ids after it.
      score: the log-probability of the generated ids in nats, `eos_id` included; in a
        beam search, divided by the length penalty.
    """

    ids: list[int]
    score: float


@gin.configurable
class Decoder:
    """Generates ids after prompts: the likeliest ones, sampled ones, or by beam search.

    Args:
      model: the model that generates.
      max_new_tokens: the maximum count of ids generated for a prompt.
      max_prompt_length: the maximum count of ids of a prompt.
      batch_size: the count of prompts of a batch.
      eos_id: the id that ends a sequence, or several such ids; None: there is none.
      bos_id: the id before a language model's prompts (None: none), or the initial id of
        an encoder-decoder's decoder (None: 0).
      temperature: the divisor of logits before sampling; 0: the likeliest id is taken.
      top_k: the count of likeliest ids to sample from; None, or more than there are: all.
      top_p: the probability, in total, of the likeliest ids that are sampled from; None: 1.
      num_beams: the count of sequences that a beam search extends; 0: no beam search.
      alpha: the exponent of the length penalty of a beam search; larger values prefer
        longer sequences.
      window: the count of the last positions that a position attends to; None: all.
      truncate: whether longer prompts are truncated, at the start for a language model, at
        the end for an encoder; if not, they raise an error.
      vocab_size: the bound of generated ids, which are below it; None: that of the model.
      prefix_lm: whether the ids of a prompt also attend to later ids of the prompt, as in
        a model trained as a prefix language model.

    Raises:
      PlanError: a setting is out of its range.
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
        self.batch_size = round_up_batch(batch_size, self.mesh)
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
        has_bos_in_prompt = self.bos_id is not None and not self.has_encoder
        self._lengths = PaddedLengths(
            self.mesh,
            model.architecture,
            max_input_length=max_prompt_length + int(has_bos_in_prompt),
            max_new_tokens=max_new_tokens,
        )
        self._generate_batch = mtf.function(
            self._generate,
            mesh=self.mesh,
            tokens="batch; length",
            inputs="batch; inputs_length",
            prompt_lengths="batch",
            max_length="",  # a scalar, as the next ones are
            seed="",
            batch_index="",
        )

    def generate(
        self, tokens: mtf.Tensor, inputs: mtf.Tensor | None = None
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns completed sequences, int32 [batch, length], and the score of each,
        float32 [batch].

        It consists of ops on named tensors, so it can be called in a `mtf.function`, and
        exported.

        Args:
          tokens: the start of each sequence, int32 [batch, length]: at least one known id,
            then negative elements where ids are to be generated.
          inputs: the ids of the encoder's inputs, int32 [batch, inputs_length]; None: the
            model has no encoder.
        """
        if self.has_encoder:
            assert inputs is not None, "an encoder-decoder needs inputs"
            return self._generate(tokens, inputs)
        return self._generate_after_prompts(tokens)

    def _generate_after_prompts(
        self, tokens: mtf.Tensor
    ) -> tuple[mtf.Tensor, mtf.Tensor]:
        """Returns the result of `generate` for a language model."""
        length = tokens.shape["length"]
        positions = mtf.range(self.mesh, tokens.shape.dim("length"))
        prompt_lengths = mtf.reduce_sum(mtf.cast(tokens >= 0, "int32"), "length")
        num_new = length - prompt_lengths
        # `_generate` starts all sequences at position 0, so they are shifted by their
        # prompts: the last id of the prompt, a negative element for each new id, then 0.
        # [5 7 -1 -1], with the prompt 5 7 and two new ids, becomes [7 -1 -1 0].
        last_ids = mtf.gather(tokens, prompt_lengths - 1, "length")
        is_new = mtf.outer(positions, num_new, mtf.less_equal)
        new_or_zero = mtf.where(is_new, -1, 0)
        shifted = mtf.where(positions == 0, last_ids, new_or_zero)
        prompts = mtf.rename(mtf.maximum(tokens, 0), "length", "inputs_length")
        ids, scores = self._generate(
            shifted,
            prompts,
            prompt_lengths=prompt_lengths,
            max_length=num_new + 1,
            cache_length=length,
        )
        # Shifted back: position p of a sequence is position p - prompt_length + 1 in `ids`.
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
        """Returns the initial and the new ids, int32 [batch, length], and the score of each
        sequence, float32 [batch].

        Args:
          tokens: int32 [batch, length]: the initial id, which is the last id of the prompt
            or the `bos_id` of an encoder-decoder, then negative elements.
          inputs: the encoder's inputs, or a language model's prompts: int32 [batch,
            inputs_length].
          prompt_lengths: the count of ids of each prompt, int32 [batch]; None: the model
            is an encoder-decoder.
          max_length: the count of positions of `tokens` that are filled, int32: a scalar or
            [batch]; None: all.
          seed: the seed of random draws, an int32 scalar.
          batch_index: the index of the batch, an int32 scalar: batches draw different ids.
          cache_length: the count of positions of a prompt and its new ids; None: the
            maximum for prompts of this padded length.
        """
        step, cache = self._prefill(
            tokens.shape,
            inputs,
            prompt_lengths=prompt_lengths,
            cache_length=cache_length,
        )
        settings: dict[str, Any] = {
            "eos_id": self.eos_id,
            "vocab_size": self.vocab_size,
            "max_length": max_length,
        }
        if self.num_beams:
            beam_dim = mtf.Dimension(_BEAM, self.num_beams)
            ids, scores = mtf.decoding.beam_search(
                step, tokens, beam_dim, cache, alpha=self.alpha, **settings
            )
            # Beams are ordered by score: the best one has index 0.
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
        new_log_probs = mtf.where(tokens < 0, log_probs, 0.0)
        return ids, mtf.reduce_sum(new_log_probs, "length")

    def _prefill(
        self,
        shape: mtf.Shape,
        inputs: mtf.Tensor,
        prompt_lengths: mtf.Tensor | None,
        cache_length: int | None,
    ) -> tuple[mtf.decoding.Step, Any]:
        """Returns a function that decodes one position after the inputs, and the cache of
        keys and values that the inputs have filled.

        Args:
          shape: the shape of the initial and new ids, [batch, length].
          inputs: the inputs, as in `_generate`.
          prompt_lengths: the lengths of prompts, as in `_generate`.
          cache_length: the count of positions of the cache, as in `_generate`.
        """
        model = self.model
        new_length = shape["length"]
        batch_dims = shape.without("length")
        if self.num_beams:
            batch_dims = batch_dims + [(_BEAM, self.num_beams)]
        if isinstance(model, EncoderDecoder):
            encoded, _reports = model.encode({"inputs": inputs})
            cache = model.init_cache(
                batch_dims, new_length, encoded=encoded, window=self.window
            )
            return model.decode_step, cache
        assert prompt_lengths is not None, "a language model needs prompt_lengths"
        prompts = mtf.rename(inputs, "inputs_length", "length")
        padded_length = prompts.shape["length"]
        if cache_length is None:
            cache_length = self._lengths.of_cache(padded_length, new_length=new_length)
        cache = model.init_cache(batch_dims, cache_length, window=self.window)
        cache = model.prefill(prompts, cache, prompt_lengths, prefix_lm=self.prefix_lm)

        def step(
            position: mtf.Tensor, ids: mtf.Tensor, cache: Any
        ) -> tuple[mtf.Tensor, Any]:
            """Returns the logits of the next id [batch, vocab], and the updated cache."""
            # Position 0 of the generated sequence is the last id of the prompt.
            return model.decode_step(position + (padded_length - 1), ids, cache)

        return step, cache

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
          max_new_tokens: the maximum count of ids generated for a prompt, not more than
            the decoder's `max_new_tokens`; None: that count.
          seed: the seed of random draws.

        Raises:
          PromptError: a prompt is empty, too long, or has an id outside of the
            vocabulary.
          PlanError: `max_new_tokens` is more than the decoder's.
          ShapeError: there are more positions than learned positions.
        """
        batches = self.iterate(prompts, max_new_tokens=max_new_tokens, seed=seed)
        return [completion for batch in batches for completion in batch]

    def iterate(
        self,
        prompts: Iterable[Sequence[int]],
        max_new_tokens: int | None = None,
        seed: int = 0,
    ) -> Iterator[list[Completion]]:
        """Yields the completions of each batch; arguments are those of `__call__`."""
        if max_new_tokens is None:
            max_new_tokens = self.max_new_tokens
        if not 1 <= max_new_tokens <= self.max_new_tokens:
            raise mtf.PlanError(
                f"max_new_tokens={max_new_tokens}, but the decoder generates 1 to "
                f"{self.max_new_tokens}.\n  Make it with "
                f"Decoder(..., max_new_tokens={max_new_tokens})."
            )
        if not self.has_encoder:
            self.model.embeddings.check_length(self._lengths.max_cache)
        all_prompts = []
        for index, prompt in enumerate(prompts):
            ids = [int(token_id) for token_id in prompt]
            self._check_prompt(index, ids)
            all_prompts.append(self._truncate(ids))
        for start in range(0, len(all_prompts), self.batch_size):
            batch = all_prompts[start : start + self.batch_size]
            yield self._complete(
                batch, max_new_tokens, seed=seed, batch_index=start // self.batch_size
            )

    def _complete(
        self,
        prompts: Sequence[list[int]],
        max_new_tokens: int,
        seed: int,
        batch_index: int,
    ) -> list[Completion]:
        """Returns the completions of at most `batch_size` prompts."""
        # Copies of the last prompt pad a batch, so that all batches have the same size.
        num_missing = self.batch_size - len(prompts)
        padded_batch = [*prompts, *[prompts[-1]] * num_missing]
        if self.has_encoder:
            assert self.bos_id is not None, "the decoder of an encoder-decoder needs it"
            all_inputs = padded_batch
            initial_ids = [self.bos_id] * self.batch_size
        else:
            bos_ids = [] if self.bos_id is None else [self.bos_id]
            all_inputs = [bos_ids + ids for ids in padded_batch]
            initial_ids = [ids[-1] for ids in all_inputs]
        input_lengths = np.array([len(ids) for ids in all_inputs], np.int32)
        inputs = pad(all_inputs, self._lengths.of_inputs(int(input_lengths.max())))
        # The initial id, then -1 where ids are to be generated.
        tokens = np.full((self.batch_size, self._lengths.generated), -1, np.int32)
        tokens[:, 0] = initial_ids
        sequences, scores = self._generate_batch(
            tokens,
            inputs,
            prompt_lengths=None if self.has_encoder else input_lengths,
            max_length=np.int32(1 + max_new_tokens),
            seed=np.int32(seed),
            batch_index=np.int32(batch_index),
        )
        new_ids = sequences.numpy()[: len(prompts), 1 : 1 + max_new_tokens].tolist()
        # Scores of the prompts that pad the batch come last, and are left out by `zip`.
        return [
            Completion(until_eos(ids, self.eos_id), float(score))
            for ids, score in zip(new_ids, scores.numpy())
        ]

    def _truncate(self, ids: list[int]) -> list[int]:
        """Returns at most `max_prompt_length` ids of a prompt: the first for an encoder, the
        last for a language model.
        """
        if self.has_encoder:
            return ids[: self.max_prompt_length]
        return ids[-self.max_prompt_length :]

    def _check_prompt(self, index: int, ids: list[int]) -> None:
        """Raises PromptError if a prompt is empty, too long to be processed without
        truncation, or has an id outside of the vocabulary.
        """
        if not ids and (self.bos_id is None or self.has_encoder):
            raise PromptError(
                f"prompt {index + 1} is empty.\n  Give it at least one id."
            )
        check_vocabulary(index, ids, self.model.architecture.vocab)
        if not self.truncate:
            check_length(index, ids, self.max_prompt_length)
