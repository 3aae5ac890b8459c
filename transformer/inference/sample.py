"""The text that a training run prints at its end, to show what the model has learned.

Example:

    print(sample(model, length=128, prompt="def "))
"""

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
    """Returns a prompt with its completion by a language model, or the output of an
    encoder-decoder for the prompt.

    Args:
      model: the model that generates.
      length: the attention window: the count of the last positions that a position attends
        to.
      prompt: the text to complete.
      max_new_tokens: the maximum count of generated ids; learned positions may allow
        fewer.
      temperature: the divisor of logits before sampling; 0: the likeliest id is taken.
      seed: the seed of random draws.
      vocabulary: encodes the prompt and decodes ids; None: bytes.
      bos_id: the id before the prompt; see `Decoder`.
    """
    vocabulary = vocabulary or RawBytes()
    ids = vocabulary.encode(prompt).tolist()
    if model.architecture.positions == "learned":
        # One position is for `bos_id`.
        num_free_positions = model.architecture.max_length - len(ids) - 1
        max_new_tokens = max(min(max_new_tokens, num_free_positions), 1)
    decoder = Decoder(
        model,
        max_new_tokens=max_new_tokens,
        max_prompt_length=max(len(ids), 1),
        batch_size=1,
        eos_id=vocabulary.eos_id,
        bos_id=bos_id,
        temperature=temperature,
        window=length,
        vocab_size=vocabulary.size,
    )
    (completion,) = decoder([ids], seed=seed)
    output_ids = completion.ids
    if not decoder.has_encoder:
        output_ids = [*ids, *completion.ids]
    return vocabulary.decode(np.array(output_ids, np.int32))
