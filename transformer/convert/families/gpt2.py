"""GPT-2 (Radford et al., 2019): `GPT2LMHeadModel` of Hugging Face transformers.

Kernels are [in, out]; in the other families they are [out, in]. Queries, keys and values are one
fused tensor, stacked along `*`. Logits are a matmul with the embedding table. The tables are
conversion rules: see `transformer.convert.rules`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from transformer.convert.config_settings import Settings, hugging_face_activation
from transformer.convert.families.block_rules import block_rules
from transformer.convert.families.family import Family
from transformer.convert.rules import Rule, table
from transformer.models.architecture import Architecture
from transformer.models.language_model import LanguageModel

# Tables of conversion rules: Hugging Face's tensor, our variable, the axes of the tensor;
# dimensions in brackets are merged into one axis.
_OUTSIDE_BLOCKS = """
  wte.weight    embedding/table            vocab d_model
  wpe.weight    position_embedding/table   positions d_model
  ln_f.weight   decoder/norm/scale         d_model
  ln_f.bias     decoder/norm/bias          d_model
"""
_BLOCK = """
  ln_1.weight          attention_norm/scale                 d_model
  ln_1.bias            attention_norm/bias                  d_model
  attn.c_attn.weight   attention/[query,key,value]/kernel   d_model (* heads d_kv)
  attn.c_attn.bias     attention/[query,key,value]/bias     (* heads d_kv)
  attn.c_proj.weight   attention/output/kernel              (heads d_kv) d_model
  attn.c_proj.bias     attention/output/bias                d_model
  ln_2.weight          feed_forward_norm/scale              d_model
  ln_2.bias            feed_forward_norm/bias               d_model
  mlp.c_fc.weight      feed_forward/wi/kernel               d_model d_ff
  mlp.c_fc.bias        feed_forward/wi/bias                 d_ff
  mlp.c_proj.weight    feed_forward/wo/kernel               d_ff d_model
  mlp.c_proj.bias      feed_forward/wo/bias                 d_model
"""


def _read_config(settings: Settings, names: Collection[str]) -> dict[str, Any]:
    """Returns the arguments of `LanguageModel` for a config.json, by name. The names of
    tensors are not used.
    """
    dropout = settings.get("resid_pdrop", 0.1)
    settings.require(
        embd_pdrop=dropout,  # our models have one dropout rate
        attn_pdrop=dropout,
        is_encoder_decoder=False,
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    d_model = settings["n_embd"]
    heads = settings["n_head"]
    return {
        "architecture": Architecture(
            vocab=settings["vocab_size"],
            d_model=d_model,
            d_ff=settings.get("n_inner", 4 * d_model),
            heads=heads,
            d_kv=d_model // heads,
            blocks=settings["n_layer"],
            activation=settings.activation("activation_function"),
            dropout=dropout,
            norm="layer",
            epsilon=settings.get("layer_norm_epsilon", 1e-5),
            use_bias=True,
            positions="learned",
            max_length=settings["n_positions"],
            tied=True,
            scaled_logits=False,
        )
    }


def _write_config(model: LanguageModel) -> dict[str, Any]:
    """Returns the settings of config.json for a model."""
    architecture = model.architecture
    return {
        "model_type": "gpt2",
        "vocab_size": architecture.vocab,
        "n_positions": architecture.max_length,
        "n_embd": architecture.d_model,
        "n_layer": architecture.blocks,
        "n_head": architecture.heads,
        "n_inner": architecture.d_ff,
        "activation_function": hugging_face_activation(architecture.activation),
        "layer_norm_epsilon": architecture.epsilon,
        "resid_pdrop": architecture.dropout,
        "embd_pdrop": architecture.dropout,
        "attn_pdrop": architecture.dropout,
        "tie_word_embeddings": True,
    }


def _rules(model: LanguageModel) -> list[Rule]:
    """Returns the conversion rules of a model."""
    return [
        *table(
            _OUTSIDE_BLOCKS,
            tensor_prefix="transformer.",
            variable_prefix="language_model/",
        ),
        *block_rules(model.decoder, _BLOCK, tensor_prefix="transformer.h.{layer}."),
    ]


GPT2 = Family(
    class_names=["GPT2LMHeadModel", "GPT2Model"],
    model_class=LanguageModel,
    read_config=_read_config,
    write_config=_write_config,
    rules=_rules,
    # Older files lack the prefix "transformer.".
    renames=[(r"^(?=(h|wte|wpe|ln_f)\.)", "transformer.")],
    ignored_names=r"\.attn\.(bias|masked_bias)$",
    copies=lambda model: {"lm_head.weight": "transformer.wte.weight"},
)
