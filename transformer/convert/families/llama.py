"""Llama (Touvron et al., 2023): `LlamaForCausalLM` of Hugging Face transformers.

As in our models, query heads that share keys and values are adjacent, and rotary positions
pair the two halves of a head. Rotary positions that are scaled for longer texts raise an
error. The tables are conversion rules: see `transformer.convert.rules`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

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
_LOGITS = "lm_head.weight   logits/kernel   vocab d_model"


def _read_config(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `LanguageModel` for a config.json, by name. The names of
    tensors are not used.
    """
    settings.require(
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        pretraining_tp=1,
        rope_scaling=None,
    )
    # Newer files have the rotary settings in "rope_parameters"; older files have them among the
    # other settings.
    rotary_settings = Settings(settings.get("rope_parameters", {}))
    rotary_settings.require(rope_type="default")
    rope_theta = rotary_settings.get("rope_theta", settings.get("rope_theta", 10000.0))
    d_model = settings["hidden_size"]
    heads = settings["num_attention_heads"]
    is_tied = settings.get("tie_word_embeddings", False)
    return {
        "architecture": Architecture(
            vocab=settings["vocab_size"],
            d_model=d_model,
            d_ff=settings["intermediate_size"],
            heads=heads,
            d_kv=settings.get("head_dim", d_model // heads),
            blocks=settings["num_hidden_layers"],
            kv_heads=settings.get("num_key_value_heads", heads),
            activation="swiglu",
            epsilon=settings.get("rms_norm_eps", 1e-6),
            rope_theta=rope_theta,
            max_length=settings.get("max_position_embeddings", 2048),
            tied=is_tied,
            scaled_logits=not is_tied,  # untied logits are never scaled
        )
    }


def _write_config(model: LanguageModel) -> dict[str, Any]:
    """Returns the settings of config.json for a model."""
    architecture = model.architecture
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
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": architecture.rope_theta,
        },
        "rope_theta": architecture.rope_theta,
    }


def _rules(model: LanguageModel) -> list[Rule]:
    """Returns the conversion rules of a model."""
    architecture = model.architecture
    # KV_HEADS first, since it contains HEADS.
    block_table = _BLOCK.replace("KV_HEADS", " ".join(architecture.kv_head_dims.names))
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
    read_config=_read_config,
    write_config=_write_config,
    rules=_rules,
    ignored_names=r"\.rotary_emb\.inv_freq$",
    copies=_copies,
)
