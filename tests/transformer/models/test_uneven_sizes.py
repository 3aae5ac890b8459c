"""Training with sizes that no axis divides: vocabulary, heads, width, batch. Losses and
variables are those of one device.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.live.small_models import pairs_of_sentences
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.models.architecture import Architecture
from transformer.models.bert import Bert, bert_architecture
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

pytestmark = pytest.mark.slow
STEPS, BATCH, LENGTH, VOCAB = 10, 5, 9, 17
TENSOR = "heads:model; d_ff:model; vocab:model"
LAYOUTS = {
    "data": {"axes": "data:4", "layout": "batch:data"},
    "tensor": {"axes": "model:4", "layout": TENSOR},
    "both": {"axes": "data:2;model:4", "layout": f"batch:data;{TENSOR}"},
    "FSDP": {
        "axes": "data:4",
        "layout": "batch:data",
        "variable_layout": "d_model:data",
    },
    "two axes": {
        "axes": "data:2;fsdp:2;model:2",
        "layout": f"batch:data+fsdp;{TENSOR}",
        "variable_layout": "d_model:data+fsdp",
    },
    "another order": {
        "axes": "data:2;fsdp:3",
        "layout": "batch:fsdp+data",
        "variable_layout": "d_model:data+fsdp; vocab:",
        "optimizer_layout": "d_model:fsdp+data; vocab:",
    },
    "length": {"axes": "seq:4;data:2", "layout": "batch:data;length:seq"},
    "width": {"axes": "model:4", "layout": "d_model:model"},
    "experts": {"axes": "data:4", "layout": "batch:data;experts:data"},
}


def train(experts: int, **mesh):
    """Returns losses and norms [steps, 2], and all variables after the steps.

    Args:
      experts: the number of experts; 0: no mixtures of experts.
      **mesh: the arguments of the mesh.
    """
    mixture = functools.partial(MixtureOfExperts, experts=experts) if experts else None
    architecture = Architecture(
        VOCAB,
        d_model=14,
        d_ff=30,
        heads=3,
        d_kv=6,
        blocks=1,
        dropout=0.2,
        mixture=mixture,
    )
    model = LanguageModel(mtf.Mesh(**mesh), architecture)
    return curve_and_variables(model, lambda step: batch_of(step, VOCAB))


def batch_of(step: int, vocab: int):
    """Returns a batch of random ids."""
    random = np.random.default_rng(step)
    sequences = random.integers(0, vocab, (BATCH, LENGTH + 1)).astype("int32")
    return {
        "tokens": np.ascontiguousarray(sequences[:, :-1]),
        "targets": np.ascontiguousarray(sequences[:, 1:]),
    }


def curve_and_variables(model, batch_of_step):
    """Returns losses and norms [steps, 2] of a training, and all variables after it."""
    trainer = Trainer(
        model,
        # With a smaller epsilon Adam would make a whole step of a rounding error, where a
        # gradient is 0.
        lambda variables: mtf.optimizers.AdamW(
            variables, 0.01, weight_decay=0.1, epsilon=1e-4
        ),
        seed=7,
    )
    curve = [
        [float(x) for x in trainer.step(batch_of_step(step))] for step in range(STEPS)
    ]
    return np.array(curve), {name: v.numpy() for name, v in trainer.variables.items()}


@functools.cache
def train_on_one_device(experts: int):
    return train(experts, axes="")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("devices", [None, "separate:8", "spmd:cpu"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_that_no_axis_divides(layout, devices):
    experts = 6 if layout == "experts" else 0
    mesh = LAYOUTS[layout]
    size = mtf.Mesh(mesh["axes"]).size
    if devices == "separate:8":
        devices = f"separate:{size}"
    check_equal(train(experts, **mesh, devices=devices), train_on_one_device(experts))


def check_equal(training, expected_training):
    curve, variables = training
    expected_curve, expected = expected_training
    np.testing.assert_allclose(curve, expected_curve, rtol=1e-5)
    for name, value in expected.items():
        np.testing.assert_allclose(
            variables[name], value, rtol=1e-4, atol=1e-5, err_msg=name
        )


SMALL = {"d_ff": 24, "d_kv": 2, "blocks": 1, "max_length": 16}


def train_bert(**mesh):
    """Trains BERT with its 30,522 word pieces."""
    architecture = bert_architecture(vocab=30_522, d_model=12, heads=6, **SMALL)

    def batch(step):
        arrays = pairs_of_sentences(step, size=BATCH)
        # Words up to the last id of the vocabulary.
        for name in ("tokens", "masked_ids"):
            ids = arrays[name]
            arrays[name] = np.where(ids < 4, ids, 30_522 - 64 + ids).astype("int32")
        return arrays

    return curve_and_variables(Bert(mtf.Mesh(**mesh), architecture), batch)


def train_gpt2(**mesh):
    """Trains a model with the 50,257 tokens and the 25 heads of GPT-2 XL."""
    architecture = Architecture(
        50_257,
        d_model=50,
        heads=25,
        norm="layer",
        positions="learned",
        use_bias=True,
        tied=True,
        scaled_logits=False,
        **SMALL,
    )
    model = LanguageModel(mtf.Mesh(**mesh), architecture)
    return curve_and_variables(model, lambda step: batch_of(step, 50_257))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
@pytest.mark.parametrize("train_model, size", [(train_bert, 4), (train_gpt2, 8)])
def test_vocabularies_and_heads_of_published_models(train_model, size, devices):
    sharded = train_model(axes=f"model:{size}", layout=TENSOR, devices=devices)
    check_equal(sharded, train_model(axes=""))
