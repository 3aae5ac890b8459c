"""Batches of drawn training runs: arrays by feature, [batch, length] of ids from 1 on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tests.fuzz.models.training import Training

BATCH = 8
LENGTH = 8
MASKED = 3
IGNORED = -100
# "unequal": the first examples count entirely, one target of another, and others not at all.
WEIGHTS = ("none", "binary", "floats", "unequal", "zero")


def draw(run: Training, step: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step, padded as the run says."""
    rng = np.random.default_rng([run.seed, step])
    batch = _BATCHES[run.model](run, rng)
    if run.ignored:
        _ignore(batch)
    _pad(batch, run.padding)
    _append(batch, run.examples)
    return {
        name: x.astype("float32" if x.dtype.kind == "f" else "int32")
        for name, x in batch.items()
    }


def _language_model(run: Training, rng: np.random.Generator) -> dict[str, np.ndarray]:
    vocab = 16
    batch = {
        "tokens": rng.integers(1, vocab, (BATCH, LENGTH)),
        "targets": rng.integers(1, vocab, (BATCH, LENGTH)),
    }
    weights = _weights(run, rng, (BATCH, LENGTH))
    if run.segments:
        segments, positions = _segments(rng)
        batch |= {"segments": segments, "positions": positions}
        weights = (1.0 if weights is None else weights) * (segments > 0)
    if weights is not None:
        batch["weights"] = weights
    return batch


def _encoder_decoder(run: Training, rng: np.random.Generator) -> dict[str, np.ndarray]:
    batch = _language_model(run, rng)
    inputs = rng.integers(1, 16, (BATCH, LENGTH))
    if run.segments:
        batch["input_segments"], batch["input_positions"] = _segments(rng)
    else:
        inputs[:, LENGTH // 2 :] *= rng.integers(0, 2, (BATCH, 1))  # 0 is padding
    return {**batch, "inputs": inputs}


def _bert(run: Training, rng: np.random.Generator) -> dict[str, np.ndarray]:
    batch = _texts(rng)
    batch["masked_positions"] = np.stack(
        [rng.choice(LENGTH // 2, MASKED, replace=False) for _ in range(BATCH)]
    )
    batch["masked_ids"] = rng.integers(1, 16, (BATCH, MASKED))
    if run.model == "bert":
        batch["next_sentence_labels"] = rng.integers(0, 2, BATCH)
    weights = _weights(run, rng, (BATCH, MASKED))
    if weights is not None:
        batch["masked_weights"] = weights
    return batch


def _classifier(run: Training, rng: np.random.Generator) -> dict[str, np.ndarray]:
    batch = {**_texts(rng), "labels": rng.integers(0, 2, BATCH)}
    return _with_counts(run, rng, batch)


def _regressor(run: Training, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return _with_counts(run, rng, {**_texts(rng), "scores": rng.normal(size=BATCH)})


def _span_extractor(run: Training, rng: np.random.Generator) -> dict[str, np.ndarray]:
    batch = _texts(rng)
    batch["start"] = rng.integers(0, LENGTH // 2, BATCH)
    batch["end"] = rng.integers(0, LENGTH // 2, BATCH)
    return _with_counts(run, rng, batch)


_BATCHES = {
    "language_model": _language_model,
    "encoder_decoder": _encoder_decoder,
    "bert": _bert,
    "masked_bert": _bert,
    "classifier": _classifier,
    "regressor": _regressor,
    "span_extractor": _span_extractor,
}


def _texts(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Returns tokens with padding, id 0, and their types."""
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, (BATCH, 1))
    tokens = rng.integers(1, 16, (BATCH, LENGTH)) * (np.arange(LENGTH) < lengths)
    types = np.tile(np.arange(LENGTH) // (LENGTH // 2), (BATCH, 1))
    return {"tokens": tokens, "token_types": types}


def _with_counts(
    run: Training, rng: np.random.Generator, batch: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    counts = _weights(run, rng, (BATCH,))
    return batch if counts is None else {**batch, "counts": counts}


def _segments(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns two texts in each example, and padding: segments and positions."""
    first = rng.integers(2, LENGTH // 2, (BATCH, 1))
    both = rng.integers(LENGTH // 2, LENGTH + 1, (BATCH, 1))
    index = np.arange(LENGTH)
    segments = np.where(index < first, 1, np.where(index < both, 2, 0))
    return segments, np.where(index < first, index, index - first)


def _weights(
    run: Training, rng: np.random.Generator, shape: tuple[int, ...]
) -> np.ndarray | None:
    """Returns the weights of targets, of a kind of `WEIGHTS`; None: all are 1."""
    if run.weights == "none":
        return None
    if run.weights == "zero":
        return np.zeros(shape)
    if run.weights == "floats":
        return rng.uniform(0.1, 2.0, shape)
    if run.weights == "binary":
        return rng.integers(0, 2, shape).astype(float)
    weights = np.zeros(shape)
    weights[0] = 1.0
    weights[1].flat[0] = 1.0
    weights[5].flat[:2] = 1.0
    return weights


def _ignore(batch: dict[str, np.ndarray]) -> None:
    """Gives targets of weight 0 a negative label, and takes weights of 0 and 1 away."""
    for labels, weights in (("targets", "weights"), ("masked_ids", "masked_weights")):
        if labels in batch and weights in batch:
            batch[labels] = np.where(batch[weights] == 0, IGNORED, batch[labels])
            if set(np.unique(batch[weights])) <= {0.0, 1.0}:
                del batch[weights]


def _pad(batch: dict[str, np.ndarray], count: int) -> None:
    """Appends tokens that count for nothing to each example."""
    if not count:
        return
    if "targets" in batch and "weights" not in batch:
        batch["weights"] = np.ones((BATCH, LENGTH))
    for name, x in batch.items():
        if x.ndim == 2 and x.shape[1] == LENGTH:
            batch[name] = np.pad(x, [(0, 0), (0, count)])


def _append(batch: dict[str, np.ndarray], count: int) -> None:
    """Appends examples that count for nothing."""
    if not count:
        return
    batch.setdefault("counts", np.ones(BATCH))
    for name, x in batch.items():
        is_count = name == "counts"
        more = np.zeros(count) if is_count else np.repeat(x[:1], count, axis=0)
        batch[name] = np.concatenate([x, more])
