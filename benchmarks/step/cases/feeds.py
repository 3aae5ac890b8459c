"""Batches, and fixed values of the variables, equal for all libraries.

Example:

    for batch in batches(config): step(batch)        # arrays by name
    model.assign(fixed_values(config))
"""

from __future__ import annotations

import numpy as np

from benchmarks.step.cases.sizes import Config

Batch = dict[str, np.ndarray]
NUM_BATCHES = 4  # the number of different batches


def batches(config: Config) -> list[Batch]:
    """Returns batches of a language model, or of BERT's pretraining."""
    rng = np.random.default_rng(0)
    results = []
    for ids in _tokens(config, rng):
        tokens = np.ascontiguousarray(ids[:, :-1])
        if config.model == "bert":
            results.append(_bert_batch(config, tokens, rng))
        else:
            targets = np.ascontiguousarray(ids[:, 1:])
            results.append({"tokens": tokens, "targets": targets})
    return results


def _tokens(config: Config, rng: np.random.Generator) -> np.ndarray:
    """Returns tokens `[NUM_BATCHES, batch, length + 1]`, of which 90 % are a function of the
    previous token.
    """
    next_token = rng.permutation(config.vocab)
    tokens = np.empty([NUM_BATCHES, config.batch, config.length + 1], np.int32)
    tokens[..., 0] = rng.integers(0, config.vocab, tokens.shape[:2])
    for i in range(config.length):
        is_regular = rng.random(tokens.shape[:2]) < 0.9
        random_token = rng.integers(0, config.vocab, is_regular.shape)
        regular_token = next_token[tokens[..., i]]
        tokens[..., i + 1] = np.where(is_regular, regular_token, random_token)
    return tokens


def _bert_batch(config: Config, tokens: np.ndarray, rng: np.random.Generator) -> Batch:
    """Returns a batch for BERT: pairs of texts, some of them shorter, with masked tokens.

    Args:
      config: the sizes of the batch.
      tokens: the tokens `[batch, length]`.
      rng: the random generator.
    """
    tokens = np.maximum(tokens, 2)  # 0 is padding, 1 the mask token
    batch, length = tokens.shape
    # The end of the text of each example; after it there is padding.
    ends = rng.integers(length * 3 // 4, length + 1, [batch, 1])
    masked_positions = np.sort(
        [rng.permutation(length)[: config.num_masked] for _ in range(batch)]
    )
    masked_positions = masked_positions.astype(np.int32)
    masked_ids = np.take_along_axis(tokens, masked_positions, 1)
    np.put_along_axis(tokens, masked_positions, values=1, axis=1)
    tokens[np.arange(length) >= ends] = 0
    is_second_text = (np.arange(length) >= length // 2) & (tokens > 0)
    return {
        "tokens": tokens,
        "token_types": is_second_text.astype(np.int32),
        "masked_positions": masked_positions,
        "masked_ids": masked_ids,
        "masked_weights": (masked_positions < ends).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, batch).astype(np.int32),
    }


def fixed_values(config: Config) -> dict[str, np.ndarray]:
    """Returns values of all variables by name, equal for every case."""
    rng = np.random.default_rng(1)
    values = {}
    for name, shape in config.shapes().items():
        normal = rng.standard_normal(shape, np.float32)
        if name.endswith("scale"):
            values[name] = 1 + 0.1 * normal
        elif name.endswith("bias"):
            values[name] = 0.1 * normal
        else:
            values[name] = normal * np.float32(0.5 * config.fan_in(name) ** -0.5)
    return values
