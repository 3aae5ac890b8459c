"""Models in the folders of Hugging Face transformers: config.json and safetensors
files.

    model = read_model("bert-base-uncased", mesh)       # on any mesh, in any layout
    write_model(model, "out")                           # AutoModel.from_pretrained("out") takes it
    read_model("gpt2", mesh, scanned=True, vocab_multiple=64)     # pads 50257 tokens to 50304

Names and shapes are checked before a tensor is read or written. Values are identical, bit
by bit, if the files have float32.
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
from transformer.convert.families.bert import BERT, BERT_CLASSIFIER, BERT_SPANS
from transformer.convert.families.family import Family
from transformer.convert.families.gpt2 import GPT2
from transformer.convert.families.llama import LLAMA
from transformer.convert.families.t5 import T5
from transformer.convert.rules import Tensors, to_tensors, to_variables
from transformer.convert.safetensors_files import TensorFiles, new_folder, write_tensors
from transformer.models.architecture import Architecture
from transformer.models.base import Model

# A family converts one class of Hugging Face's models to one of our classes, and back.
FAMILIES = (BERT, BERT_CLASSIFIER, BERT_SPANS, GPT2, T5, LLAMA)
# Hugging Face's name of a class of models -> the family.
_FAMILY_BY_CLASS = {name: family for family in FAMILIES for name in family.class_names}
# Settings of an architecture that do not change results at inference: models that differ
# only in these are the same model.
_WITHOUT_EFFECT = (
    "dropout",
    "vocab_multiple",
    "scanned",
    "recompute",
    "dtype",
    "mixture",
    "block_length",
)
# Kind of positions -> the settings that matter only for this kind.
_POSITION_SETTINGS = {
    "learned": ("max_length",),
    "rotary": ("rope_theta",),
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
      CheckpointError: the kind of model is not supported, or names or shapes of tensors
        do not match config.json.
    """
    config = read_config(folder)
    tensors = TensorFiles(folder)
    family, model_arguments = family_and_arguments(config, names=list(tensors))
    for name in ("architecture", "decoder"):
        architecture = model_arguments.get(name)
        if architecture is not None:
            model_arguments[name] = dataclasses.replace(architecture, **changes)
    model = family.model_class(mesh, **model_arguments)
    arrays = variable_arrays(family, model, tensors)
    for variable in model.variables:
        # `load` calls the function with the slices of each shard.
        variable.load(arrays[variable.name].__getitem__)
    return model


def write_model(model: Model, folder: str | Path) -> None:
    """Writes a model as config.json and model.safetensors.

    Args:
      model: one of our models.
      folder: the folder to write, which must not exist.

    Raises:
      CheckpointError: the folder exists, or Hugging Face has no such model.
    """
    family = family_of(model)
    with new_folder(folder) as temporary_folder:
        config = json.dumps(family.config(model), indent=2, sort_keys=True)
        config_path = temporary_folder / "config.json"
        config_path.write_text(config + "\n", encoding="utf-8")
        arrays = {variable.name: variable.numpy() for variable in model.variables}
        write_tensors(temporary_folder, tensor_arrays(family, model, arrays))


def read_config(folder: str | Path) -> dict[str, Any]:
    """Returns the settings of the config.json in a folder.

    Raises:
      CheckpointError: the file cannot be read, or is not JSON.
    """
    path = Path(folder, "config.json")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise mtf.CheckpointError(f"{path} cannot be read: {error}") from None


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
    class_names = config.get("architectures") or ["none"]
    class_name = class_names[0]
    if class_name not in _FAMILY_BY_CLASS:
        raise mtf.CheckpointError(
            mtf.errors.explain_error(
                "config.json has a class of models that is not supported.",
                architectures=class_name,
                supported="\n".join(_FAMILY_BY_CLASS),
            )
        )
    family = _FAMILY_BY_CLASS[class_name]
    return family, family.read_config(Settings(config), names)


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
    for family in FAMILIES:
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
    try:
        arguments = family.read_config(Settings(family.config(model)), names)
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
    # Values of these settings that have the same results are replaced by one of them.
    return settings | {
        "kv_heads": architecture.kv_heads or architecture.heads,
        "scaled_logits": architecture.tied and architecture.scaled_logits,
        "attention": "local" if architecture.attention == "local" else "full",
    }


def _shapes(model: Model) -> dict[str, mtf.Shape]:
    """Returns the shape of each variable, by name."""
    return {variable.name: variable.shape for variable in model.variables}


def _sizes(model: Model) -> dict[str, int]:
    """Returns the size in the tensors of each dimension that is padded in our variables."""
    return {"vocab": model.architecture.vocab}
