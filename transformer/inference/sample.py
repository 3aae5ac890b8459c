"""The text that a training run prints at its end, to show what the model has learned.

Example:

    check_sample_settings()                              # before training
    print_sample(model, data.vocabulary, features)       # after it
"""

from __future__ import annotations

from collections.abc import Mapping

import gin
import numpy as np

import meshtf as mtf
from transformer.cli import gin_settings
from transformer.data import RawBytes, Vocabulary
from transformer.data.array_spec import ArraySpec
from transformer.inference.decoder import Decoder
from transformer.models.base import Model
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


def check_sample_settings() -> None:
    """Raises ParseError if gin binds a setting of `sample` that is out of its range.

    A run calls it before it trains, since it calls `sample` only at its end.
    """
    bindings = gin.get_bindings(sample, resolve_references=False)
    settings = gin_settings.resolve_macros(bindings)
    max_new_tokens = settings.get("max_new_tokens", 1)
    if max_new_tokens < 1:
        raise mtf.ParseError(
            f"sample.max_new_tokens is {max_new_tokens}: it must be at least 1."
        )
    temperature = settings.get("temperature", 0.0)
    if temperature < 0:
        raise mtf.ParseError(
            f"sample.temperature is {temperature}: it must be at least 0."
        )
    if settings.get("prompt") == "" and settings.get("bos_id") is None:
        raise mtf.ParseError(
            "sample.prompt is empty: the first token would have nothing to follow.\n"
            "  Give it at least one letter."
        )


def print_sample(
    model: Model, vocabulary: Vocabulary, features: Mapping[str, ArraySpec]
) -> None:
    """Prints a text that a model generates, if it is a language model of bytes.

    Args:
      model: the model.
      vocabulary: the vocabulary of its training data.
      features: the shape and dtype of each feature of a batch; that of "tokens" has the
        length of the attention window.
    """
    if not isinstance(model, LanguageModel) or not isinstance(vocabulary, RawBytes):
        return
    mesh = model.mesh
    # A live mesh runs its programs on JAX's devices. `mesh.stages` is the name of the axis
    # of pipeline stages.
    if mesh.live and mesh.num_stages > 1:
        print(
            "\nno sample: decoding is one loop over all stages of a pipeline, which a "
            "live mesh cannot run. transformer.decode reads the checkpoint on a mesh "
            "without stages.\n"
        )
        return
    _, length = features["tokens"].shape
    print(f"\n{sample(model, length)}\n")
