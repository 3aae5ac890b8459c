"""All families: which one reads a folder, and which one writes a model.

family, model_arguments = family_and_arguments(config, names)
family = family_of(model)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import meshtf as mtf
from transformer.convert.config_settings import Settings
from transformer.convert.families.bert import (
    BERT,
    BERT_CLASSIFIER,
    BERT_ENCODER,
    BERT_MASKED,
    BERT_REGRESSOR,
    BERT_SPANS,
)
from transformer.convert.families.family import Family
from transformer.convert.families.gpt2 import GPT2
from transformer.convert.families.llama import LLAMA, MISTRAL, QWEN2
from transformer.convert.families.t5 import T5
from transformer.convert.harmless_settings import HARMLESS
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.training.weights.source_files import source_config

# A family converts one class of Hugging Face's models to one of our classes, and back.
# Where several have a class, the first one that accepts the files takes them.
FAMILIES = (
    BERT_MASKED,
    BERT,
    BERT_REGRESSOR,
    BERT_CLASSIFIER,
    BERT_SPANS,
    BERT_ENCODER,
    GPT2,
    T5,
    LLAMA,
    MISTRAL,
    QWEN2,
)
# The end of the name of a tensor that only one class of BERT has -> this class.
_BERT_CLASS_BY_TENSOR = {
    "cls.seq_relationship.weight": "BertForPreTraining",
    "cls.predictions.bias": "BertForMaskedLM",
    "qa_outputs.weight": "BertForQuestionAnswering",
    "classifier.weight": "BertForSequenceClassification",
}
# `model_type` -> the class of files that do not name one.
_CLASS_BY_MODEL_TYPE = {
    "gpt2": "GPT2LMHeadModel",
    "t5": "T5ForConditionalGeneration",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
}
# Settings of an architecture that do not change results at inference: models that differ
# only in these are the same model.
_WITHOUT_EFFECT = (
    "dropout",
    "vocab_multiple",
    "scanned",
    "recompute",
    "dtype",
    "mixture",
    "attention",
    "block_length",
)
# Kind of positions -> the settings that matter only for this kind.
_POSITION_SETTINGS = {
    "learned": ("max_length",),
    "rotary": ("rope_theta", "rope_scaling"),
    "relative": ("buckets", "max_distance"),
}


def family_and_arguments(
    config: Mapping[str, Any], names: Collection[str]
) -> tuple[Family, dict[str, Any]]:
    """Returns the family of a config.json, and the arguments of our model class by name,
    except the mesh.

    Args:
      config: the settings of config.json.
      names: the names of the tensors in the files.

    Raises:
      CheckpointError: there is no such family, or a setting is not supported.
    """
    class_name = _class_name(config, names)
    for family in FAMILIES:
        if class_name in family.class_names and family.accepts(config, names):
            settings = Settings(config)
            model_arguments = family.read_config(settings, names)
            settings.refuse_unread(HARMLESS)
            return family, model_arguments
    supported = [name for family in FAMILIES for name in family.class_names]
    raise mtf.CheckpointError(
        mtf.errors.explain_error(
            "config.json has a class of models that is not supported.",
            architectures=class_name,
            supported="\n".join(dict.fromkeys(supported)),
        )
    )


def _class_name(config: Mapping[str, Any], names: Collection[str]) -> str:
    """Returns Hugging Face's class of a model: that of config.json, or without one that of
    its tensors.
    """
    class_names = config.get("architectures")
    if class_names:
        return class_names[0]
    model_type = config.get("model_type", "none")
    if model_type == "bert" or "bert.embeddings.word_embeddings.weight" in names:
        for tensor, class_name in _BERT_CLASS_BY_TENSOR.items():
            if tensor in names:
                return class_name
        return "BertModel"
    return _CLASS_BY_MODEL_TYPE.get(model_type, f"none, model_type {model_type!r}")


def family_of(model: Model) -> Family:
    """Returns the family of one of our models.

    Raises:
      CheckpointError: Hugging Face has no such model; the message says what differs.
    """
    reasons = []
    # First the class that the model was read as, since several may describe it.
    class_names = source_config(model.source_files).get("architectures") or [""]
    families = sorted(
        FAMILIES, key=lambda family: class_names[0] not in family.class_names
    )
    for family in families:
        if family.model_class is type(model):
            difference = _difference(family, model)
            if difference is None:
                return family
            reasons.append(f"{family.class_names[0]}: {difference}")
    if not reasons:
        reasons = [f"no class corresponds to {type(model).__name__}"]
    raise mtf.CheckpointError(
        mtf.errors.explain_error(
            "Hugging Face has no such model.",
            model=f"{type(model).__name__}\n{model.architecture}",
            differs="\n".join(reasons),
        )
    )


def _difference(family: Family, model: Model) -> str | None:
    """Returns the settings of a model that config.json cannot describe, as text; None: there
    are none.

    The config.json of the model is read again, and the settings are compared.
    """
    names = [rule.tensor for rule in family.rules(model)]
    config = family.config(model)
    try:
        if not family.accepts(config, names):
            return "its files would be read as another class"
        arguments = family.read_config(Settings(config), names)
    except mtf.CheckpointError as error:
        return str(error).partition("\n")[0]
    encoder = arguments["architecture"]
    # (the architecture of the model, the architecture that config.json describes)
    pairs = [(model.architecture, encoder)]
    if hasattr(model, "decoder"):
        decoder = arguments.get("decoder") or encoder
        pairs.append((model.decoder.architecture, decoder))
    differences = []
    for architecture, described_architecture in pairs:
        values = result_settings(architecture)
        described_values = result_settings(described_architecture)
        for name, value in values.items():
            described_value = described_values.get(name, value)
            if value != described_value:
                differences.append(f"{name} is {value!r}, not {described_value!r}")
    if not differences:
        return None
    # Encoder and decoder often have the same differences: each is named once.
    return "; ".join(dict.fromkeys(differences))


def result_settings(architecture: Architecture) -> dict[str, Any]:
    """Returns the settings of an architecture that its results depend on, by name."""
    settings = {
        field.name: getattr(architecture, field.name)
        for field in dataclasses.fields(architecture)
    }
    for name in _WITHOUT_EFFECT:
        del settings[name]
    for kind, names in _POSITION_SETTINGS.items():
        if architecture.positions != kind:
            for name in names:
                del settings[name]
    # Values of these settings that have the same results are replaced by one of them: local
    # attention is a window.
    window = architecture.window
    if window is None and architecture.attention == "local":
        window = architecture.block_length + 1
    return settings | {
        "kv_heads": architecture.kv_heads or architecture.heads,
        "scaled_logits": architecture.tied and architecture.scaled_logits,
        "qkv_bias": architecture.use_bias or architecture.qkv_bias,
        "window": window,
    }
