"""Steps of all models with weights, ignored labels and padding examples: the same with
microbatches, and for the language model as a pipeline.
"""

from __future__ import annotations

import functools

import gin
import numpy as np
import pytest

import meshtf as mtf
from transformer.models.architecture import Architecture
from transformer.models.bert import Bert, Classifier, SpanExtractor, bert_architecture
from transformer.models.encoder_decoder import EncoderDecoder
from transformer.models.language_model import LanguageModel
from transformer.training.trainer import Trainer

BATCH, LENGTH, VOCAB = 8, 6, 17
SIZES = {
    "vocab": VOCAB,
    "d_model": 8,
    "d_ff": 16,
    "d_kv": 4,
    "heads": 2,
    "blocks": 2,
    "dropout": 0.1,
}
LAYOUT = "batch:data; heads:model; d_ff:model; vocab:model"


@pytest.fixture(autouse=True)
def clean_gin():
    gin.clear_config()
    yield
    gin.clear_config()


def weights():
    """Returns the weights of the targets: most examples have none."""
    w = np.zeros((BATCH, LENGTH), "float32")
    w[0] = 1
    w[1, :1] = 1
    w[5, :3] = 0.5
    return w


def texts():
    """Returns a packed batch for the language model, in which much does not count."""
    rng = np.random.default_rng(2)
    targets = rng.integers(0, VOCAB, (BATCH, LENGTH)).astype("int32")
    targets[5, 1] = -1
    segments = np.tile([1, 1, 1, 2, 2, 0], (BATCH, 1)).astype("int32")
    segments[3, 1:] = 0
    prefix = np.zeros((BATCH, LENGTH), "int32")
    prefix[2, :3] = 1
    return {
        "tokens": rng.integers(1, VOCAB, (BATCH, LENGTH)).astype("int32"),
        "targets": targets,
        "weights": weights(),
        "segments": segments,
        "positions": np.tile([0, 1, 2, 0, 1, 0], (BATCH, 1)).astype("int32"),
        "prefix": prefix,
        "counts": np.array([1, 1, 1, 1, 1, 1, 0, 0], "float32"),
    }


def bert_batch(**features):
    batch = texts()
    tokens = batch["tokens"]
    return {
        "tokens": tokens,
        "token_types": tokens * 0,
        "counts": batch["counts"],
        **features,
    }


LABELS = np.array([0, 1, 1, -1, 0, -1, 1, 0], "int32")


def language_model(mesh, **settings):
    return LanguageModel(mesh, Architecture(**{**SIZES, **settings}))


def bert(model_class):
    sizes = {**SIZES, "blocks": 1}
    return lambda mesh: model_class(mesh, bert_architecture(max_length=8, **sizes))


def encoder_decoder(mesh):
    architecture = Architecture(**{**SIZES, "blocks": 1}, positions="relative")
    return EncoderDecoder(mesh, architecture, label_smoothing=0.1)


MASKED = {
    "masked_positions": np.tile([1, 3], (BATCH, 1)).astype("int32"),
    "masked_ids": np.tile([5, 6], (BATCH, 1)).astype("int32"),
    "masked_weights": np.array([[1, 1]] + [[0, 1]] + [[0, 0]] * 6, "float32"),
}
EXPERTS = {"moe_every": 2, "dropout": 0.0}
SCANNED_EXPERTS = {"moe_every": 1, "scanned": True, "recompute": True, "dropout": 0.0}
MODELS = {
    "language model": (language_model, texts()),
    "experts": (functools.partial(language_model, **EXPERTS), texts()),
    "scanned experts": (
        functools.partial(language_model, **SCANNED_EXPERTS),
        texts(),
    ),
    "scanned language model": (
        functools.partial(language_model, scanned=True),
        texts(),
    ),
    "encoder and decoder": (
        encoder_decoder,
        {
            "inputs": texts()["tokens"],
            "tokens": texts()["tokens"],
            "targets": texts()["targets"],
            "weights": weights(),
        },
    ),
    "bert": (bert(Bert), bert_batch(**MASKED, next_sentence_labels=LABELS)),
    "classifier": (bert(Classifier), bert_batch(labels=LABELS)),
    "spans": (bert(SpanExtractor), bert_batch(start=LABELS, end=1 - LABELS)),
}


def steps(make, batch, axes, layout, microbatches=1, make_mesh=mtf.Mesh, **settings):
    """Returns losses and gradient norms of two steps."""
    mesh = make_mesh(axes, layout, optional_axes="data; model", seed=1, **settings)
    trainer = Trainer(make(mesh), microbatches=microbatches)
    return [float(x) for _ in range(2) for x in trainer.step(batch)]


@functools.cache
def whole_batch(name):
    return steps(*MODELS[name], "", "")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "axes, microbatches", [("", 4), ("data:2; model:2", 2)], ids=["one", "four"]
)
def test_microbatches_change_no_loss(name, axes, microbatches):
    layout = LAYOUT if axes else ""
    if axes and "experts" in name:
        layout += "; experts:data"
    got = steps(*MODELS[name], axes, layout, microbatches)
    np.testing.assert_allclose(got, whole_batch(name), rtol=2e-5)


@pytest.mark.slow
def test_live_microbatches():
    got = steps(
        *MODELS["language model"], "data:2", "batch:data", 4, devices="spmd:cpu"
    )
    np.testing.assert_allclose(got, whole_batch("language model"), rtol=2e-5)


@pytest.mark.parametrize(
    "name, axes, settings",
    [
        ("scanned language model", "stage:2", {}),
        ("scanned experts", "stage:2; data:2", {}),
        pytest.param(
            "scanned language model",
            "stage:2; data:2",
            {"devices": "spmd:cpu"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["two stages", "experts", "live"],
)
def test_pipelines_take_weights_and_packed_texts(name, axes, settings):
    layout = "layers:stage; batch:data"
    if "experts" in name:
        layout += "; experts:data"
    # The number of microbatches is that of the mesh, not of the trainer.
    mesh = functools.partial(mtf.Mesh, microbatches=4, **settings)
    got = steps(*MODELS[name], axes, layout, make_mesh=mesh)
    np.testing.assert_allclose(got, whole_batch(name), rtol=2e-5)


def test_bert_leaves_padding_examples_out():
    make, batch = MODELS["bert"]
    mesh = mtf.Mesh("", seed=1)
    model = make(mesh)

    def loss_and_sums(batch):
        tensors = {
            name: mtf.asarray(mesh, x, model.features[name])
            for name, x in batch.items()
        }
        sums = model.measure(tensors)
        return [float(model.loss(tensors)), *(float(x) for x in sums.values())]

    without = {name: x[:6] for name, x in batch.items()}
    np.testing.assert_allclose(loss_and_sums(batch), loss_and_sums(without), rtol=1e-6)
    # Two labels of the first six are negative.
    assert loss_and_sums(batch)[-1] == 4.0
