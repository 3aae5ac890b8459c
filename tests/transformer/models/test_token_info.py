"""Tokens in zigzag order: models of long texts, whose length a mesh shards, have the numbers
of full attention on one device.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel
from transformer.models.token_info import TokenInfo, zigzag_order
from transformer.training.trainer import Trainer

STEPS, BATCH, LENGTH, VOCAB = 10, 2, 32, 19
KINDS = {
    "rotary": {"positions": "rotary", "recompute": True},
    "grouped heads": {"positions": "rotary", "kv_heads": 2},
    "relative": {"positions": "relative", "scanned": True},
    "sloped": {"positions": "sloped"},
    "packed": {"positions": "learned", "max_length": LENGTH},
}
MESHES = {
    "seq": {"axes": "seq:4", "layout": "length:seq"},
    "two chunks for each": {"axes": "seq:2", "layout": "length:seq"},
    "tensor": {"axes": "seq:2;model:2", "layout": "length:seq;heads:model;d_ff:model"},
    "data": {"axes": "data:2;seq:2", "layout": "batch:data;length:seq"},
    "FSDP": {
        "axes": "data:2;seq:2",
        "layout": "batch:data;length:seq",
        "variable_layout": "d_model:seq",
    },
}


def model_of(mesh, kind, attention):
    architecture = Architecture(
        VOCAB,
        d_model=16,
        d_ff=32,
        heads=4,
        d_kv=4,
        blocks=2,
        attention=attention,
        block_length=8,
        **KINDS[kind],
    )
    return LanguageModel(mesh, architecture)


def batch_of(kind, seed):
    random = np.random.default_rng(seed)
    sequences = random.integers(0, VOCAB, (BATCH, LENGTH + 1)).astype("int32")
    batch = {
        "tokens": np.ascontiguousarray(sequences[:, :-1]),
        "targets": np.ascontiguousarray(sequences[:, 1:]),
    }
    if kind == "packed":
        sizes = (13, 11, 5, 3)
        batch["segments"] = np.tile(np.repeat([1, 2, 3, 0], sizes), (BATCH, 1))
        batch["positions"] = np.tile(
            np.concatenate([np.arange(n) for n in sizes]), (BATCH, 1)
        )
        batch["weights"] = (batch["segments"] > 0).astype("float32")
        for name in ("segments", "positions"):
            batch[name] = batch[name].astype("int32")
    return batch


def train(kind, attention, **mesh):
    """Returns losses and norms [steps, 2], and all variables after the steps."""
    trainer = Trainer(
        model_of(mtf.Mesh(**mesh), kind, attention),
        lambda variables: mtf.optimizers.AdamW(variables, 0.01, epsilon=1e-4),
        seed=7,
    )
    curve = []
    for step in range(STEPS):
        curve.append([float(x) for x in trainer.step(batch_of(kind, step))])
    return np.array(curve), {name: v.numpy() for name, v in trainer.variables.items()}


@functools.cache
def train_on_one_device(kind):
    return train(kind, "full", axes="")


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["ring", "all_to_all", "context_parallel"])
def test_training_is_that_of_full_attention(attention, kind, mesh, devices):
    if attention == "all_to_all" and kind == "grouped heads" and mesh == "seq":
        pytest.skip("2 heads of keys and 2 of queries: no axis of 4 divides them")
    expected_curve, expected = train_on_one_device(kind)
    curve, variables = train(kind, attention, **MESHES[mesh], devices=devices)
    np.testing.assert_allclose(curve, expected_curve, rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(
            variables[name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )


WITH_DROPOUT = [
    ("full", {"axes": ""}, None),
    ("blockwise", {"axes": ""}, None),
    ("ring", {"axes": ""}, None),
    ("context_parallel", MESHES["seq"], None),  # all_to_all
    ("context_parallel", MESHES["two chunks for each"], None),  # ring
    ("ring", MESHES["tensor"], None),
    ("context_parallel", MESHES["data"], "spmd:cpu"),
]


def losses_with_dropout(attention, mesh, devices, microbatches):
    """Returns the losses of two steps with dropout."""
    architecture = Architecture(
        VOCAB,
        d_model=16,
        d_ff=32,
        heads=4,
        d_kv=4,
        blocks=2,
        attention=attention,
        block_length=8,
        positions="rotary",
        dropout=0.3,
        recompute=True,
        scanned=True,
    )
    trainer = Trainer(
        LanguageModel(mtf.Mesh(**mesh, devices=devices), architecture),
        lambda variables: mtf.optimizers.AdamW(variables, 0.01, epsilon=1e-4),
        seed=7,
        microbatches=microbatches,
    )
    return [float(trainer.step(batch_of("rotary", step))[0]) for step in range(2)]


@functools.cache
def losses_of_full_attention():
    return losses_with_dropout("full", {"axes": ""}, None, microbatches=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("microbatches", [1, 2])
@pytest.mark.parametrize("attention, mesh, devices", WITH_DROPOUT)
def test_dropout_is_that_of_full_attention(attention, mesh, devices, microbatches):
    """Neither layouts nor microbatches nor the way of attention change a mask."""
    losses = losses_with_dropout(attention, mesh, devices, microbatches)
    np.testing.assert_allclose(losses, losses_of_full_attention(), rtol=1e-5)


def logits_of(attention, axes, has_prefix, values=None):
    """Returns logits of a batch, and the values of all variables, which `values` sets."""
    mesh = mtf.Mesh(axes, "length:seq", optional_axes="seq")
    model = model_of(mesh, "rotary", attention)
    for variable, value in zip(model.variables, values or ()):
        variable.assign(value)
    features = {"tokens": batch_of("rotary", 0)["tokens"]}
    if has_prefix:
        features["prefix"] = np.tile(np.arange(LENGTH) < 9, (BATCH, 1))
    tensors = {
        name: mtf.asarray(mesh, value, "batch;length")
        for name, value in features.items()
    }
    values = [variable.numpy() for variable in model.variables]
    return model(**tensors).numpy(), values


@pytest.mark.parametrize("has_prefix", [False, True])
def test_logits_are_in_the_order_of_the_text(has_prefix):
    expected, values = logits_of("full", "", has_prefix)
    logits, _ = logits_of("ring", "seq:4", has_prefix, values)
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_order_is_that_of_the_text_where_zigzag_is_not_needed():
    mesh = mtf.Mesh("")
    tokens = mtf.zeros(mesh, "batch:2;length:32", "int32")
    ring = Architecture(attention="ring", block_length=8)
    info = TokenInfo.of(tokens)
    assert zigzag_order(ring, info, tokens) is not None
    assert zigzag_order(Architecture(), info, tokens) is None
    one_chunk = Architecture(attention="ring", block_length=32)
    assert zigzag_order(one_chunk, info, tokens) is None
    with_prefix = TokenInfo.of(tokens, prefix=tokens)
    assert zigzag_order(ring, with_prefix, tokens) is None


def test_lengths_that_have_no_chunks_are_refused():
    mesh = mtf.Mesh("")
    tokens = mtf.zeros(mesh, "batch:2;length:36", "int32")
    ring = Architecture(attention="ring", block_length=8)
    with pytest.raises(mtf.ShapeError, match=r"length:36.*(?s:.)*block_length"):
        zigzag_order(ring, TokenInfo.of(tokens), tokens)
    with pytest.raises(mtf.ParseError, match="two halves"):
        Architecture(attention="ring", block_length=7)
