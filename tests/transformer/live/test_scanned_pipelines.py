"""Scanned models whose blocks the layout divides among stages train as without a pipeline:
losses, norms of gradients, and variables of a few steps.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.live.small_models import continued_sentences, texts
from transformer.experts import gating
from transformer.experts.moe_layer import MixtureOfExperts
from transformer.models.architecture import Architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

# A model that is no pipeline would pass as well.
pytestmark = pytest.mark.filterwarnings("error::meshtf.errors.LayoutWarning")

STEPS = 2
TOLERANCE = 1e-5
PLAIN = Architecture(
    vocab=64,
    d_model=8,
    d_ff=16,
    heads=2,
    d_kv=4,
    blocks=4,
    dropout=0.1,
    scanned=True,
)


def settings(**changes):
    return dataclasses.replace(PLAIN, **changes)


def language_model(mesh, **changes):
    return LanguageModel(mesh, settings(**changes)), texts


def encoder_decoder(mesh, **changes):
    architecture = settings(
        positions="relative",
        buckets=8,
        max_distance=16,
        activation="relu",
        tied=True,
        blocks=3,
        **changes,
    )
    return EncoderDecoder(mesh, architecture, label_smoothing=0.1), continued_sentences


def experts(mesh, gate):
    """A language model of experts in each block, whose batches end with padding."""
    mixture = functools.partial(
        MixtureOfExperts, experts=4, gating=gate, balance_weight=0.1, z_weight=0.1
    )
    architecture = settings(moe_every=1, mixture=mixture, dropout=0.0)
    return LanguageModel(mesh, architecture), padded_texts


def padded_texts(step):
    """Texts of which the last examples have few tokens: in microbatches they differ much."""
    batch = texts(step)
    targets = batch["targets"].copy()
    lengths = np.linspace(1, targets.shape[1], len(targets)).astype(int)
    batch["weights"] = np.float32(np.arange(targets.shape[1]) < lengths[:, None])
    return batch


MODELS = {
    "experts": functools.partial(experts, gate=gating.top_2),
    "switch": functools.partial(experts, gate=gating.switch),
    "language model": language_model,
    "recomputed": functools.partial(language_model, recompute=True, blocks=3),
    "GPT-2": functools.partial(
        language_model,
        norm="layer",
        use_bias=True,
        positions="learned",
        kv_heads=1,
        blocks=5,
    ),
    "ALiBi": functools.partial(
        language_model, positions="sloped", attention="blockwise", block_length=4
    ),
    "encoder-decoder": encoder_decoder,
}
TENSOR = "heads:model; d_ff:model; vocab:model"
PIPELINE = "layers:stage; batch:data"
MESHES = {
    "2 stages": {"axes": "stage:2", "layout": "layers:stage"},
    "4 stages": {"axes": "stage:4; data:2", "layout": PIPELINE},
    "vocab": {
        "axes": "stage:4; data:2",
        "layout": f"{PIPELINE}; vocab:stage",
    },
    "length": {
        "axes": "stage:2; data:2",
        "layout": f"{PIPELINE}; length:stage",
    },
    "tensor": {
        "axes": "stage:2; model:2",
        "layout": f"layers:stage; {TENSOR}",
    },
    "data and tensor": {
        "axes": "stage:2; data:2; model:2",
        "layout": f"{PIPELINE}; {TENSOR}",
    },
    "FSDP": {
        "axes": "data:2; stage:2",
        "layout": PIPELINE,
        "variable_layout": "d_model:data",
    },
    "repeats": {
        "axes": "stage:2; data:2",
        "layout": f"{PIPELINE}; vocab:stage",
        "repeats": 2,
    },
    "ZeRO-1": {
        "axes": "stage:2; data:2",
        "layout": PIPELINE,
        "optimizer_layout": "d_model:data",
    },
}


def train(model, **mesh):
    """Returns the losses and the norms of gradients, and the variables after the steps.

    With a smaller epsilon, Adam would turn a rounding error into a large step where a
    gradient is 0.
    """
    built, batch = MODELS[model](mtf.Mesh(mesh.pop("axes", ""), **mesh))
    trainer = Trainer(
        built,
        lambda variables: mtf.optimizers.AdamW(
            variables, 3e-3, weight_decay=0.1, epsilon=1e-3
        ),
        seed=7,
    )
    curve = [trainer.step(batch(step)) for step in range(STEPS)]
    variables = {name: v.numpy() for name, v in trainer.variables.items()}
    return np.array([[float(x) for x in step] for step in curve]), variables


@functools.cache
def train_on_one_device(model):
    return train(model)


def check(model, **mesh):
    curve, variables = train(model, **mesh)
    expected, expected_variables = train_on_one_device(model)
    np.testing.assert_allclose(curve, expected, rtol=TOLERANCE)
    assert variables.keys() == expected_variables.keys()
    for name, value in expected_variables.items():
        # The bias of keys has no gradient but rounding errors.
        scale = max(np.sqrt((value**2).mean()), 1e-3)
        np.testing.assert_allclose(
            variables[name],
            value,
            rtol=TOLERANCE,
            atol=TOLERANCE * scale,
            err_msg=name,
        )


@pytest.mark.slow
@pytest.mark.sampled(5, each="model")
@pytest.mark.parametrize("microbatches", [None, 1, 2, 4, 8, 16])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("model", MODELS)
def test_steps_equal_one_device(model, mesh, microbatches):
    check(model, **MESHES[mesh], microbatches=microbatches)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("model", MODELS)
def test_steps_on_live_devices(model, mesh, microbatches):
    check(model, **MESHES[mesh], microbatches=microbatches, devices="spmd:cpu")


def run_experts(gate, group_size, **mesh):
    """Returns a loss of four mixtures of experts, one after the other, their reports, and
    gradients.
    """
    mesh = mtf.Mesh(mesh.pop("axes", ""), **mesh)

    def make():
        return MixtureOfExperts(
            mesh,
            "d_model:8",
            "d_ff:16",
            experts=4,
            gating=gate,
            group_size=group_size,
            balance_weight=0.1,
            z_weight=0.01,
        )

    layers = mtf.layers.Repeat(make, "layers:4", name="experts")

    @mtf.function(mesh=mesh, x="batch; length; d_model")
    def step(x):
        def apply_layer(layer, h, _):
            y, report = layer(h, training=True)
            return h + y, report

        with mtf.seed(3):
            h, reports = layers.each(apply_layer, x)
        loss = mtf.reduce_mean(mtf.square(h)) + mtf.reduce_sum(reports.loss)
        grads = mtf.gradients([loss], list(layers.trainable_variables))
        statistics = [reports.load, reports.dropped, reports.entropy, reports.tokens]
        return [loss, h, reports.loss, *statistics, *grads]

    x = np.random.default_rng(0).normal(size=(8, 8, 8)).astype("float32")
    return [y.numpy() for y in step(x)]


GATES = [gating.top_2, gating.top_k, gating.switch, gating.expert_choice]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layout", [PIPELINE, f"{PIPELINE}; experts:data"])
@pytest.mark.parametrize("group_size", [None, 4])
@pytest.mark.parametrize("gate", GATES)
def test_mixtures_of_experts(gate, group_size, layout):
    mesh = {"axes": "stage:2; data:2", "layout": layout, "microbatches": 4}
    results = run_experts(gate, group_size, **mesh)
    expected = run_experts(gate, group_size)
    for y, value in zip(results, expected, strict=True):
        np.testing.assert_allclose(y, value, rtol=TOLERANCE, atol=TOLERANCE)


def test_groups_of_several_examples_are_refused():
    mesh = {"axes": "stage:2; data:2", "layout": PIPELINE, "microbatches": 4}
    with pytest.raises(mtf.ShapeError, match="microbatches would split groups"):
        run_experts(gating.top_2, 16, **mesh)
