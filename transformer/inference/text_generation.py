"""Texts in, texts out: a trained model's vocabulary around its `Decoder`.

Example:

    for batch in write(Trained.of("runs/lm_stdlib"), ["def ", "class "], stop=["\\n\\n"]):
      for text in batch:
        print(text.prompt + text.text)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gin
import numpy as np

from transformer.data import ByteText, DataError, Vocabulary
from transformer.inference.decoder import Decoder, PromptError
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel
from transformer.training.load_trained import Trained


class Text(NamedTuple):
    """What was written after a prompt."""

    prompt: str
    text: str  # without the prompt; up to an end, or to what it is to stop before
    score: float  # see `Written`


def write(
    trained: Trained,
    prompts: Sequence[str],
    stop: Sequence[str] = (),
    truncate: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Iterator[list[Text]]:
    """Yields what a model writes after each prompt, batch by batch.

    A language model sees no more ids at a time than it did in training, if gin has no
    `Decoder.window`.

    Args:
      trained: the model.
      prompts: what texts begin with, or what an encoder reads.
      stop: texts that end a text.
      truncate: prompts are truncated to this many ids; None: none is truncated.
      seed: another seed, other draws.
      **settings: of `Decoder`.

    Raises:
      PromptError: a prompt is empty, or too long for the positions of the model.
      DataError: the model writes no texts.
    """
    vocabulary, encodes = (
        trained.data.vocabulary,
        isinstance(trained.model, EncoderDecoder),
    )
    given = [_ids(vocabulary, i, prompt, encodes) for i, prompt in enumerate(prompts)]
    longest = max(map(len, given), default=1)
    decoder = decoder_of(
        trained,
        stop,
        prompt_length=min(truncate or longest, longest),
        truncate=truncate is not None,
        **settings,
    )
    done = 0
    for some in decoder.each(given, seed=seed):
        yield [
            Text(
                prompt,
                _before(_after(vocabulary, [] if encodes else ids, written.ids), stop),
                written.score,
            )
            for prompt, ids, written in zip(prompts[done:], given[done:], some)
        ]
        done += len(some)


def decoder_of(trained: Trained, stop: Sequence[str] = (), **settings: Any) -> Decoder:
    """Returns a decoder for what a model learned: its ends, its beginnings, and how far
    it sees.

    Arguments and errors are those of `write`.
    """
    model, data, vocabulary = trained.model, trained.data, trained.data.vocabulary
    if not isinstance(model, LanguageModel | EncoderDecoder):
        raise DataError(
            f"{type(model).__name__} does not write id by id from what came before.\n"
            "  Take a language model or an encoder-decoder."
        )
    if "window" not in gin.get_bindings(Decoder):
        settings["window"] = data.features(1)["tokens"].shape[1]
    single = [
        ids[0]
        for ids in (vocabulary.encode(text).tolist() for text in stop)
        if len(ids) == 1
    ]
    return Decoder(
        model,
        eos_id=[vocabulary.eos_id, *single],
        vocab=vocabulary.size,
        bos_id=None if isinstance(data, ByteText) else 0,
        prefix="prefix" in data.features(1),
        **settings,
    )


def _ids(vocabulary: Vocabulary, number: int, prompt: str, encodes: bool) -> list[int]:
    """Returns the ids of a prompt. Raises PromptError."""
    ids: list[int] = vocabulary.encode(prompt).tolist()
    if not ids:
        raise PromptError(
            f"prompt {number + 1} is empty.\n  Give it at least one letter, or leave "
            "the "
            "line out."
        )
    return [*ids, vocabulary.eos_id] if encodes else ids


def _after(vocabulary: Vocabulary, ids: list[int], more: list[int]) -> str:
    """Returns the text that more ids add, which may depend on those before."""
    before, both = (
        vocabulary.decode(np.array(x, np.int32)) for x in (ids, [*ids, *more])
    )
    return (
        both[len(before) :]
        if both.startswith(before)
        else vocabulary.decode(np.array(more))
    )


def _before(text: str, stop: Sequence[str]) -> str:
    return text[: min((i for x in stop if (i := text.find(x)) >= 0), default=len(text))]
