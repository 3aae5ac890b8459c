"""Models in the folders of Hugging Face transformers: config.json and safetensors
files.

    model = read_model("bert-base-uncased", mesh)       # on any mesh, in any layout
    write_model(model, "out")                           # AutoModel.from_pretrained("out") takes it
    read_model("gpt2", mesh, scanned=True, vocab_multiple=64)     # pads 50257 tokens to 50304

Names and shapes are checked before a tensor is read or written. Values are identical, bit
by bit. A model keeps what its folder has besides tensors: special ids, settings of generation,
the tokenizer (`source_files`), which are written again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

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
from transformer.convert.harmless_settings import HARMLESS, carried_settings
from transformer.convert.rules import Tensors, to_tensors, to_variables
from transformer.convert.safetensors_files import (
    TensorFiles,
    exact_dtype,
    new_folder,
    write_tensors,
)
from transformer.convert.source_files import (
    CONFIG,
    read_source_files,
    source_config,
    write_source_files,
)
from transformer.models.architecture import Architecture
from transformer.models.base import Model

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


def read_model(folder: str | Path, mesh: mtf.Mesh, **changes: Any) -> Model:
    """Returns the model of a folder, on a mesh.

    Args:
      folder: a folder with config.json and safetensors files.
      mesh: the mesh of the variables.
      **changes: settings of `Architecture` to replace, which do not change results, such
        as `scanned`.

    Raises:
      CheckpointError: the kind of model is not supported, names or shapes of tensors do not
        match config.json, or a change would change results.
    """
    config = read_config(folder)
    tensors = TensorFiles(folder)
    model = model_of_tensors(config, tensors, mesh, **changes)
    model.source_files = read_source_files(folder, config, tensors.common_dtype)
    return model


def model_of_tensors(
    config: Mapping[str, Any], tensors: Tensors, mesh: mtf.Mesh, **changes: Any
) -> Model:
    """Returns the model of a config.json and its tensors: see `read_model`."""
    family, model_arguments = family_and_arguments(config, names=list(tensors))
    for name in ("architecture", "decoder"):
        architecture = model_arguments.get(name)
        if architecture is not None:
            model_arguments[name] = _with_changes(architecture, changes)
    model = family.model_class(mesh, **model_arguments)
    arrays = variable_arrays(family, model, tensors)
    for variable in model.variables:
        # `load` calls the function with the slices of each shard.
        variable.load(arrays[variable.name].__getitem__)
    return model


def _with_changes(
    architecture: Architecture, changes: Mapping[str, Any]
) -> Architecture:
    """Returns an architecture with other settings.

    Raises:
      CheckpointError: they would change results.
    """
    changed = dataclasses.replace(architecture, **changes)
    before = _result_settings(architecture)
    after = _result_settings(changed)
    names = [name for name, value in before.items() if after.get(name, value) != value]
    if names:
        raise mtf.CheckpointError(
            f"the tensors are of a model with {names[0]} = {before[names[0]]!r}, not "
            f"{after[names[0]]!r}.\n  Only settings that change no results can be replaced, "
            "such as scanned, recompute, dtype and vocab_multiple."
        )
    return changed


def write_model(model: Model, folder: str | Path) -> str:
    """Writes a model as config.json and model.safetensors, with the files besides that the
    folder had from which it was read.

    Args:
      model: one of our models.
      folder: the folder to write, which must not exist.

    Returns:
      The data type of the tensors: that of the files from which the model was read, if it has
      every value exactly; otherwise "float32".

    Raises:
      CheckpointError: the folder exists, or Hugging Face has no such model.
    """
    family = family_of(model)
    with new_folder(folder) as temporary_folder:
        write_source_files(model.source_files, temporary_folder)
        arrays = {variable.name: variable.numpy() for variable in model.variables}
        tensors = tensor_arrays(family, model, arrays)
        source = source_config(model.source_files)
        dtype = exact_dtype(tensors, source.get("dtype", "float32"))
        config = _written_config(family, model, source) | {"dtype": dtype}
        text = json.dumps(config, indent=2, sort_keys=True)
        config_path = temporary_folder / CONFIG
        config_path.write_text(text + "\n", encoding="utf-8")
        write_tensors(temporary_folder, tensors, dtype=dtype)
    return dtype


def _written_config(
    family: Family, model: Model, source: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the settings of the config.json of a model.

    Args:
      family: the family of the model.
      model: the model.
      source: the config.json of the folder from which the model was read.
    """
    config = family.config(model)
    carried = carried_settings(source)
    for name in ("id2label", "label2id"):
        # Other names, if the model has another count of classes by now.
        if len(carried.get(name) or ()) != len(config.get(name) or ()):
            carried.pop(name, None)
    return config | carried


def read_config(folder: str | Path) -> dict[str, Any]:
    """Returns the settings of the config.json in a folder.

    Raises:
      CheckpointError: the file cannot be read, or is not JSON.
    """
    path = Path(folder, "config.json")
    try:
        return dict(json.loads(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError) as error:
        foreign = mtf.checkpoints.foreign_format(str(folder))
        raise mtf.CheckpointError(
            f"{path} cannot be read: {error}.\n  {foreign}".rstrip()
        ) from None


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


def variable_arrays(
    family: Family, model: Model, tensors: Tensors
) -> dict[str, np.ndarray]:
    """Returns the value of each variable of a model, by name.

    Args:
      family: the family of the model.
      model: one of our models.
      tensors: Hugging Face's tensors of this model.
    """
    return to_variables(
        family.rules(model),
        shapes=_shapes(model),
        tensors=family.canonical(tensors, model),
        sizes=_sizes(model),
    )


def tensor_arrays(
    family: Family, model: Model, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns Hugging Face's tensors of a model, by name.

    Args:
      family: the family of the model.
      model: one of our models.
      arrays: the value of each variable, by name.
    """
    return to_tensors(
        family.rules(model), shapes=_shapes(model), arrays=arrays, sizes=_sizes(model)
    )


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
        values = _result_settings(architecture)
        described_values = _result_settings(described_architecture)
        for name, value in values.items():
            described_value = described_values.get(name, value)
            if value != described_value:
                differences.append(f"{name} is {value!r}, not {described_value!r}")
    if not differences:
        return None
    # Encoder and decoder often have the same differences: each is named once.
    return "; ".join(dict.fromkeys(differences))


def _result_settings(architecture: Architecture) -> dict[str, Any]:
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


def _shapes(model: Model) -> dict[str, mtf.Shape]:
    """Returns the shape of each variable, by name."""
    return {variable.name: variable.shape for variable in model.variables}


def _sizes(model: Model) -> dict[str, int]:
    """Returns the size in the tensors of each dimension that is padded in our variables."""
    return {"vocab": model.architecture.vocab}
