"""One text that a model writes, as a training run shows it."""

from __future__ import annotations

import gin
import numpy as np

from transformer.data import RawBytes, Vocabulary
from transformer.inference.decoder import Decoder
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel


@gin.configurable
def sample(
    model: LanguageModel | EncoderDecoder,
    length: int,
    prompt: str = "def ",
    max_new_tokens: int = 200,
    temperature: float = 0.7,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    bos_id: int | None = None,
) -> str:
    """Returns `prompt` and what a language model goes on with; or what an
    encoder-decoder answers.

    Args:
      model: what writes.
      length: how many of the last ids it sees.
      prompt: what the text begins with.
      max_new_tokens: the most ids that are written; no more than there are learned
        positions.
      temperature: below 1 likely ids become likelier; 0 always takes the likeliest.
      seed: another seed, another text.
      vocabulary: what ids stand for; bytes, if none is given.
      bos_id: the id before every text; see `Decoder`.
    """
    vocabulary = vocabulary or RawBytes()
    ids = vocabulary.encode(prompt).tolist()
    if model.architecture.positions == "learned":
        max_new_tokens = max(
            min(max_new_tokens, model.architecture.max_length - len(ids) - 1), 1
        )
    decoder = Decoder(
        model,
        max_new_tokens,
        max(len(ids), 1),
        batch_size=1,
        eos_id=vocabulary.eos_id,
        bos_id=bos_id,
        temperature=temperature,
        window=length,
        vocab=vocabulary.size,
    )
    (written,) = decoder([ids], seed=seed)
    return vocabulary.decode(
        np.array([*([] if decoder.encodes else ids), *written.ids], np.int32)
    )
