"""The models whose layouts `benchmarks.regret` compares: a language model, BERT, and a mixture
of experts, all of two blocks.

trainer, batch = make_trainer("moe", candidate, devices="spmd:cpu:8", sizes=SIZES)
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

import meshtf as mtf
from benchmarks.regret.candidates import Candidate
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.bert import Bert, bert_architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

SIZES: Mapping[str, int] = {
    "vocab": 1024,
    "d_model": 128,
    "d_ff": 512,
    "heads": 8,
    "d_kv": 16,
    "blocks": 1,
    "batch": 32,
    "length": 64,
}
_EXPERTS = 8
_MASKED = 8  # positions of each text that BERT predicts


def make_trainer(
    model: str,
    candidate: Candidate,
    devices: str | None,
    sizes: Mapping[str, int] = SIZES,
) -> tuple[Trainer, dict[str, np.ndarray]]:
    """Returns a trainer that has trained nothing yet, and a batch.

    Args:
      model: "lm", "bert" or "moe".
      candidate: the mesh, its layouts, recompute and microbatches.
      devices: the devices, as `mtf.Mesh` takes them.
      sizes: the sizes of the model and of its batch.
    """
    mesh = candidate.mesh(devices)
    settings: dict[str, Any] = dict(sizes)
    batch_size = settings.pop("batch")
    length = settings.pop("length")
    settings |= {"dropout": 0.0, "recompute": candidate.recompute}
    rng = np.random.default_rng(0)
    built: Model
    if model == "bert":
        built = Bert(mesh, bert_architecture(**settings, max_length=length))
        batch = _masked_texts(rng, batch_size, length, settings["vocab"])
    else:
        if model == "moe":
            settings["moe_every"] = 1
            settings["mixture"] = functools.partial(
                MixtureOfExperts, experts=_EXPERTS, gating=gating.top_k
            )
        built = LanguageModel(mesh, Architecture(**settings))
        ids = rng.integers(0, settings["vocab"], (batch_size, length + 1), np.int32)
        batch = {
            "tokens": np.ascontiguousarray(ids[:, :-1]),
            "targets": np.ascontiguousarray(ids[:, 1:]),
        }
    trainer = Trainer(built, mtf.optimizers.AdamW, microbatches=candidate.microbatches)
    return trainer, batch


def _masked_texts(
    rng: np.random.Generator, size: int, length: int, vocab: int
) -> dict[str, np.ndarray]:
    """Returns a batch of BERT's features."""
    shape = (size, length)
    masked = (size, _MASKED)
    return {
        "tokens": rng.integers(4, vocab, shape, np.int32),
        "token_types": np.zeros(shape, "int32"),
        "masked_positions": rng.integers(1, length, masked, np.int32),
        "masked_ids": rng.integers(4, vocab, masked, np.int32),
        "masked_weights": np.ones(masked, "float32"),
        "next_sentence_labels": rng.integers(0, 2, size, np.int32),
    }
