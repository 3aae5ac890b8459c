"""Known models compute the numbers that Hugging Face transformers computes, on any
mesh.

The references, in tests/data/known_models, are small random models; every logit, the
loss, and its gradient for every weight are compared, in float32.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.convert.references import NAMES, VOCAB, Reference, write
from transformer.convert import hugging_face as hf
from transformer.models.bert import Bert, Classifier, SpanExtractor
from transformer.models.encoder_decoder import EncoderDecoder

MESHES = {
    "one": ("", ""),
    "cut": ("data:2; model:2", "batch:data; heads:model; d_ff:model; vocab:model"),
}
CHANGES = {
    "": {},
    "scanned": {"scanned": True, "vocab_multiple": 16},
    "blockwise": {"attention": "blockwise", "block_length": 2},
}
CASES = [(name, mesh, "") for name in NAMES for mesh in MESHES]
CASES += [("gpt2", "cut", "scanned")]
SLOW = [
    ("bert", "cut", "scanned"),
    ("t5", "cut", "scanned"),
    ("t5", "one", "blockwise"),
    ("llama", "one", "blockwise"),
]
ORDER = ("batch", "length", "vocab", "classes")


@pytest.mark.sampled(8, each="name mesh change")
@pytest.mark.parametrize(
    "name, mesh, change",
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_logits_loss_and_gradients(name, mesh, change, tmp_path):
    reference = Reference(name)
    write(reference, tmp_path)
    model = hf.read_model(tmp_path, mtf.Mesh(*MESHES[mesh]), **CHANGES[change])
    variables = model.trainable_variables

    @mtf.function(mesh=model.mesh, batch=model.features)
    def step(batch):
        loss = model.loss(batch)
        gradients = [
            mtf.transpose(g, v.shape.names)
            for g, v in zip(mtf.gradients([loss], variables), variables)
        ]
        return (
            loss,
            gradients,
            {key: in_order(x) for key, x in logits(model, batch).items()},
        )

    loss, gradients, results = step(reference.batch())
    close("loss", loss.numpy(), reference.loss)
    assert set(results) == set(reference.outputs)
    for key, expected in reference.outputs.items():
        close(key, results[key].numpy()[..., : expected.shape[-1]], expected)
    named = {v.name: g.numpy() for v, g in zip(variables, gradients)}
    tensors = hf.tensor_arrays(hf.family_of(model), model, named)
    assert set(tensors) == set(reference.gradients)
    for key, gradient in tensors.items():
        close(key, gradient, reference.gradients[key])


def logits(model, batch):
    """Returns what transformers calls the logits of a model."""
    if isinstance(model, Bert):
        x, pooled, _ = model.encode(batch, training=False)
        return {
            "prediction_logits": model.predict(x),
            "seq_relationship_logits": model.next_sentence(pooled),
        }
    if isinstance(model, SpanExtractor):
        return dict(zip(("start_logits", "end_logits"), model(batch)))
    if isinstance(model, Classifier):
        return {"logits": model(batch)[0]}
    if isinstance(model, EncoderDecoder):
        return {"logits": model(batch["inputs"], batch["tokens"])}
    return {"logits": model(batch["tokens"])}


def in_order(x):
    """Returns a tensor with its dimensions in the order of Hugging Face."""
    return mtf.transpose(x, [name for name in ORDER if name in x.shape.names])


def close(name, results, expected):
    """Compares to 1e-4 of the largest number; a few gradients are 0 up to rounding."""
    error = float(np.max(np.abs(results - expected)))
    assert error <= 1e-4 * float(np.max(np.abs(expected))) + 1e-6, f"{name}: {error}"


def test_every_part_shows_in_the_numbers():
    """A weight that did not matter would be compared in vain."""
    for name in NAMES:
        reference = Reference(name)
        dead = [key for key, g in reference.gradients.items() if np.abs(g).max() < 1e-3]
        # Softmax does not see what all its scores have in common, nor a norm of BERT's
        # last block what all positions do.
        assert all(
            key.endswith(("key.bias", "qa_outputs.bias", "1.output.LayerNorm.bias"))
            for key in dead
        ), (name, dead)
        assert reference.outputs and all(
            x.std() > 0.1 for x in reference.outputs.values()
        )
        assert reference.config["vocab_size"] == VOCAB
