"""A padded vocabulary, which a mesh can shard, gives the results of the unpadded one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.bert import Bert, bert_architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel
from transformer.training.training_run import Trainer

VOCAB, MULTIPLE, FILLED = 10, 8, 16
SIZES = {"vocab": VOCAB, "d_model": 16, "d_ff": 16, "heads": 2, "d_kv": 8, "blocks": 1}
PLAIN, TIED = Architecture(**SIZES), Architecture(**SIZES, tied=True, embedding_size=8)
BERT = bert_architecture(**SIZES, max_length=8, dropout=0.0)
KINDS = {
    "tied": (LanguageModel, TIED),
    "untied": (LanguageModel, PLAIN),
    "bfloat16": (LanguageModel, dataclasses.replace(PLAIN, dtype="bfloat16")),
    "encoder-decoder": (EncoderDecoder, PLAIN),
    "bert": (Bert, BERT),
}
SHARDED = {
    "axes": "data:2;model:2",
    "layout": "batch:data; vocab:model; heads:model; d_ff:model",
}


def outputs(kind, multiple, **mesh):
    """Returns a model whose vocabulary is filled up to a multiple."""
    make, architecture = KINDS[kind]
    return make(
        mtf.Mesh(**mesh or {"axes": ""}),
        dataclasses.replace(architecture, vocab_multiple=multiple),
    )


def batch_of(model, step):
    rng = np.random.default_rng(step)
    arrays = rng.integers(1, VOCAB, (3, 4, 8)).astype("int32")
    arrays = dict(zip(("tokens", "targets", "inputs"), arrays))
    if isinstance(model, Bert):
        return {
            "tokens": arrays["tokens"],
            "token_types": arrays["targets"] % 2,
            "masked_positions": arrays["targets"][:, :3] % 8,
            "masked_ids": arrays["inputs"][:, :3],
        }
    return (
        arrays
        if isinstance(model, EncoderDecoder)
        else {n: arrays[n] for n in ("tokens", "targets")}
    )


def losses(model):
    """Returns the losses and norms of gradients of some steps."""
    trainer = Trainer(model, lambda variables: mtf.optimizers.AdamW(variables, 0.01))
    results = [trainer.step(batch_of(model, step)) for step in range(3)]
    return np.array([[float(x) for x in step] for step in results])


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_the_tokens_alone(kind):
    far = 1e-2 if kind == "bfloat16" else 1e-5
    single_device = losses(outputs(kind, 1))
    np.testing.assert_allclose(losses(outputs(kind, MULTIPLE)), single_device, rtol=far)
    np.testing.assert_allclose(
        losses(outputs(kind, MULTIPLE, **SHARDED)), single_device, rtol=far
    )


def test_rows_that_fill_up_are_never_predicted():
    model = outputs("untied", MULTIPLE)
    kernel = model.logits.kernel
    drawn = np.random.default_rng(0).normal(size=kernel.shape.sizes).astype("float32")
    drawn[:, VOCAB:] *= 1000.0  # as far as it goes, they would be the most likely
    kernel.assign(mtf.asarray(model.mesh, drawn, kernel.shape))
    tokens = mtf.asarray(model.mesh, batch_of(model, 0)["tokens"], "batch;length")
    logits = model(tokens)
    assert logits.shape["vocab"] == FILLED
    probabilities = mtf.softmax(logits, "vocab").numpy()
    assert (probabilities[..., VOCAB:] == 0).all() and probabilities[
        ..., :VOCAB
    ].min() > 0
    assert mtf.argmax(logits, "vocab").numpy().max() < VOCAB
    with mtf.seed(0):
        assert mtf.categorical(logits, "vocab").numpy().max() < VOCAB
    sums = {
        name: float(x)
        for name, x in model.measure({"tokens": tokens, "targets": tokens}).items()
    }
    assert 0 < sums["nats"] < 1e6


def test_variables_have_the_dimension_that_is_filled_up():
    model = outputs("tied", MULTIPLE)
    assert model.embeddings.token_embedding.table.shape["vocab"] == FILLED
    assert Architecture(vocab=16, vocab_multiple=8).dim("vocab").size == 16


def test_a_vocabulary_that_is_filled_up_smooths_no_labels():
    architecture = dataclasses.replace(PLAIN, vocab_multiple=MULTIPLE)
    with pytest.raises(mtf.ShapeError, match="Architecture.vocab = 16"):
        EncoderDecoder(mtf.Mesh(""), architecture, label_smoothing=0.1)
    EncoderDecoder(mtf.Mesh(""), PLAIN, label_smoothing=0.1)
