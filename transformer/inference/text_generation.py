"""Generation of texts: `Decoder` with the vocabulary of a trained model.

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
from transformer.inference.decoder import Decoder
from transformer.inference.results import PromptError
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel
from transformer.training.load_trained import Trained


class Text(NamedTuple):
    """The generated continuation of a prompt.

    Attributes:
      prompt: the prompt.
      text: without the prompt; up to the end id, or to the first stop text.
      score: see `Written`.
    """

    prompt: str
    text: str
    score: float


def write(
    trained: Trained,
    prompts: Sequence[str],
    stop: Sequence[str] = (),
    cut: int | None = None,
    seed: int = 0,
    **settings: Any,
) -> Iterator[list[Text]]:
    """Yields the generated continuation of each prompt, batch by batch.

    A language model attends to no more ids at a time than it did in training, unless gin
    has `Decoder.window`.

    Args:
      trained: the model.
      prompts: the starts of texts, or the inputs of an encoder.
      stop: generation ends before the first of these texts.
      cut: prompts are truncated to this count of ids; None: none is truncated.
      seed: another seed gives other samples.
      **settings: of `Decoder`.

    Raises:
      PromptError: a prompt is empty, or too long for the positions of the model.
      DataError: the model generates no texts.
    """
    vocabulary = trained.data.vocabulary
    encodes = isinstance(trained.model, EncoderDecoder)
    prompt_ids = [
        _encode_prompt(vocabulary, index, prompt, encodes)
        for index, prompt in enumerate(prompts)
    ]
    longest = max(map(len, prompt_ids), default=1)
    decoder = decoder_of(
        trained,
        stop,
        prompt_length=min(cut or longest, longest),
        cut=cut is not None,
        **settings,
    )
    start = 0
    for batch in decoder.each(prompt_ids, seed=seed):
        texts = []
        for index, written in enumerate(batch, start):
            context = [] if encodes else prompt_ids[index]
            continuation = _decode_after(vocabulary, context, written.ids)
            text = _before_stop(continuation, stop)
            texts.append(Text(prompts[index], text, written.score))
        yield texts
        start += len(batch)


def decoder_of(trained: Trained, stop: Sequence[str] = (), **settings: Any) -> Decoder:
    """Returns a decoder with the end ids, the start id and the window that a model was
    trained with.

    Arguments and errors are those of `write`.
    """
    model = trained.model
    data = trained.data
    vocabulary = data.vocabulary
    if not isinstance(model, LanguageModel | EncoderDecoder):
        raise DataError(
            f"{type(model).__name__} does not predict the next id from those before.\n"
            "  Take a language model or an encoder-decoder."
        )
    if "window" not in gin.get_bindings(Decoder):
        settings["window"] = data.features(1)["tokens"].shape[1]
    # Stop texts of one id end generation at once; `write` truncates at the others.
    end_ids = [vocabulary.end]
    for text in stop:
        ids = vocabulary.encode(text).tolist()
        if len(ids) == 1:
            end_ids.append(ids[0])
    return Decoder(
        model,
        end=end_ids,
        vocab=vocabulary.size,
        begin=None if isinstance(data, ByteText) else 0,
        prefix="prefix" in data.features(1),
        **settings,
    )


def _encode_prompt(
    vocabulary: Vocabulary, index: int, prompt: str, encodes: bool
) -> list[int]:
    """Returns the ids of a prompt, of an encoder with the end id. Raises PromptError if
    it is empty.
    """
    ids: list[int] = vocabulary.encode(prompt).tolist()
    if not ids:
        raise PromptError(
            f"prompt {index + 1} is empty.\n  Give it at least one letter, or leave "
            "the line out."
        )
    return [*ids, vocabulary.end] if encodes else ids


def _decode_after(vocabulary: Vocabulary, context: list[int], ids: list[int]) -> str:
    """Returns the text of ids, which may depend on the ids before them."""
    context_ids = np.array(context, np.int32)
    all_ids = np.array([*context, *ids], np.int32)
    context_text = vocabulary.decode(context_ids)
    text = vocabulary.decode(all_ids)
    if text.startswith(context_text):
        return text[len(context_text) :]
    return vocabulary.decode(np.array(ids))


def _before_stop(text: str, stop: Sequence[str]) -> str:
    """Returns the text before the first of the stop texts."""
    end = len(text)
    for stop_text in stop:
        index = text.find(stop_text)
        if index >= 0:
            end = min(end, index)
    return text[:end]
