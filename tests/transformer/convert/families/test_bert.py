"""BERT in parts: the encoder alone, masked tokens without a pooler, regression, and files
that do not say what they are.
"""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import meshtf as mtf
from tests.transformer.convert.references import Reference
from tests.transformer.convert.test_hugging_face import values
from transformer.convert import read_model, read_run, write_model, write_run
from transformer.models.bert import Bert, Classifier, SpanExtractor
from transformer.models.encoders.bert_variants import (
    MaskedBert,
    Regressor,
    TextEncoder,
)

MESH = mtf.Mesh("")
POOLER = "bert.pooler."
HEAD = "cls."
PAIRS = "cls.seq_relationship."


@pytest.fixture(autouse=True)
def without_settings():
    gin.clear_config()
    yield
    gin.clear_config()


def write(folder, name, without=(), renamed=lambda name: name, **changes):
    """Writes a reference without some tensors; returns its weights."""
    reference = Reference(name)
    weights = {
        renamed(name): x
        for name, x in reference.weights.items()
        if not name.startswith(tuple(without))
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(reference.config | changes))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return weights


def bare(name):
    return name.removeprefix("bert.")


CASES = {
    "encoder": (TextEncoder, [HEAD], bare, "BertModel"),
    "encoder_without_pooler": (TextEncoder, [HEAD, POOLER], bare, "BertModel"),
    "masked": (MaskedBert, [PAIRS, POOLER], str, "BertForMaskedLM"),
    "both": (Bert, [], str, "BertForPreTraining"),
}


@pytest.mark.parametrize("names_class", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_parts_there_and_back(case, names_class, tmp_path):
    kind, without, renamed, architecture = CASES[case]
    weights = write(
        tmp_path / "in",
        "bert",
        without,
        renamed,
        architectures=[architecture] if names_class else None,
    )
    model = read_model(tmp_path / "in", MESH)
    assert type(model) is kind
    write_run(model, tmp_path / "run")
    again = read_run(tmp_path / "run", mtf.Mesh("model:2", "vocab:model"))
    assert type(again) is kind and values(again) == values(model)
    write_model(again, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [architecture]
    results = load_file(tmp_path / "out" / "model.safetensors")
    assert {n: x.tobytes() for n, x in results.items()} == {
        n: x.tobytes() for n, x in weights.items()
    }


def test_outputs_of_the_encoder_alone(tmp_path):
    write(tmp_path / "all", "bert")
    write(tmp_path / "part", "bert", [HEAD], bare, architectures=["BertModel"])
    whole = read_model(tmp_path / "all", MESH)
    part = read_model(tmp_path / "part", mtf.Mesh("data:2", "batch:data"))
    batch = {
        name: x
        for name, x in Reference("bert").batch().items()
        if name in part.features
    }

    def encode(model):
        step = mtf.function(
            lambda batch: model.encode(batch, training=False)[:2],
            mesh=model.mesh,
            batch=model.features,
        )
        return [x.numpy() for x in step(batch)]

    for x, y in zip(encode(whole), encode(part)):
        np.testing.assert_allclose(x, y, atol=1e-5)
    with pytest.raises(mtf.ArgumentError, match="has no loss"):
        part.loss(batch)


def test_masked_tokens_alone_have_the_same_logits(tmp_path):
    write(tmp_path / "part", "bert", [PAIRS], architectures=["BertForMaskedLM"])
    model = read_model(tmp_path / "part", MESH)
    assert model.encoder.pooler is None  # the pooler in the file has no effect
    reference = Reference("bert")
    batch = reference.batch()
    del batch["next_sentence_labels"]

    @mtf.function(mesh=MESH, batch=model.features)
    def step(batch):
        x, _, _ = model.encode(batch, training=False)
        return model.predict(x), model.loss(batch), model.measure(batch)

    logits, loss, sums = step(batch)
    logits = mtf.transpose(logits, ["batch", "length", "vocab"]).numpy()
    expected = reference.outputs["prediction_logits"]
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    np.testing.assert_allclose(float(loss), float(sums["nats"] / sums["tokens"]), 1e-5)


@pytest.mark.parametrize("axes", ["", "data:2; model:2"])
def test_regression(axes, tmp_path):
    def one_class(weights):
        return {n: x[:1] if n.startswith("classifier") else x for n, x in weights}

    weights = one_class(write(tmp_path, "bert_classifier").items())
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    reference = Reference("bert_classifier")
    one = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    config = reference.config | one | {"problem_type": None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    layout = "batch:data; heads:model; d_ff:model" if axes else ""
    model = read_model(tmp_path, mtf.Mesh(axes, layout))
    assert type(model) is Regressor
    scores = np.array([0.5, 3.25, 1.0, 5.0], np.float32)
    counts = np.array([1, 1, 0, 1], np.int32)
    batch = {**reference.batch(), "scores": scores, "counts": counts}
    del batch["labels"]
    step = mtf.function(
        lambda batch: (model.loss(batch), model.measure(batch)),
        mesh=model.mesh,
        batch=model.features,
    )
    loss, sums = step(batch)
    errors = (reference.outputs["logits"][:, 0] - scores) ** 2
    np.testing.assert_allclose(float(loss), errors[counts > 0].mean(), rtol=1e-4)
    np.testing.assert_allclose(
        float(sums["squared_error"]), errors[counts > 0].sum(), 1e-4
    )
    write_run(model, tmp_path / "run")
    write_model(read_run(tmp_path / "run", MESH), tmp_path / "out")
    assert type(read_model(tmp_path / "out", MESH)) is Regressor


def test_files_may_repeat_a_pooler_that_spans_do_not_use(tmp_path):
    weights = write(tmp_path, "bert_span")
    pooler = {
        f"{POOLER}dense.{n}": np.ones(s, np.float32)
        for n, s in (("weight", (16, 16)), ("bias", 16))
    }
    save_file(weights | pooler, tmp_path / "model.safetensors", {"format": "pt"})
    assert type(read_model(tmp_path, MESH)) is SpanExtractor
    assert Classifier is not SpanExtractor


@pytest.mark.parametrize(
    "name, changes, message",
    [
        ("bert", {"attention_probs_dropout_prob": 0.2}, "attention_probs_dropout_prob"),
        ("bert", {"pad_token_id": 1}, "pad_token_id: 1"),
        ("bert", {"pruned_heads": {"0": [2]}}, "pruned_heads: {'0': \\[2\\]}"),
        ("bert", {"embedding_size": 8}, "embedding_size: 8"),
        ("bert", {"is_decoder": True}, "is_decoder: True"),
        ("bert_classifier", {"classifier_dropout": 0.3}, "classifier_dropout: 0.3"),
        ("bert_classifier", {"problem_type": "multi_label_classification"}, "multi"),
        ("gpt2", {"attn_pdrop": 0.1}, "attn_pdrop: 0.1"),
        ("gpt2", {"embd_pdrop": 0.1}, "embd_pdrop: 0.1"),
        ("t5", {"pad_token_id": 3}, "pad_token_id: 3"),
        ("t5", {"decoder_start_token_id": 2}, "decoder_start_token_id: 2"),
        ("t5", {"dense_act_fn": "silu"}, "dense_act_fn: 'silu'"),
    ],
)
def test_settings_that_a_file_has_and_the_model_lacks(name, changes, message, tmp_path):
    write(tmp_path, name, **changes)
    with pytest.raises(mtf.CheckpointError, match=message):
        read_model(tmp_path, MESH)


def test_settings_that_change_nothing(tmp_path):
    write(
        tmp_path,
        "bert",
        pruned_heads={},
        output_attentions=True,
        num_beams=4,
        task_specific_params={"a": 1},
        pad_token_id=None,
        _name_or_path="x",
    )
    assert type(read_model(tmp_path, MESH)) is Bert
