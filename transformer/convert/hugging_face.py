"""Models in the folders of Hugging Face transformers: config.json and safetensors
files.

    model = read_model("bert-base-uncased", mesh)       # on any mesh, in any layout
    write_model(model, "out")                           # AutoModel.from_pretrained("out") takes it
    read_model("gpt2", mesh, scanned=True, vocab_multiple=64)     # 50257 tokens cannot be sharded

Names and shapes are compared before anything is read or written. Numbers stay the same,
bit by bit, if their files have float32.
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
from transformer.convert.rules import Tensors, to_ours, to_theirs
from transformer.convert.safetensors_files import TensorFiles, new_folder, write_tensors
from transformer.models.architecture import Architecture
from transformer.models.base import Model

ALL = (BERT, BERT_CLASSIFIER, BERT_SPANS, GPT2, T5, LLAMA)
_BY_NAME = {name: family for family in ALL for name in family.names}


def read_model(folder: str | Path, mesh: mtf.Mesh, **changes: Any) -> Model:
    """Returns our model of what a folder has, on a mesh.

    Args:
      folder: holds config.json and safetensors files.
      mesh: where the variables will lie.
      changes: to the `Architecture`, such as those that change no numbers.

    Raises:
      CheckpointError: there is no such model here, or names or shapes are not those
        that config.json says.
    """
    config, tensors = read_config(folder), TensorFiles(folder)
    family, kwargs = family_and_sizes(config, list(tensors))
    for name in ("architecture", "decoder"):
        if kwargs.get(name) is not None:
            kwargs[name] = dataclasses.replace(kwargs[name], **changes)
    model = family.make(mesh, **kwargs)
    arrays = ours(family, model, tensors)
    for variable in model.variables:
        variable.load(arrays[variable.name].__getitem__)
    return model


def write_model(model: Model, folder: str | Path) -> None:
    """Writes config.json and model.safetensors for a model of ours.

    Raises:
      CheckpointError: there is something in the way, or no such model there.
    """
    family = family_of(model)
    with new_folder(folder) as unfinished:
        config = json.dumps(family.config(model), indent=2, sort_keys=True)
        (unfinished / "config.json").write_text(config + "\n", encoding="utf-8")
        write_tensors(
            unfinished,
            theirs(family, model, {v.name: v.numpy() for v in model.variables}),
        )


def read_config(folder: str | Path) -> dict[str, Any]:
    """Returns what config.json says.

    Raises:
      CheckpointError: it is not there, or is no JSON.
    """
    path = Path(folder, "config.json")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise mtf.CheckpointError(f"{path} cannot be read: {error}") from None


def family_and_sizes(
    config: Mapping[str, Any], names: Collection[str]
) -> tuple[Family, dict[str, Any]]:
    """Returns the family of a config.json, and what it makes our model of, besides a
    mesh.

    Args:
      config: what config.json says.
      names: of the tensors.

    Raises:
      CheckpointError: there is no such family, or our models cannot be so.
    """
    classes = config.get("architectures") or ["nothing"]
    if classes[0] not in _BY_NAME:
        raise mtf.CheckpointError(
            mtf.errors.explain_error(
                "config.json names a class of models that is not known here.",
                architectures=classes[0],
                known="\n".join(_BY_NAME),
            )
        )
    family = _BY_NAME[classes[0]]
    return family, family.read(Settings(config), names)


def ours(family: Family, model: Model, tensors: Tensors) -> dict[str, np.ndarray]:
    """Returns the values of our model's variables, by name."""
    return to_ours(
        family.rules(model),
        _shapes(model),
        family.canonical(tensors, model),
        _sizes(model),
    )


def theirs(
    family: Family, model: Model, arrays: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns tensors under their names, for one array for each variable of
    our model.
    """
    return to_theirs(family.rules(model), _shapes(model), arrays, _sizes(model))


def family_of(model: Model) -> Family:
    """Returns the family that has such a model.

    Raises:
      CheckpointError: none has; the message says what differs.
    """
    reasons = []
    for family in ALL:
        if family.make is type(model):
            reason = _difference(family, model)
            if reason is None:
                return family
            reasons.append(f"{family.names[0]}: {reason}")
    raise mtf.CheckpointError(
        mtf.errors.explain_error(
            "there is no such model there.",
            model=f"{type(model).__name__}\n{model.architecture}",
            differs="\n".join(reasons) or f"no class is like {type(model).__name__}",
        )
    )


def _difference(family: Family, model: Model) -> str | None:
    """Returns where a model is not what its own config.json would be read as; None:
    nowhere.
    """
    names = [rule.theirs for rule in family.rules(model)]
    try:
        kwargs = family.read(Settings(family.config(model)), names)
    except mtf.CheckpointError as error:
        return str(error).partition("\n")[0]
    pairs = [(model.architecture, kwargs["architecture"])]
    if hasattr(model, "decoder"):
        pairs.append(
            (
                model.decoder.architecture,
                kwargs.get("decoder") or kwargs["architecture"],
            )
        )
    differ = [
        f"{name} is {other[name]!r} there, {value!r} here"
        for have, other in ((_essence(a), _essence(b)) for a, b in pairs)
        for name, value in have.items()
        if name in other and other[name] != value
    ]
    return "; ".join(dict.fromkeys(differ)) or None


def _essence(a: Architecture) -> dict[str, Any]:
    """Returns what the numbers of an architecture depend on."""
    said = {f.name: getattr(a, f.name) for f in dataclasses.fields(a)}
    for name in (
        "dropout",
        "vocab_multiple",
        "scanned",
        "recompute",
        "dtype",
        "mixture",
        "block_length",
    ):
        del said[name]
    kinds: dict[str, tuple[str, ...]] = {
        "learned": ("max_length",),
        "rotary": ("rope_theta",),
        "relative": ("buckets", "max_distance"),
    }
    for kind, names in kinds.items():
        if a.positions != kind:
            said = {name: value for name, value in said.items() if name not in names}
    return said | {
        "kv_heads": a.kv_heads or a.heads,
        "scaled_logits": a.tied and a.scaled_logits,
        "attention": "local" if a.attention == "local" else "full",
    }


def _shapes(model: Model) -> dict[str, mtf.Shape]:
    return {variable.name: variable.shape for variable in model.variables}


def _sizes(model: Model) -> dict[str, int]:
    return {"vocab": model.architecture.vocab}
