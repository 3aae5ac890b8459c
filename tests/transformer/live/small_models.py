"""Small models with data that they can learn: `MODELS`, by name.

model, batch = MODELS["BERT"](mesh)
batch(3)            # the arrays of step 3, by feature
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

import meshtf as mtf
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.models.architecture import Architecture
from transformer.models.base import Batch, Model
from transformer.models.bert import Bert, bert_architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

Arrays: TypeAlias = dict[str, np.ndarray]
BatchOfStep: TypeAlias = Callable[[int], Arrays]
LENGTH = 16
VOCAB = 64
SIZES: Mapping[str, Any] = {
    "vocab": VOCAB,
    "d_model": 16,
    "d_ff": 32,
    "heads": 4,
    "d_kv": 8,
    "blocks": 2,
    "dropout": 0.1,
}
PADDING, FIRST, SEPARATOR, MASK = range(4)
WORDS = VOCAB - 4  # ids from 4 on


def bert(mesh: mtf.Mesh) -> tuple[Model, BatchOfStep]:
    """Returns BERT, which is pretrained on masked tokens and next sentences.

    It has one block, since XLA takes twenty seconds for each block of BERT with dropout.
    """
    architecture = bert_architecture(**{**SIZES, "blocks": 1}, max_length=LENGTH)
    return Bert(mesh, architecture), pairs_of_sentences


def encoder_decoder(mesh: mtf.Mesh) -> tuple[Model, BatchOfStep]:
    """Returns a model as T5: relative positions, scores without a scale, smoothed labels."""
    architecture = Architecture(
        **SIZES,
        activation="relu",
        positions="relative",
        buckets=8,
        max_distance=16,
        tied=True,
        scaled_attention=False,
    )
    return EncoderDecoder(mesh, architecture, label_smoothing=0.1), continued_sentences


def language_model(
    mesh: mtf.Mesh, blocks: int = 4, **options: Any
) -> tuple[Model, BatchOfStep]:
    """Returns a language model, with options of its architecture."""
    architecture = Architecture(**{**SIZES, "blocks": blocks, **options})
    return LanguageModel(mesh, architecture), texts


class Staged(Model):
    """Layers that differ from one another, as stages: embeddings, feed-forward layers of which
    each has another size, and logits. It predicts words from the word before.
    """

    features: Mapping[str, str] = {"tokens": "batch;length", "targets": "batch;length"}

    def __init__(self, mesh: mtf.Mesh, **options: Any) -> None:
        super().__init__(mesh, None, "staged")
        layers: list[Callable[[mtf.Tensor], mtf.Tensor]] = []
        with self.scope():
            vocab, d_model = f"vocab:{VOCAB}", "d_model:16"
            layers.append(mtf.layers.Embedding(mesh, vocab, d_model))
            for k in range(4):
                layers.append(Residual(mesh, d_model, f"d_ff:{16 * (k + 1)}", k))
            layers.append(mtf.layers.Dense(mesh, d_model, vocab, name="logits"))
            self.pipe = mtf.pipeline.GPipe(layers, mesh.num_stages, **options)

    def loss_and_reports(
        self, batch: Batch, training: bool = False
    ) -> tuple[mtf.Tensor, dict[str, Any]]:
        def loss_of(logits: mtf.Tensor, targets: mtf.Tensor) -> mtf.Tensor:
            return mtf.layers.softmax_cross_entropy(logits, targets, "vocab")

        return self.pipe.loss(loss_of, batch["tokens"], batch["targets"]), {}


class Residual(mtf.Module):
    """A feed-forward layer with dropout around which its input goes, [..., d_model]."""

    def __init__(self, mesh: mtf.Mesh, d_model: str, d_ff: str, index: int) -> None:
        super().__init__(f"residual_{index}")
        with self.scope():
            self.feed_forward = mtf.layers.FeedForward(mesh, d_model, d_ff, name="ff")

    def __call__(self, x: mtf.Tensor) -> mtf.Tensor:
        return x + mtf.dropout(self.feed_forward(x), 0.1)


def pipeline(mesh: mtf.Mesh, **options: Any) -> tuple[Model, BatchOfStep]:
    """Returns layers that differ as stages, with options such as the schedule."""
    return Staged(mesh, **{"microbatches": 4, "cost": [1] * 6, **options}), texts


def experts(mesh: mtf.Mesh, count: int) -> tuple[Model, BatchOfStep]:
    """Returns a language model with `count` experts in its second block. Tokens go through
    two of them, and no random number has a say in which.
    """
    mixture = functools.partial(
        MixtureOfExperts, experts=count, gating=gating.top_k, balance_weight=0.1
    )
    architecture = Architecture(**SIZES, moe_every=2, mixture=mixture)
    batch = functools.partial(texts, size=32, length=8)
    return LanguageModel(mesh, architecture), batch


MODELS: Mapping[str, Callable[..., tuple[Model, BatchOfStep]]] = {
    "BERT": bert,
    "encoder-decoder": encoder_decoder,
    "language model": language_model,
    "pipeline": pipeline,
    "experts": experts,
}


def _sentences(
    rng: np.random.Generator, shape: tuple[int, int], first_words: int = WORDS
) -> np.ndarray:
    """Returns sentences [batch, length] of ids in their order, from a random one on; two out
    of ten are other words.

    Args:
      rng: what draws them.
      shape: the shape.
      first_words: the count of words with which sentences start.
    """
    batch, length = shape
    starts = rng.integers(0, first_words, (batch, 1))
    noise = rng.integers(0, WORDS, shape) * (rng.random(shape) < 0.2)
    return 4 + (starts + np.arange(length) + noise) % WORDS


def texts(step: int, size: int = 16, length: int = LENGTH) -> Arrays:
    """Returns a batch of texts [size, length]."""
    sentences = _sentences(np.random.default_rng(step), (size, length + 1))
    return {
        "tokens": np.ascontiguousarray(sentences[:, :-1], "int32"),
        "targets": np.ascontiguousarray(sentences[:, 1:], "int32"),
    }


def pairs_of_sentences(step: int, size: int = 16) -> Arrays:
    """Returns a batch of pairs of sentences, of which half follow each other, with three
    masked tokens at most: features of `Bert`.
    """
    rng = np.random.default_rng(step)
    words = _sentences(rng, (size, LENGTH))
    follows = rng.random(size) < 0.5
    others = _sentences(rng, (size, LENGTH))
    ends = rng.integers(4, 7, size)  # of first sentences
    lengths = ends + rng.integers(4, 8, size)
    positions = np.arange(LENGTH)
    is_second = (positions > ends[:, None]) & (positions <= lengths[:, None])
    tokens = np.where(is_second & ~follows[:, None], others, words)
    tokens[:, 0] = FIRST
    tokens[np.arange(size), ends] = SEPARATOR
    tokens[positions > lengths[:, None]] = PADDING
    masked = np.stack([1 + rng.choice(3, 3, replace=False) for _ in range(size)])
    masked[:, 2] = ends + 1  # of the second sentence
    weights = np.ones((size, 3), "float32")
    weights[:, 0] = rng.random(size) < 0.7  # some examples have fewer
    masked_ids = np.take_along_axis(tokens, masked, 1)
    np.put_along_axis(tokens, masked, MASK, 1)
    return {
        "tokens": tokens.astype("int32"),
        "token_types": is_second.astype("int32"),
        "masked_positions": masked.astype("int32"),
        "masked_ids": masked_ids.astype("int32"),
        "masked_weights": weights,
        "next_sentence_labels": (~follows).astype("int32"),
    }


def continued_sentences(step: int, size: int = 16) -> Arrays:
    """Returns a batch of sentences of different lengths, and the words that follow each as
    targets, of which a tenth has no weight: features of `EncoderDecoder`.
    """
    rng = np.random.default_rng(step)
    sentences = _sentences(rng, (size, LENGTH + LENGTH // 2), first_words=4)
    inputs, targets = sentences[:, :LENGTH], sentences[:, LENGTH:]
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, (size, 1))
    # Padding comes first, so that the last word is there.
    is_padding = np.arange(LENGTH) < LENGTH - lengths
    weights = rng.random(targets.shape) < 0.9
    return {
        "inputs": np.where(is_padding, PADDING, inputs).astype("int32"),
        "tokens": sentences[:, LENGTH - 1 : -1].astype("int32"),
        "targets": targets.astype("int32"),
        "weights": weights.astype("float32"),
    }
