"""Generation of texts after prompts: a `Decoder` with the vocabulary of a trained model.

Example:

    trained = Trained.of("runs/lm_stdlib")
    for batch in generate_texts(trained, ["def ", "class "], stop=["\\n\\n"]):
      for completion in batch:
        print(completion.prompt + completion.text)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gin
import numpy as np

from transformer.data import ByteText, DataError, Vocabulary
from transformer.inference.decoder import Decoder
from transformer.inference.prompts import PromptError
from transformer.inference.trained_model import TrainedModel
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel


class TextCompletion(NamedTuple):
    """The text that a model generates for a prompt.

    Attributes:
      prompt: the text of the prompt.
      text: the generated text, without the prompt, and without the first stop string and
        the text after it.
      score: the log-probability of the generated ids in nats: see `Completion.score`.
    """

    prompt: str
    text: str
    score: float


def generate_texts(
    trained: TrainedModel,
    prompts: Sequence[str],
    stop: Sequence[str] = (),
    max_prompt_length: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Iterator[list[TextCompletion]]:
    """Yields the completions of prompts, batch by batch.

    The attention window is the length of training examples, unless gin binds
    `Decoder.window`.

    Args:
      trained: the trained model, with its vocabulary.
      prompts: the texts to complete, or an encoder's inputs.
      stop: strings before which a completion ends.
      max_prompt_length: longer prompts are truncated to this count of ids; None: no prompt
        is truncated.
      seed: the seed of random draws.
      **settings: further arguments of `Decoder`, such as `temperature`.

    Raises:
      PromptError: a prompt is empty, or too long for the positions of the model.
      DataError: the model does not generate.
    """
    vocabulary = trained.data.vocabulary
    has_encoder = isinstance(trained.model, EncoderDecoder)
    prompt_ids = [
        _encode(vocabulary, index, prompt, has_encoder=has_encoder)
        for index, prompt in enumerate(prompts)
    ]
    longest_prompt = max(map(len, prompt_ids), default=1)  # its count of ids
    decoder = make_decoder(
        trained,
        stop,
        max_prompt_length=min(max_prompt_length or longest_prompt, longest_prompt),
        truncate=max_prompt_length is not None,
        **settings,
    )
    # An iterator: each batch takes the next prompts.
    prompts_with_ids = zip(prompts, prompt_ids)
    for batch in decoder.iterate(prompt_ids, seed=seed):
        completions = []
        for completion, (prompt, ids) in zip(batch, prompts_with_ids):
            context = [] if has_encoder else ids
            text = _decode_after(vocabulary, context, completion.ids)
            text = _until_stop(text, stop)
            completions.append(TextCompletion(prompt, text, completion.score))
        yield completions


def make_decoder(
    trained: TrainedModel, stop: Sequence[str] = (), **settings: Any
) -> Decoder:
    """Returns a decoder with the special ids, the vocabulary size and the attention window
    of a trained model.

    Args:
      trained: the trained model, with its vocabulary.
      stop: strings before which a completion ends.
      **settings: further arguments of `Decoder`.

    Raises:
      DataError: the model does not generate.
    """
    model = trained.model
    data = trained.data
    vocabulary = data.vocabulary
    if not isinstance(model, LanguageModel | EncoderDecoder):
        raise DataError(
            f"{type(model).__name__} does not generate text.\n"
            "  Use a language model or an encoder-decoder."
        )
    features = data.features(batch_size=1)
    if "window" not in gin.get_bindings(Decoder):
        settings["window"] = features["tokens"].shape[1]
    # A stop string of one id ends a sequence, as `eos_id` does. The decoder does not know
    # stop strings of several ids: `generate_texts` searches for them in the text.
    ids_of_stops = [vocabulary.encode(text).tolist() for text in stop]
    stop_ids = [ids[0] for ids in ids_of_stops if len(ids) == 1]
    return Decoder(
        model,
        eos_id=[vocabulary.eos_id, *stop_ids],
        vocab_size=vocabulary.size,
        # Training examples start with the id 0, except windows of raw bytes.
        bos_id=None if isinstance(data, ByteText) else 0,
        # Data for a prefix language model mark the prefix of each example.
        prefix_lm="prefix" in features,
        **settings,
    )


def _encode(
    vocabulary: Vocabulary, index: int, prompt: str, has_encoder: bool
) -> list[int]:
    """Returns the ids of a prompt; for an encoder, with `eos_id` at the end.

    Args:
      vocabulary: encodes the prompt.
      index: the index of the prompt, from 0, for the message.
      prompt: the text of the prompt.
      has_encoder: whether the prompt is an encoder's input.

    Raises:
      PromptError: the prompt is empty.
    """
    ids: list[int] = vocabulary.encode(prompt).tolist()
    if not ids:
        raise PromptError(
            f"prompt {index + 1} is empty.\n  Give it at least one letter, or remove its "
            "line."
        )
    return [*ids, vocabulary.eos_id] if has_encoder else ids


def _decode_after(vocabulary: Vocabulary, context: list[int], ids: list[int]) -> str:
    """Returns the text of ids that follow a context.

    The text may depend on the context: the first word, for example, starts with a space
    only if there is text before it.
    """
    context_text = vocabulary.decode(np.array(context, np.int32))
    full_text = vocabulary.decode(np.array([*context, *ids], np.int32))
    if full_text.startswith(context_text):
        return full_text[len(context_text) :]
    return vocabulary.decode(np.array(ids))


def _until_stop(text: str, stop: Sequence[str]) -> str:
    """Returns a text up to the first occurrence of a stop string."""
    end = len(text)
    for stop_string in stop:
        index = text.find(stop_string)
        if index >= 0:
            end = min(end, index)
    return text[:end]
