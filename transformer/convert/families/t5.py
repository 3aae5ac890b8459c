"""T5 1.0 and 1.1 (Raffel et al., 2019, arXiv 1910.10683): Hugging Face's
`T5ForConditionalGeneration`.

Attention scores are not scaled. All blocks of an encoder or decoder share one table of
relative positions; in Hugging Face's files it belongs to the first block. T5 1.0 ties the
logits to the embedding and scales them; 1.1 has a separate kernel for logits, and gated
activations.
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

# Tables of conversion rules, as in `transformer/convert/rules.py`: Hugging Face's tensor, our
# variable, the axes of the tensor; dimensions in brackets are merged into one axis.
_SHARED = "shared.weight    embedding/table   vocab d_model"
_LOGITS = "lm_head.weight   logits/kernel     vocab d_model"
_STACK = """
  block.0.layer.0.SelfAttention.relative_attention_bias.weight   relative_bias/table   buckets heads
  final_layer_norm.weight                                        norm/scale            d_model
"""
# SUBLAYER is replaced by the index of the sublayer in its block; THEIRS and OURS by Hugging
# Face's and our name of an attention layer.
_ATTENTION = """
  layer.SUBLAYER.layer_norm.weight   OURS_norm/scale      d_model
  layer.SUBLAYER.THEIRS.q.weight     OURS/query/kernel    (heads d_kv) d_model
  layer.SUBLAYER.THEIRS.k.weight     OURS/key/kernel      (heads d_kv) d_model
  layer.SUBLAYER.THEIRS.v.weight     OURS/value/kernel    (heads d_kv) d_model
  layer.SUBLAYER.THEIRS.o.weight     OURS/output/kernel   d_model (heads d_kv)
"""
_FEED_FORWARD = """
  layer.SUBLAYER.layer_norm.weight          feed_forward_norm/scale   d_model
  layer.SUBLAYER.DenseReluDense.wo.weight   feed_forward/wo/kernel    d_model d_ff
"""
# KERNEL is "wi", or "wi_0" and "wi_1" of a gated activation.
_INPUT_KERNEL = """
  layer.SUBLAYER.DenseReluDense.KERNEL.weight   feed_forward/KERNEL/kernel   d_ff d_model
"""
# Hugging Face's `feed_forward_proj` -> our activation; its "gated-gelu" is the tanh
# approximation, as our "geglu" is.
_PROJECTIONS = {
    "relu": "relu",
    "gated-gelu": "geglu",
    "gated-silu": "swiglu",
    "gated-relu": "reglu",
    "gelu_new": "gelu",
    "gelu": "gelu_exact",
}
_GATED = ("geglu", "swiglu", "reglu")


def _read_config(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `EncoderDecoder` for a config.json, by name."""
    projection = settings.get("feed_forward_proj", "relu")
    if projection not in _PROJECTIONS:
        raise mtf.CheckpointError(
            f"config.json has feed_forward_proj = {projection!r}; supported are "
            f"{', '.join(_PROJECTIONS)}."
        )
    function = projection.rpartition("-")[2]  # of both, "gelu_new" and "gated-gelu"
    settings.require(
        is_encoder_decoder=True,
        is_decoder=False,
        pad_token_id=0,  # the id that our models leave out
        decoder_start_token_id=0,  # the token before the first one
        # Files may repeat what `feed_forward_proj` says.
        dense_act_fn="gelu_new" if projection == "gated-gelu" else function,
        is_gated_act=projection.startswith("gated-"),
    )
    # If config.json has no `scale_decoder_outputs`, logits are scaled if they are tied.
    is_tied = settings.get("tie_word_embeddings", True)
    has_scaled_logits = settings.get("scale_decoder_outputs", is_tied)
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
        tied=has_scaled_logits or "lm_head.weight" not in names,
        scaled_logits=has_scaled_logits,
        scaled_attention=False,
    )
    decoder_blocks = settings.get("num_decoder_layers", encoder.blocks)
    decoder = None  # the same as the encoder
    if decoder_blocks != encoder.blocks:
        decoder = dataclasses.replace(encoder, blocks=decoder_blocks)
    return {"architecture": encoder, "decoder": decoder}


def _write_config(model: EncoderDecoder) -> dict[str, Any]:
    """Returns the settings of config.json for a model."""
    architecture = model.architecture
    projection_of = {ours: theirs for theirs, ours in _PROJECTIONS.items()}
    return {
        "model_type": "t5",
        "vocab_size": architecture.vocab,
        "d_model": architecture.d_model,
        "d_kv": architecture.d_kv,
        "d_ff": architecture.d_ff,
        "num_layers": architecture.blocks,
        "num_decoder_layers": model.decoder.architecture.blocks,
        "num_heads": architecture.heads,
        "relative_attention_num_buckets": architecture.buckets,
        "relative_attention_max_distance": architecture.max_distance,
        "dropout_rate": architecture.dropout,
        "layer_norm_epsilon": architecture.epsilon,
        "feed_forward_proj": projection_of.get(
            architecture.activation, architecture.activation
        ),
        "tie_word_embeddings": architecture.tied,
        "scale_decoder_outputs": architecture.tied and architecture.scaled_logits,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


def _rules(model: EncoderDecoder) -> list[Rule]:
    """Returns the conversion rules of a model."""
    prefix = "encoder_decoder/"
    rules = table(_SHARED, variable_prefix=prefix)
    if not model.architecture.tied:
        rules += table(_LOGITS, variable_prefix=prefix)
    for name in ("encoder", "decoder"):
        stack = getattr(model, name)
        rules += table(
            _STACK, tensor_prefix=f"{name}.", variable_prefix=f"{prefix}{name}/"
        )
        sublayer_tables = [_attention_table(theirs="SelfAttention", ours="attention")]
        if name == "decoder":
            sublayer_tables.append(
                _attention_table(theirs="EncDecAttention", ours="memory_attention")
            )
        sublayer_tables.append(_feed_forward_table(stack.architecture.activation))
        block_table = "\n".join(
            text.strip().replace("SUBLAYER", str(index))
            for index, text in enumerate(sublayer_tables)
        )
        # {{layer}} stays "{layer}": `block_rules` replaces it.
        tensor_prefix = f"{name}.block.{{layer}}."
        rules += block_rules(stack, block_table, tensor_prefix=tensor_prefix)
    return rules


def _attention_table(theirs: str, ours: str) -> str:
    """Returns the table of an attention layer and its norm."""
    return _ATTENTION.replace("THEIRS", theirs).replace("OURS", ours)


def _feed_forward_table(activation: str) -> str:
    """Returns the table of a feed-forward sublayer and its norm."""
    kernels = ("wi_0", "wi_1") if activation in _GATED else ("wi",)
    input_kernels = [_INPUT_KERNEL.replace("KERNEL", kernel) for kernel in kernels]
    return _FEED_FORWARD + "".join(input_kernels)


def _copies(model: EncoderDecoder) -> dict[str, str]:
    """Returns the name of each tensor that files may repeat -> the name of its original."""
    copies = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
    if model.architecture.tied:
        copies.append("lm_head.weight")
    return dict.fromkeys(copies, "shared.weight")


T5 = Family(
    class_names=["T5ForConditionalGeneration", "T5WithLMHeadModel"],
    model_class=EncoderDecoder,
    read_config=_read_config,
    write_config=_write_config,
    rules=_rules,
    ignored_names=r"EncDecAttention\.relative_attention_bias",
    copies=_copies,
)
