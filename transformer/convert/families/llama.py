"""Llama (Touvron et al., 2023), Mistral (Jiang et al., 2023) and Qwen2 (Yang et al., 2024):
`LlamaForCausalLM`, `MistralForCausalLM` and `Qwen2ForCausalLM` of Hugging Face transformers.

As in our models, query heads that share keys and values are adjacent, and rotary positions
pair the two halves of a head. Mistral may attend to a window of the last tokens only; Qwen2 has
biases of queries, keys and values. The tables are conversion rules: see
`transformer.convert.rules`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import meshtf as mtf
from transformer.convert.config_settings import Settings
from transformer.convert.families.block_rules import block_rules
from transformer.convert.families.family import Family
from transformer.convert.rules import Rule, table
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

# Tables of conversion rules: Hugging Face's tensor, our variable, the axes of the tensor;
# dimensions in brackets are merged into one axis.
_OUTSIDE_BLOCKS = """
  model.embed_tokens.weight   embedding/table      vocab d_model
  model.norm.weight           decoder/norm/scale   d_model
"""
# HEADS is replaced by our dimensions of query heads, KV_HEADS by those of heads of keys and
# values.
_BLOCK = """
  input_layernorm.weight            attention_norm/scale       d_model
  self_attn.q_proj.weight           attention/query/kernel     (HEADS d_kv) d_model
  self_attn.k_proj.weight           attention/key/kernel       (KV_HEADS d_kv) d_model
  self_attn.v_proj.weight           attention/value/kernel     (KV_HEADS d_kv) d_model
  self_attn.o_proj.weight           attention/output/kernel    d_model (HEADS d_kv)
  post_attention_layernorm.weight   feed_forward_norm/scale    d_model
  mlp.gate_proj.weight              feed_forward/wi_0/kernel   d_ff d_model
  mlp.up_proj.weight                feed_forward/wi_1/kernel   d_ff d_model
  mlp.down_proj.weight              feed_forward/wo/kernel     d_model d_ff
"""
_QKV_BIASES = """
  self_attn.q_proj.bias   attention/query/bias   (HEADS d_kv)
  self_attn.k_proj.bias   attention/key/bias     (KV_HEADS d_kv)
  self_attn.v_proj.bias   attention/value/bias   (KV_HEADS d_kv)
"""
_LOGITS = "lm_head.weight   logits/kernel   vocab d_model"
# The names in config.json of the fields of `mtf.layers.RotaryScaling`.
_SCALING = {
    "factor": "factor",
    "low_frequency": "low_freq_factor",
    "high_frequency": "high_freq_factor",
    "length": "original_max_position_embeddings",
}


def _read_llama(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `LanguageModel` for the config.json of a Llama, by name. The
    names of tensors are not used.
    """
    return {"architecture": _architecture(settings)}


def _read_mistral(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `LanguageModel` for the config.json of a Mistral, by name."""
    window = settings["sliding_window"]  # the last tokens, with the token itself
    return {"architecture": _architecture(settings, window=window)}


def _read_qwen2(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `LanguageModel` for the config.json of a Qwen2, by name."""
    settings.require(use_sliding_window=False, use_mrope=False)
    # Without `use_sliding_window`, the next two have no effect.
    settings.get("sliding_window")
    settings.get("max_window_layers")
    return {"architecture": _architecture(settings, qkv_bias=True)}


def _architecture(settings: Settings, **changes: Any) -> Architecture:
    """Returns the architecture of a config.json.

    Args:
      settings: the settings of the config.json.
      **changes: settings of the architecture that differ from Llama's.
    """
    blocks = settings["num_hidden_layers"]
    settings.require(
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        attention_dropout=0.0,  # there is no other dropout, and our models have one rate
        pretraining_tp=1,
        is_encoder_decoder=False,
        layer_types=["full_attention"] * blocks,
    )
    d_model = settings["hidden_size"]
    heads = settings["num_attention_heads"]
    is_tied = settings.get("tie_word_embeddings", False)
    return Architecture(
        vocab=settings["vocab_size"],
        d_model=d_model,
        d_ff=settings["intermediate_size"],
        heads=heads,
        d_kv=settings.get("head_dim", d_model // heads),
        blocks=blocks,
        kv_heads=settings.get("num_key_value_heads", heads),
        activation="swiglu",
        epsilon=settings.get("rms_norm_eps", 1e-6),
        max_length=settings.get("max_position_embeddings", 2048),
        tied=is_tied,
        scaled_logits=not is_tied,  # untied logits are never scaled
        **_rotary_positions(settings),
        **changes,
    )


def _rotary_positions(settings: Settings) -> dict[str, Any]:
    """Returns the settings of an architecture for rotary positions, by name.

    Raises:
      CheckpointError: positions are scaled in a way that is not supported, or differ between
        layers, or rotate a fraction of a head.
    """
    settings.require(partial_rotary_factor=1.0, rope_interleaved=False)
    # Newer files have all in "rope_parameters". Older files have "rope_theta" among the other
    # settings, and "rope_scaling", whose kind is called "type" in the oldest ones.
    rope_theta = settings.get("rope_theta", 10000.0)
    older_scaling = settings.get("rope_scaling", {})
    values = settings.get("rope_parameters", older_scaling)
    by_layer_type = [name for name, value in values.items() if isinstance(value, dict)]
    if by_layer_type:
        raise mtf.CheckpointError(
            "config.json has rope_parameters for each type of layers, "
            f"{', '.join(by_layer_type)}; here all layers have the same."
        )
    rotary = Settings(values)
    rotary.require(partial_rotary_factor=1.0)
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    scaling = None
    if kind == "llama3":
        scaling = tuple(rotary[name] for name in _SCALING.values())
    elif kind != "default":
        raise mtf.CheckpointError(
            f"config.json has rotary positions of rope_type {kind!r}; supported are default "
            "and llama3."
        )
    rope_theta = rotary.get("rope_theta", rope_theta)
    rotary.refuse_unread(harmless=())
    return {"rope_theta": rope_theta, "rope_scaling": scaling}


def _write_config(model: LanguageModel) -> dict[str, Any]:
    """Returns the settings of config.json for a Llama."""
    architecture = model.architecture
    scaling: dict[str, Any] = {"rope_type": "default"}
    older_scaling = {}
    if architecture.rope_scaling is not None:
        scaling = {"rope_type": "llama3"}
        scaling |= dict(zip(_SCALING.values(), architecture.rope_scaling))
        older_scaling = {"rope_scaling": scaling}
    return {
        "model_type": "llama",
        "vocab_size": architecture.vocab,
        "hidden_size": architecture.d_model,
        "intermediate_size": architecture.d_ff,
        "num_hidden_layers": architecture.blocks,
        "num_attention_heads": architecture.heads,
        "num_key_value_heads": architecture.kv_heads or architecture.heads,
        "head_dim": architecture.d_kv,
        "hidden_act": "silu",
        "rms_norm_eps": architecture.epsilon,
        "max_position_embeddings": architecture.max_length,
        "tie_word_embeddings": architecture.tied,
        "rope_parameters": {**scaling, "rope_theta": architecture.rope_theta},
        "rope_theta": architecture.rope_theta,
        **older_scaling,
    }


def _write_mistral(model: LanguageModel) -> dict[str, Any]:
    """Returns the settings of config.json for a Mistral."""
    architecture = model.architecture
    window = architecture.window
    if window is None and architecture.attention == "local":
        window = architecture.block_length + 1
    return {
        **_write_config(model),
        "model_type": "mistral",
        "sliding_window": window,
    }


def _write_qwen2(model: LanguageModel) -> dict[str, Any]:
    """Returns the settings of config.json for a Qwen2."""
    return {
        **_write_config(model),
        "model_type": "qwen2",
        "use_sliding_window": False,
    }


def _rules(model: LanguageModel) -> list[Rule]:
    """Returns the conversion rules of a model."""
    architecture = model.architecture
    block_table = _BLOCK
    if architecture.qkv_bias:
        block_table += _QKV_BIASES
    # KV_HEADS first, since it contains HEADS.
    block_table = block_table.replace(
        "KV_HEADS", " ".join(architecture.kv_head_dims.names)
    )
    block_table = block_table.replace("HEADS", " ".join(architecture.head_dims.names))
    outside_table = _OUTSIDE_BLOCKS
    if not architecture.tied:
        outside_table += _LOGITS
    return [
        *table(outside_table, tensor_prefix="", variable_prefix="language_model/"),
        *block_rules(model.decoder, block_table, tensor_prefix="model.layers.{layer}."),
    ]


def _copies(model: LanguageModel) -> dict[str, str]:
    """Returns the name of each tensor that files may repeat -> the name of its original."""
    if model.architecture.tied:
        return {"lm_head.weight": "model.embed_tokens.weight"}
    return {}


LLAMA = Family(
    class_names=["LlamaForCausalLM"],
    model_class=LanguageModel,
    read_config=_read_llama,
    write_config=_write_config,
    rules=_rules,
    ignored_names=r"\.rotary_emb\.inv_freq$",
    copies=_copies,
)
MISTRAL = dataclasses.replace(
    LLAMA,
    class_names=["MistralForCausalLM"],
    read_config=_read_mistral,
    write_config=_write_mistral,
)
QWEN2 = dataclasses.replace(
    LLAMA,
    class_names=["Qwen2ForCausalLM"],
    read_config=_read_qwen2,
    write_config=_write_qwen2,
)
