"""Batches, and fixed values of the variables, equal for all libraries.

Example:

    for batch in batches(config): step(batch)        # arrays by name
    model.assign(fixed_values(config))
"""

from __future__ import annotations

import numpy as np

from benchmarks.step.cases.sizes import Config

Batch = dict[str, np.ndarray]
BATCHES = 4


def batches(config: Config) -> list[Batch]:
    """Returns batches of a language model, or of BERT's pretraining."""
    rng = np.random.default_rng(0)
    rows = _rows(config, rng)
    if config.model == "bert":
        return [_masked(config, np.ascontiguousarray(row[:, :-1]), rng) for row in rows]
    return [
        {
            "tokens": np.ascontiguousarray(row[:, :-1]),
            "targets": np.ascontiguousarray(row[:, 1:]),
        }
        for row in rows
    ]


def _rows(config: Config, rng: np.random.Generator) -> np.ndarray:
    """Returns tokens `[BATCHES, batch, length + 1]`, of which 90 % are a function of the token
    before.
    """
    follows = rng.permutation(config.vocab)
    tokens = np.empty([BATCHES, config.batch, config.length + 1], np.int32)
    tokens[..., 0] = rng.integers(0, config.vocab, tokens.shape[:2])
    for i in range(config.length):
        is_regular = rng.random(tokens.shape[:2]) < 0.9
        other = rng.integers(0, config.vocab, is_regular.shape)
        tokens[..., i + 1] = np.where(is_regular, follows[tokens[..., i]], other)
    return tokens


def _masked(config: Config, tokens: np.ndarray, rng: np.random.Generator) -> Batch:
    """Returns a batch for BERT: pairs of texts, some of them shorter, with masked tokens."""
    tokens = np.maximum(tokens, 2)  # 0 is padding, 1 the mask token
    batch, length = tokens.shape
    ends = rng.integers(length * 3 // 4, length + 1, [batch, 1])
    positions = np.sort(
        [rng.permutation(length)[: config.masked] for _ in range(batch)]
    )
    positions = positions.astype(np.int32)
    ids = np.take_along_axis(tokens, positions, 1)
    np.put_along_axis(tokens, positions, 1, 1)
    tokens[np.arange(length) >= ends] = 0
    types = (np.arange(length) >= length // 2) & (tokens > 0)
    return {
        "tokens": tokens,
        "token_types": types.astype(np.int32),
        "masked_positions": positions,
        "masked_ids": ids,
        "masked_weights": (positions < ends).astype(np.float32),
        "next_sentence_labels": rng.integers(0, 2, batch).astype(np.int32),
    }


def fixed_values(config: Config) -> dict[str, np.ndarray]:
    """Returns values of all variables, equal for every case."""
    rng = np.random.default_rng(1)
    values = {}
    for name, shape in config.shapes().items():
        draw = rng.standard_normal(shape, np.float32)
        if name.endswith("scale"):
            values[name] = 1 + 0.1 * draw
        elif name.endswith("bias"):
            values[name] = 0.1 * draw
        else:
            values[name] = draw * np.float32(0.5 * config.fan_in(name) ** -0.5)
    return values
