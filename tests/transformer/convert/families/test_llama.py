"""Llama 3.1, Mistral and Qwen2 compute what the published formulas say, and go back as they
came; rotary positions of other kinds are refused by name.
"""

from __future__ import annotations

import json

import gin
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import meshtf as mtf
from tests.transformer.convert.families.numpy_llama import (
    SIZES,
    draw,
    frequencies,
    logits,
)
from transformer.convert import read_model, read_run, write_model, write_run
from transformer.inference.decoder import Decoder

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
DEFAULT = {"rope_type": "default", "rope_theta": 50.0}
CONFIGS = {
    "llama3": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_parameters": {**LLAMA3, "rope_theta": 50.0},
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "rope_parameters": DEFAULT,
        "sliding_window": None,
    },
    "mistral_window": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "rope_parameters": DEFAULT,
        "sliding_window": 5,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "rope_parameters": DEFAULT,
        "use_sliding_window": False,
        "sliding_window": 4,  # without effect
        "max_window_layers": 1,
        "layer_types": ["full_attention", "full_attention"],
    },
}
MESHES = [
    ("", "", None),
    ("data:2; model:2", "batch:data; heads:model; d_ff:model; vocab:model", None),
    ("data:2; model:2", "batch:data; kv_heads:model; d_ff:model", "spmd:cpu:4"),
]


@pytest.fixture(autouse=True)
def without_settings():
    gin.clear_config()
    yield
    gin.clear_config()


def computed(model, tokens):
    """Returns the logits of a model, [batch, length, vocab]."""
    step = mtf.function(lambda t: model(t), mesh=model.mesh, t="batch; length")
    return mtf.transpose(step(tokens), ["batch", "length", "vocab"]).numpy()


def write(folder, kind, **changes):
    """Writes a model of a kind; returns its config and its tensors."""
    config = {**SIZES, **CONFIGS[kind], **changes}
    tensors = draw(config, biases=kind == "qwen2")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return config, tensors


@pytest.mark.parametrize("axes, layout, devices", MESHES)
@pytest.mark.parametrize("kind", CONFIGS)
def test_logits_are_those_of_the_formulas(kind, axes, layout, devices, tmp_path):
    config, tensors = write(tmp_path, kind)
    mesh = mtf.Mesh(axes, layout, devices=devices)
    model = read_model(tmp_path, mesh)
    tokens = np.random.default_rng(1).integers(0, 24, (2, 13)).astype("int32")
    results = computed(model, tokens)
    expected = logits(config, tensors, tokens)
    np.testing.assert_allclose(results, expected, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("kind", CONFIGS)
def test_decoding_is_the_same_model(kind, tmp_path):
    config, tensors = write(tmp_path, kind)
    model = read_model(tmp_path, mtf.Mesh(""))
    prompt = [3, 1, 4, 1, 5, 9, 2]
    decoder = Decoder(model, max_new_tokens=6, max_prompt_length=8, temperature=0.0)
    (completion,) = decoder([prompt], seed=0)
    ids = list(prompt)
    while len(ids) < len(prompt) + 6:
        next_logits = logits(config, tensors, np.array([ids]))[0, -1]
        ids.append(int(next_logits.argmax()))
    assert list(completion.ids) == ids[len(prompt) :]


@pytest.mark.parametrize("kind", CONFIGS)
def test_there_and_back(kind, tmp_path):
    config, tensors = write(tmp_path / "in", kind)
    write_run(read_model(tmp_path / "in", mtf.Mesh("")), tmp_path / "run")
    write_model(read_run(tmp_path / "run", mtf.Mesh("")), tmp_path / "out")
    again = json.loads((tmp_path / "out" / "config.json").read_text())
    assert {name: again.get(name) for name in CONFIGS[kind]} == {
        **CONFIGS[kind],
        **({"sliding_window": None} if kind == "qwen2" else {}),
        **({"max_window_layers": None, "layer_types": None} if kind == "qwen2" else {}),
    }
    results = load_file(tmp_path / "out" / "model.safetensors")
    assert {n: x.tobytes() for n, x in results.items()} == {
        n: x.tobytes() for n, x in tensors.items()
    }


def test_all_three_ranges_of_frequencies_are_drawn():
    config = {**SIZES, **CONFIGS["llama3"], "num_attention_heads": 2}
    unscaled = {**config, "rope_parameters": DEFAULT}
    ratio = frequencies(config) / frequencies(unscaled)
    assert ratio[0] == 1.0 and ratio[-1] == 1 / 8 and any((ratio > 0.13) & (ratio < 1))


def test_older_files_have_rope_scaling(tmp_path):
    write(
        tmp_path,
        "llama3",
        rope_parameters=None,
        rope_theta=50.0,
        rope_scaling={k.replace("rope_type", "type"): v for k, v in LLAMA3.items()},
    )
    architecture = read_model(tmp_path, mtf.Mesh("")).architecture
    assert architecture.rope_scaling == (8.0, 1.0, 4.0, 32)
    assert architecture.rope_theta == 50.0


@pytest.mark.parametrize(
    "kind, changes, message",
    [
        ("llama3", {"rope_parameters": {**LLAMA3, "rope_type": "yarn"}}, "'yarn'"),
        ("llama3", {"rope_parameters": {"full_attention": DEFAULT}}, "full_attention"),
        (
            "llama3",
            {"rope_parameters": {**DEFAULT, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor: 0.5",
        ),
        ("llama3", {"partial_rotary_factor": 0.25}, "partial_rotary_factor: 0.25"),
        ("llama3", {"rope_parameters": {**DEFAULT, "factor": 2.0}}, "factor: 2.0"),
        ("llama3", {"attention_dropout": 0.1}, "attention_dropout: 0.1"),
        ("llama3", {"attention_bias": True}, "attention_bias: True"),
        ("llama3", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ("llama3", {"sliding_window": 8}, "sliding_window: 8"),
        ("llama3", {"quantization_config": {"bits": 4}}, "quantization_config"),
        ("llama3", {"logit_scale": 0.5}, "logit_scale: 0.5"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window: True"),
        (
            "qwen2",
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types",
        ),
    ],
)
def test_what_the_model_lacks_is_named(kind, changes, message, tmp_path):
    write(tmp_path, kind, **changes)
    with pytest.raises(mtf.CheckpointError, match=message):
        read_model(tmp_path, mtf.Mesh(""))


def test_a_window_is_any_kind_of_attention_with_this_window(tmp_path):
    config, tensors = write(tmp_path, "mistral_window")
    tokens = np.random.default_rng(1).integers(0, 24, (2, 16)).astype("int32")
    expected = logits(config, tensors, tokens)
    for attention, block_length in (("blockwise", 4), ("local", 4), ("ring", 2)):
        changes = {"attention": attention, "block_length": block_length}
        model = read_model(tmp_path, mtf.Mesh("s:2", "length:s"), **changes)
        results = computed(model, tokens)
        np.testing.assert_allclose(results, expected, atol=1e-3)
    with pytest.raises(mtf.CheckpointError, match="window = 5, not 3"):
        read_model(tmp_path, mtf.Mesh(""), window=3)
