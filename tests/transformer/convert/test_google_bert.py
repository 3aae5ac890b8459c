"""Checkpoints of Google's BERT, made here by TensorFlow, are the same models as Hugging
Face's files with the same weights.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from tests.transformer.convert.references import Reference, write
from tests.transformer.convert.test_hugging_face import values
from transformer.convert import read_model, write_model
from transformer.convert.google_bert import read_google_bert
from transformer.models.bert import Classifier, SpanExtractor

MESH = mtf.Mesh("")
CONFIG = {  # as Google writes it: sizes, and nothing about classes
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 14,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "directionality": "bidi",  # of the multilingual ones
    "pooler_fc_size": 768,
}
HEADS = {
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "cls.predictions.bias": "cls/predictions/output_bias",
}


def google(name, tensor):
    """Returns Google's name of a tensor of Hugging Face, and its value there."""
    if name in HEADS:
        return HEADS[name], tensor
    name = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", name).replace(".", "/")
    if name.endswith("_embeddings/weight"):
        return name.removesuffix("/weight"), tensor
    if "LayerNorm" in name:
        return name.replace("weight", "gamma").replace("/bias", "/beta"), tensor
    if name.endswith("/weight"):
        return name.replace("/weight", "/kernel"), tensor.T
    return name, tensor


def write_google(folder, weights, name="bert_model.ckpt"):
    """Writes a checkpoint of TensorFlow 1, with what training leaves in it."""
    folder.mkdir(exist_ok=True)
    tensors = dict(google(name, tensor) for name, tensor in weights.items())
    kernel = "bert/pooler/dense/kernel"
    tensors[f"{kernel}/adam_m"] = np.ones((16, 16), np.float32)
    tensors[f"{kernel}/adam_v"] = np.ones((16, 16), np.float32)
    tensors["global_step"] = np.array(7, np.int64)
    tf.raw_ops.SaveV2(
        prefix=str(folder / f"part-{name}"),
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[str(folder / f"part-{name}")],
        destination_prefix=str(folder / name),
    )
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    (folder / "vocab.txt").write_text("[PAD]\n")
    return folder


@pytest.mark.parametrize("name", ["bert", "bert_classifier", "bert_span"])
def test_the_model_of_the_same_weights(name, tmp_path):
    reference = Reference(name)
    folder = write_google(tmp_path / "google", reference.weights)
    model = read_google_bert(folder, MESH)
    write(reference, tmp_path)
    expected = read_model(tmp_path, MESH)
    assert type(model) is type(expected)
    assert values(model) == values(expected)
    again = read_google_bert(folder / "bert_model.ckpt", MESH, scanned=True)
    assert again.architecture.scanned


def test_logits_of_another_mesh(tmp_path):
    reference = Reference("bert")
    folder = write_google(tmp_path / "google", reference.weights)
    mesh = mtf.Mesh("data:2; model:2", "batch:data; heads:model; vocab:model")
    model = read_google_bert(folder, mesh)

    @mtf.function(mesh=mesh, batch=model.features)
    def logits(batch):
        x, pooled, _ = model.encode(batch, training=False)
        return model.predict(x), model.next_sentence(pooled)

    tokens, pairs = logits(reference.batch())
    expected = reference.outputs
    tokens = mtf.transpose(tokens, ["batch", "length", "vocab"]).numpy()
    np.testing.assert_allclose(tokens, expected["prediction_logits"], atol=1e-4)
    pairs = mtf.transpose(pairs, ["batch", "classes"]).numpy()
    np.testing.assert_allclose(pairs, expected["seq_relationship_logits"], atol=1e-4)


def test_fine_tuned_ones_are_what_they_predict(tmp_path):
    for name, kind in (("bert_classifier", Classifier), ("bert_span", SpanExtractor)):
        folder = write_google(tmp_path / name, Reference(name).weights)
        assert type(read_google_bert(folder, MESH)) is kind


def test_it_goes_to_hugging_face(tmp_path):
    folder = write_google(tmp_path / "google", Reference("bert").weights)
    model = read_google_bert(folder, MESH)
    write_model(model, tmp_path / "out")
    assert values(read_model(tmp_path / "out", MESH)) == values(model)
    assert (tmp_path / "out" / "vocab.txt").read_text() == "[PAD]\n"


def test_what_is_missing_or_too_much(tmp_path):
    weights = dict(Reference("bert").weights)
    weights["bert.encoder.layer.7.extra.bias"] = np.ones(3, np.float32)
    folder = write_google(tmp_path / "google", weights)
    with pytest.raises(mtf.CheckpointError, match="bert.encoder.layer.7.extra.bias"):
        read_google_bert(folder, MESH)
    write_google(folder, Reference("bert").weights, name="other.ckpt")
    with pytest.raises(mtf.CheckpointError, match="bert_model.ckpt.index, other"):
        read_google_bert(folder, MESH)
    (folder / "bert_config.json").unlink()
    with pytest.raises(mtf.CheckpointError, match="bert_config.json cannot be read"):
        read_google_bert(folder, MESH)
    with pytest.raises(mtf.CheckpointError, match="must have one checkpoint.*none"):
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "bert_config.json").write_text(json.dumps(CONFIG))
        read_google_bert(tmp_path / "empty", MESH)
