"""Llama, Mistral and Qwen2 in NumPy, from the tensors and the config.json of Hugging Face."""

from __future__ import annotations

import math

import numpy as np

SIZES = {
    "vocab_size": 24,
    "hidden_size": 16,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def draw(config, biases=False, seed=0):
    """Returns random tensors of a config.json, by name."""
    rng = np.random.default_rng(seed)
    d, ff = config["hidden_size"], config["intermediate_size"]
    key = d // config["num_attention_heads"]
    kv = key * config["num_key_value_heads"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], d)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        of_layer = {
            "self_attn.q_proj.weight": (d, d),
            "self_attn.k_proj.weight": (kv, d),
            "self_attn.v_proj.weight": (kv, d),
            "self_attn.o_proj.weight": (d, d),
            "mlp.gate_proj.weight": (ff, d),
            "mlp.up_proj.weight": (ff, d),
            "mlp.down_proj.weight": (d, ff),
            "input_layernorm.weight": (d,),
            "post_attention_layernorm.weight": (d,),
        }
        if biases:
            of_layer |= {
                "self_attn.q_proj.bias": (d,),
                "self_attn.k_proj.bias": (kv,),
                "self_attn.v_proj.bias": (kv,),
            }
        shapes |= {prefix + name: shape for name, shape in of_layer.items()}
    shapes |= {"model.norm.weight": (d,), "lm_head.weight": (config["vocab_size"], d)}
    return {
        name: rng.normal(0.0, 0.5, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def frequencies(config):
    """Returns the frequencies of rotary positions, as Llama 3.1 publishes them."""
    key = config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    inverse = rope["rope_theta"] ** -(np.arange(0, key, 2) / key)
    if rope["rope_type"] == "default":
        return inverse
    original = rope["original_max_position_embeddings"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    results = []
    for frequency in inverse:
        wave_length = 2 * math.pi / frequency
        if wave_length < original / high:
            results.append(frequency)
        elif wave_length > original / low:
            results.append(frequency / rope["factor"])
        else:
            smooth = (original / wave_length - low) / (high - low)
            results.append(
                (1 - smooth) * frequency / rope["factor"] + smooth * frequency
            )
    return np.array(results)


def logits(config, tensors, tokens):
    """Returns the logits [batch, length, vocab] of tokens [batch, length], in float64."""
    w = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    length = tokens.shape[1]
    angles = np.arange(length)[:, None] * frequencies(config)
    cos, sin = (np.concatenate([f(angles)] * 2, 1) for f in (np.cos, np.sin))
    distance = np.arange(length)[:, None] - np.arange(length)
    window = config.get("use_sliding_window", True) and config.get("sliding_window")
    mask = np.where((distance >= 0) & (distance < (window or length)), 0.0, -1e30)
    key = config["hidden_size"] // config["num_attention_heads"]
    shared = config["num_attention_heads"] // config["num_key_value_heads"]

    def norm(x, name):
        scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + config["rms_norm_eps"])
        return x * scale * w[name]

    def heads(x, name, rotate, repeats=1):
        y = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)
        y = y.reshape(*y.shape[:-1], -1, key).swapaxes(1, 2)
        if rotate:
            a, b = np.split(y, 2, -1)
            y = y * cos + np.concatenate([-b, a], -1) * sin
        return y.repeat(repeats, 1)

    x = w["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        h = norm(x, prefix + "input_layernorm.weight")
        q = heads(h, prefix + "self_attn.q_proj", rotate=True)
        k = heads(h, prefix + "self_attn.k_proj", rotate=True, repeats=shared)
        v = heads(h, prefix + "self_attn.v_proj", rotate=False, repeats=shared)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(key) + mask
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        y = (weights @ v).swapaxes(1, 2).reshape(x.shape)
        x = x + y @ w[prefix + "self_attn.o_proj.weight"].T
        h = norm(x, prefix + "post_attention_layernorm.weight")
        gate = h @ w[prefix + "mlp.gate_proj.weight"].T
        up = h @ w[prefix + "mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[prefix + "mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight") @ w["lm_head.weight"].T
