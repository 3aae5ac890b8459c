"""One generated text, as a training run shows it."""

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
    number: int = 200,
    temperature: float = 0.7,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    begin: int | None = None,
) -> str:
    """Returns `prompt` and its continuation by a language model; or the output of an
    encoder-decoder.

    Args:
      model: a language model or an encoder-decoder.
      length: how many of the last ids a position attends to.
      prompt: the start of the text, or the input of an encoder.
      number: the maximum count of ids that are generated; learned positions limit it
        further.
      temperature: logits are divided by it; 0 always takes the likeliest id.
      seed: another seed gives another text.
      vocabulary: maps text to ids and back; default: bytes.
      begin: the id at the start of every text; see `Decoder`.
    """
    vocabulary = vocabulary or RawBytes()
    ids = vocabulary.encode(prompt).tolist()
    if model.architecture.positions == "learned":
        number = max(min(number, model.architecture.max_length - len(ids) - 1), 1)
    decoder = Decoder(
        model,
        number,
        max(len(ids), 1),
        batch_size=1,
        end=vocabulary.end,
        begin=begin,
        temperature=temperature,
        window=length,
        vocab=vocabulary.size,
    )
    (written,) = decoder([ids], seed=seed)
    text_ids = written.ids if decoder.encodes else [*ids, *written.ids]
    return vocabulary.decode(np.array(text_ids, np.int32))
