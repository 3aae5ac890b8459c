"""Generation of texts after prompts: a `Decoder` with the vocabulary of a trained model.

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
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel
from transformer.training.load_trained import Trained


class TextCompletion(NamedTuple):
    """What a model generates for a prompt.

    Attributes:
      prompt: the text of the prompt.
      text: the generated text without the prompt, up to the end or a stop string.
      score: see `Completion`.
    """

    prompt: str
    text: str
    score: float


def generate_texts(
    trained: Trained,
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
      trained: the model.
      prompts: texts to complete, or an encoder's inputs.
      stop: strings before which a completion ends.
      max_prompt_length: longer prompts are truncated to this many ids; None: no prompt
        is.
      seed: of the random draws.
      **settings: of `Decoder`.

    Raises:
      PromptError: a prompt is empty, or too long for the positions of the model.
      DataError: the model does not generate.
    """
    vocabulary = trained.data.vocabulary
    has_encoder = isinstance(trained.model, EncoderDecoder)
    prompt_ids = [
        _encode(vocabulary, i, prompt, has_encoder) for i, prompt in enumerate(prompts)
    ]
    longest = max(map(len, prompt_ids), default=1)
    decoder = make_decoder(
        trained,
        stop,
        max_prompt_length=min(max_prompt_length or longest, longest),
        truncate=max_prompt_length is not None,
        **settings,
    )
    remaining = zip(prompts, prompt_ids)
    for batch in decoder.iterate(prompt_ids, seed=seed):
        completions = []
        for completion, (prompt, ids) in zip(batch, remaining):
            context = [] if has_encoder else ids
            text = _decode_after(vocabulary, context, completion.ids)
            text = _until_stop(text, stop)
            completions.append(TextCompletion(prompt, text, completion.score))
        yield completions


def make_decoder(
    trained: Trained, stop: Sequence[str] = (), **settings: Any
) -> Decoder:
    """Returns a decoder with the special ids, the vocabulary size and the attention
    window of a trained model.

    Arguments and errors are those of `generate_texts`.
    """
    model = trained.model
    data = trained.data
    vocabulary = data.vocabulary
    if not isinstance(model, LanguageModel | EncoderDecoder):
        raise DataError(
            f"{type(model).__name__} does not generate text.\n"
            "  Use a language model or an encoder-decoder."
        )
    if "window" not in gin.get_bindings(Decoder):
        settings["window"] = data.features(1)["tokens"].shape[1]
    # Stop strings of one id end a sequence; longer ones are found in the text.
    stop_ids = [vocabulary.encode(text).tolist() for text in stop]
    single_ids = [ids[0] for ids in stop_ids if len(ids) == 1]
    return Decoder(
        model,
        eos_id=[vocabulary.eos_id, *single_ids],
        vocab_size=vocabulary.size,
        bos_id=None if isinstance(data, ByteText) else 0,
        prefix_lm="prefix" in data.features(1),
        **settings,
    )


def _encode(
    vocabulary: Vocabulary, index: int, prompt: str, has_encoder: bool
) -> list[int]:
    """Returns the ids of a prompt; those of an encoder end with `eos_id`.

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
    """Returns the text of ids, which may depend on the ids before them."""
    before = vocabulary.decode(np.array(context, np.int32))
    complete = vocabulary.decode(np.array([*context, *ids], np.int32))
    if complete.startswith(before):
        return complete[len(before) :]
    return vocabulary.decode(np.array(ids))


def _until_stop(text: str, stop: Sequence[str]) -> str:
    """Returns a text up to the first of the stop strings."""
    indices = [i for x in stop if (i := text.find(x)) >= 0]
    return text[: min(indices, default=len(text))]
