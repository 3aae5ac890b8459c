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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import meshtf as mtf
from transformer.convert.families.all_families import (
    family_and_arguments,
    family_of,
    result_settings,
)
from transformer.convert.families.family import Family
from transformer.convert.harmless_settings import carried_settings
from transformer.convert.rules import Tensors, to_tensors, to_variables
from transformer.convert.safetensors_files import (
    TensorFiles,
    exact_dtype,
    new_folder,
    write_tensors,
)
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.training.weights.source_files import (
    CONFIG,
    read_source_files,
    source_config,
    write_source_files,
)


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
    before = result_settings(architecture)
    after = result_settings(changed)
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


def _shapes(model: Model) -> dict[str, mtf.Shape]:
    """Returns the shape of each variable, by name."""
    return {variable.name: variable.shape for variable in model.variables}


def _sizes(model: Model) -> dict[str, int]:
    """Returns the size in the tensors of each dimension that is padded in our variables."""
    return {"vocab": model.architecture.vocab}
