"""Folders of Hugging Face: converting there and back changes no bit; older files;
errors.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import meshtf as mtf
from tests.transformer.convert.references import NAMES, Reference, write
from transformer.convert import read_model, write_model
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

FILE = "model.safetensors"
BRANCH_OPS = mtf.Mesh("")


@pytest.fixture
def gpt2(tmp_path):
    """A folder with the reference of GPT-2, and its weights, to be changed."""
    reference = Reference("gpt2")
    write(reference, tmp_path)
    return tmp_path, dict(reference.weights)


def replace(folder, weights, **config):
    """Writes other weights, and other settings."""
    save_file(weights, folder / FILE)
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(said | config))


def values(model):
    return {v.name: v.numpy().tobytes() for v in model.variables}


@pytest.mark.parametrize(
    "changes", [{}, {"scanned": True, "vocab_multiple": 16}], ids=["", "scanned"]
)
@pytest.mark.parametrize("name", NAMES)
def test_converting_back_changes_no_bit(name, changes, tmp_path):
    reference, there, again = Reference(name), tmp_path / "there", tmp_path / "again"
    there.mkdir()
    write(reference, there)
    model = read_model(there, BRANCH_OPS, **changes)
    write_model(model, again)
    results = load_file(again / FILE)
    assert set(results) == set(reference.weights)
    assert all(
        results[n].tobytes() == w.tobytes() for n, w in reference.weights.items()
    )
    second = read_model(again, BRANCH_OPS, **changes)
    assert second.architecture == dataclasses.replace(
        model.architecture, dropout=second.architecture.dropout
    )
    assert values(second) == values(model)


@pytest.mark.parametrize("name", NAMES)
def test_converting_back_keeps_config_json(name, tmp_path):
    write(reference := Reference(name), tmp_path)
    write_model(read_model(tmp_path, BRANCH_OPS), tmp_path / "again")
    again = json.loads((tmp_path / "again" / "config.json").read_text())
    # Written anew by transformers 5, a T5 1.1 says that it is tied; files from the hub
    # do not.
    differ = {
        key: value
        for key, value in again.items()
        if key != "rope_theta" and value != reference.config.get(key)
    }
    assert differ == ({"tie_word_embeddings": False} if name == "t5_1_1" else {})


def test_older_names_buffers_and_copies(gpt2):
    folder, weights = gpt2
    expected = values(read_model(folder, BRANCH_OPS))
    renamed = {name.removeprefix("transformer."): w for name, w in weights.items()}
    renamed |= {
        "h.0.attn.bias": np.ones((1, 1, 4, 4), np.float32),
        "lm_head.weight": renamed["wte.weight"],
    }
    replace(folder, renamed)
    assert values(read_model(folder, BRANCH_OPS)) == expected


def test_gamma_and_beta(tmp_path):
    write(reference := Reference("bert"), tmp_path)
    expected = values(read_model(tmp_path, BRANCH_OPS))
    replace(
        tmp_path,
        {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): w
            for name, w in reference.weights.items()
        },
        architectures=["BertForMaskedLM"],
    )
    assert values(read_model(tmp_path, BRANCH_OPS)) == expected


def test_a_decoder_may_have_another_number_of_blocks(tmp_path):
    write(reference := Reference("t5"), tmp_path)
    replace(
        tmp_path,
        {
            name: w
            for name, w in reference.weights.items()
            if not name.startswith("decoder.block.1")
        },
        num_decoder_layers=1,
    )
    model = read_model(tmp_path, BRANCH_OPS)
    assert (model.architecture.blocks, model.decoder.architecture.blocks) == (2, 1)
    write_model(model, tmp_path / "again")
    assert values(read_model(tmp_path / "again", BRANCH_OPS)) == values(model)


def test_logits_of_t5_1_1_may_be_tied_without_a_scale(tmp_path):
    write(reference := Reference("t5_1_1"), tmp_path)
    replace(
        tmp_path, {n: w for n, w in reference.weights.items() if n != "lm_head.weight"}
    )
    architecture = read_model(tmp_path, BRANCH_OPS).architecture
    assert architecture.tied and not architecture.scaled_logits


@pytest.mark.parametrize(
    "lost, added, message",
    [
        (
            "ln_f.bias",
            "ln_f.bais",
            r"transformer.ln_f.bias \(similar: transformer.ln_f.bais\)",
        ),
        ("ln_f.bias", None, "missing +transformer.ln_f.bias\n +unknown +-"),
        (None, "score.weight", "missing +-\n +unknown +transformer.score.weight"),
    ],
)
def test_names_that_differ(gpt2, lost, added, message):
    folder, weights = gpt2
    if lost:
        del weights[f"transformer.{lost}"]
    if added:
        weights[f"transformer.{added}"] = np.ones(16, np.float32)
    replace(folder, weights)
    with pytest.raises(mtf.CheckpointError, match=message):
        read_model(folder, BRANCH_OPS)


def test_shapes_that_differ(gpt2):
    folder, weights = gpt2
    replace(folder, weights, n_positions=15)
    with pytest.raises(
        mtf.CheckpointError, match=r"wpe.weight: \(14, 16\), expected \(15, 16\)"
    ):
        read_model(folder, BRANCH_OPS)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"architectures": ["OPTForCausalLM"]}, "OPTForCausalLM"),
        ({"architectures": None, "model_type": None}, "none"),
        ({"activation_function": "mish"}, "mish"),
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx: True",
        ),
    ],
)
def test_unsupported_settings_of_config_json(gpt2, config, message):
    folder, weights = gpt2
    replace(folder, weights, **config)
    with pytest.raises(mtf.CheckpointError, match=message):
        read_model(folder, BRANCH_OPS)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(mtf.CheckpointError, match="config.json cannot be read"):
        read_model(tmp_path, BRANCH_OPS)


@pytest.mark.parametrize(
    "kinds, message",
    [
        ({"positions": "sloped"}, "positions is 'sloped', not 'rotary'"),
        (
            {"positions": "rotary", "activation": "relu"},
            "activation is 'relu', not 'swiglu'",
        ),
        (
            {"positions": "learned", "norm": "layer"},
            "use_bias is False, not True",
        ),
    ],
)
def test_unsupported_models_leave_no_files(kinds, message, tmp_path):
    model = LanguageModel(
        BRANCH_OPS,
        Architecture(vocab=8, d_model=4, d_ff=4, heads=2, d_kv=2, blocks=1, **kinds),
    )
    with pytest.raises(mtf.CheckpointError, match=message):
        write_model(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())
