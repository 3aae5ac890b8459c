"""T5 1.0 and 1.1 (Raffel et al., 2019): `T5ForConditionalGeneration` of Hugging Face
transformers.

Attention scores are not scaled. All blocks of an encoder or decoder share one table of
relative positions; in the files it belongs to the first block. T5 1.0 ties logits to the
embedding, and scales them; 1.1 has a separate kernel for logits, and gated activations.
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
from transformer.models.encoder_decoder import EncoderDecoder

_SHARED = "shared.weight    embedding/table   vocab d_model"
_LOGITS = "lm_head.weight   logits/kernel     vocab d_model"
_STACK = """
  block.0.layer.0.SelfAttention.relative_attention_bias.weight   relative_bias/table   buckets heads
  final_layer_norm.weight                                        norm/scale            d_model
"""
_ATTENTION = """
  layer.SUBLAYER.layer_norm.weight   VARIABLE_norm/scale      d_model
  layer.SUBLAYER.TENSOR.q.weight     VARIABLE/query/kernel    (heads d_kv) d_model
  layer.SUBLAYER.TENSOR.k.weight     VARIABLE/key/kernel      (heads d_kv) d_model
  layer.SUBLAYER.TENSOR.v.weight     VARIABLE/value/kernel    (heads d_kv) d_model
  layer.SUBLAYER.TENSOR.o.weight     VARIABLE/output/kernel   d_model (heads d_kv)
"""
_FEED_FORWARD = """
  layer.SUBLAYER.layer_norm.weight          feed_forward_norm/scale   d_model
  layer.SUBLAYER.DenseReluDense.wo.weight   feed_forward/wo/kernel    d_model d_ff
"""
_INPUT_KERNEL = """
  layer.SUBLAYER.DenseReluDense.{0}.weight   feed_forward/{0}/kernel   d_ff d_model
"""
# From `feed_forward_proj` to our activation; "gated-gelu" is the approximation by tanh.
_PROJECTIONS = {
    "relu": "relu",
    "gated-gelu": "geglu",
    "gated-silu": "swiglu",
    "gated-relu": "reglu",
    "gelu_new": "gelu",
    "gelu": "gelu_exact",
}
_GATED = ("geglu", "swiglu", "reglu")


def _read(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    projection = settings.get("feed_forward_proj", "relu")
    if projection not in _PROJECTIONS:
        raise mtf.CheckpointError(
            f"config.json has feed_forward_proj = {projection!r}; supported are "
            f"{', '.join(_PROJECTIONS)}."
        )
    scaled = settings.get(
        "scale_decoder_outputs", settings.get("tie_word_embeddings", True)
    )
    encoder = Architecture(
        vocab=settings["vocab_size"],
        d_model=settings["d_model"],
        d_ff=settings["d_ff"],
        heads=settings["num_heads"],
        d_kv=settings["d_kv"],
        blocks=settings["num_layers"],
        activation=_PROJECTIONS[projection],
        dropout=settings.get("dropout_rate", 0.1),
        epsilon=settings.get("layer_norm_epsilon", 1e-6),
        positions="relative",
        buckets=settings.get("relative_attention_num_buckets", 32),
        max_distance=settings.get("relative_attention_max_distance", 128),
        tied=scaled or "lm_head.weight" not in names,
        scaled_logits=scaled,
        scaled_attention=False,
    )
    blocks = settings.get("num_decoder_layers", encoder.blocks)
    decoder = None
    if blocks != encoder.blocks:
        decoder = dataclasses.replace(encoder, blocks=blocks)
    return {
        "architecture": encoder,
        "decoder": decoder,
    }


def _write(model: EncoderDecoder) -> dict[str, Any]:
    a = model.architecture
    projections = {activation: name for name, activation in _PROJECTIONS.items()}
    return {
        "model_type": "t5",
        "vocab_size": a.vocab,
        "d_model": a.d_model,
        "d_kv": a.d_kv,
        "d_ff": a.d_ff,
        "num_layers": a.blocks,
        "num_decoder_layers": model.decoder.architecture.blocks,
        "num_heads": a.heads,
        "relative_attention_num_buckets": a.buckets,
        "relative_attention_max_distance": a.max_distance,
        "dropout_rate": a.dropout,
        "layer_norm_epsilon": a.epsilon,
        "feed_forward_proj": projections.get(a.activation, a.activation),
        "tie_word_embeddings": a.tied,
        "scale_decoder_outputs": a.tied and a.scaled_logits,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _rules(model: EncoderDecoder) -> list[Rule]:
    logits = "" if model.architecture.tied else "\n" + _LOGITS
    rules = table(_SHARED + logits, "", "encoder_decoder/")
    for stack_name in ("encoder", "decoder"):
        stack = getattr(model, stack_name)
        is_gated = stack.architecture.activation in _GATED
        kernels = ("wi_0", "wi_1") if is_gated else ("wi",)
        sublayers = [
            _ATTENTION.replace("TENSOR", "SelfAttention").replace(
                "VARIABLE", "attention"
            )
        ]
        if stack_name == "decoder":
            sublayers.append(
                _ATTENTION.replace("TENSOR", "EncDecAttention").replace(
                    "VARIABLE", "memory_attention"
                )
            )
        sublayers.append(
            _FEED_FORWARD + "".join(_INPUT_KERNEL.format(name) for name in kernels)
        )
        block = "\n".join(
            text.strip().replace("SUBLAYER", str(i)) for i, text in enumerate(sublayers)
        )
        rules += table(_STACK, f"{stack_name}.", f"encoder_decoder/{stack_name}/")
        rules += block_rules(stack, block, f"{stack_name}.block.{{layer}}.")
    return rules


def _copies(model: EncoderDecoder) -> dict[str, str]:
    tied = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    return dict.fromkeys(
        tied + ["lm_head.weight"] * model.architecture.tied, "shared.weight"
    )


T5 = Family(
    ["T5ForConditionalGeneration", "T5WithLMHeadModel"],
    EncoderDecoder,
    _read,
    _write,
    _rules,
    ignored_names=r"EncDecAttention\.relative_attention_bias",
    copies=_copies,
)
