"""Padding changes no number of a model with experts, however a batch marks it; what is not
learned but read is no padding.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.experts.routing import Capacity
from transformer.models.architecture import Architecture
from transformer.models.bert import Bert
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel

BATCH, LENGTH, PADDING = 4, 8, 8
SIZES = {
    "vocab": 24,
    "d_model": 16,
    "d_ff": 32,
    "heads": 2,
    "d_kv": 8,
    "blocks": 1,
    "moe_every": 1,
}
# Capacities at which choices are dropped, and padding would have raised the limit.
GATINGS = {
    "switch": functools.partial(gating.switch, capacity=Capacity(train=1.0, minimum=1)),
    "top_k": functools.partial(
        gating.top_k, capacity=Capacity(train=0.6, minimum=1, multiple=2)
    ),
    "expert_choice": functools.partial(
        gating.expert_choice, capacity=Capacity(train=0.6, minimum=1)
    ),
}
MESHES = {
    "one": {"axes": ""},
    "experts": {
        "axes": "data:2;model:2",
        "layout": "batch:data; experts:data; d_ff:model",
    },
    "sequence": {"axes": "data:2;seq:2", "layout": "batch:data; length:seq"},
    "live": {
        "axes": "data:2",
        "layout": "batch:data; experts:data",
        "devices": "spmd:cpu:2",
    },
}
TEXTS = np.random.default_rng(0).integers(1, 24, (BATCH, LENGTH + 1)).astype("int32")


def architecture(name, group_size=None):
    mixture = functools.partial(
        MixtureOfExperts, experts=4, gating=GATINGS[name], group_size=group_size
    )
    return Architecture(**SIZES, mixture=mixture)


def padded(x, value=0):
    return np.pad(x, ((0, 0), (0, PADDING)), constant_values=value)


def results(model, batch):
    """Returns loss, norm of the gradients, and all reports, in training."""

    @mtf.function(mesh=model.mesh, batch=model.features)
    def step(batch):
        loss, reports = model.loss_and_reports(batch, training=True)
        grads = mtf.gradients([loss], model.trainable_variables)
        return loss, mtf.optimizers.global_norm(grads), list(reports.values())

    loss, norm, reports = step(batch)
    return [loss.numpy(), norm.numpy(), *(x.numpy() for r in reports for x in r)]


def check(have, expected):
    for x, y in zip(have, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-6)


def language_batches():
    """Returns a batch without padding, and the same with padding, by how it is marked."""
    tokens, targets = TEXTS[:, :-1], TEXTS[:, 1:]
    ones = np.ones(tokens.shape, "float32")
    longer = {
        "tokens": padded(tokens, 3),
        "targets": padded(targets, 3),
        "weights": padded(ones),
    }
    more_examples = {
        name: np.concatenate([x, x])
        for name, x in {"tokens": tokens, "targets": targets}.items()
    }
    counts = np.repeat(np.float32([1, 0]), BATCH)
    return {"tokens": tokens, "targets": targets}, {
        "weights": longer,
        "segments": {**longer, "segments": padded(np.ones(tokens.shape, "int32"))},
        "negative targets": {**longer, "targets": padded(targets, -1)},
        "counts": {**more_examples, "counts": counts},
    }


@pytest.mark.sampled(5, each="mesh how")
@pytest.mark.parametrize("how", language_batches()[1])
@pytest.mark.parametrize("group_size", [None, 4])
@pytest.mark.parametrize("name", ["switch", "top_k"])
@pytest.mark.parametrize("mesh", MESHES)
def test_padding_changes_no_number_of_a_language_model(mesh, name, group_size, how):
    plain, batches = language_batches()
    expected = results(
        LanguageModel(mtf.Mesh(""), architecture(name, group_size)), plain
    )
    model = LanguageModel(mtf.Mesh(**MESHES[mesh]), architecture(name, group_size))
    have = results(model, batches[how])
    assert expected[4] > 0, "no choice was dropped"
    check(have, expected)


@pytest.mark.parametrize("name", ["switch", "expert_choice"])
def test_padding_changes_no_number_of_an_encoder_decoder(name):
    shapes = architecture("top_k")
    model = EncoderDecoder(mtf.Mesh(""), architecture(name), decoder=shapes)
    tokens, targets = TEXTS[:, :-1], TEXTS[:, 1:]
    batch = {"inputs": TEXTS, "tokens": tokens, "targets": targets}
    longer = {name: padded(x) for name, x in batch.items()}
    longer["weights"] = padded(np.ones(tokens.shape, "float32"))
    check(results(model, longer), results(model, batch))


@pytest.mark.parametrize("name", ["switch", "expert_choice"])
def test_padding_changes_no_number_of_bert(name):
    model = Bert(mtf.Mesh(""), architecture(name))
    masked = {
        "masked_positions": np.tile(np.int32([1, 4]), (BATCH, 1)),
        "masked_ids": TEXTS[:, :2],
        "masked_weights": np.float32([[1, 0]] * BATCH),
    }
    batch = {"tokens": TEXTS, **masked}
    check(
        results(model, {**batch, "tokens": padded(TEXTS)}),
        results(model, batch),
    )


def test_a_prompt_that_is_not_learned_is_no_padding():
    model = LanguageModel(mtf.Mesh(""), architecture("switch"))
    batch, _ = language_batches()
    prompts = np.arange(LENGTH) < np.arange(1, 1 + BATCH)[:, None]
    weights = np.where(prompts, 0, 1).astype("float32")
    _, _, *expected = results(model, batch)
    _, _, *report = results(model, {**batch, "weights": weights})
    check(report, expected)
    # Answers that are cut off: what comes after the last target that counts is padding.
    weights[:, -3:] = 0
    *_, tokens = results(model, {**batch, "weights": weights})
    assert tokens == BATCH * (LENGTH - 3)
    # Tokens of a prefix are read by earlier tokens.
    prefix = np.ones((BATCH, LENGTH), bool)
    *_, tokens = results(model, {**batch, "weights": weights, "prefix": prefix})
    assert tokens == BATCH * LENGTH


def test_a_batch_of_padding_has_no_loss():
    model = LanguageModel(mtf.Mesh(""), architecture("switch"))
    batch, _ = language_batches()
    loss, _, *report = results(model, {**batch, "weights": np.zeros((BATCH, LENGTH))})
    assert np.isfinite(loss) and not any(np.any(x) for x in report)
