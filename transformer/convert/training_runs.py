"""Models in folders of ours: a checkpoint, and config.gin, which says what it is of.

    write_run(model, "runs/bert")         # step_00000000/ and config.gin
    model = read_run("runs/bert", mesh)   # the last checkpoint of any folder that trained a model

What trains the model, and on what mesh and data, is for further gin files to say:

    python -m transformer.train --gin_file=runs/bert/config.gin --gin_file=mine.gin
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import gin

import meshtf as mtf
from transformer.cli import command_line
from transformer.convert.safetensors_files import new_folder
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.bert import Classifier, bert_architecture

_CONFIG = "config.gin"


def write_run(model: Model, folder: str | Path) -> None:
    """Writes a checkpoint of step 0, and config.gin.

    Raises:
      CheckpointError: there is something of this name.
    """
    with new_folder(folder) as unfinished:
        mtf.save_checkpoint(str(unfinished), 0, {v.name: v for v in model.variables})
        text = "\n".join(_settings(model)) + "\n"
        (unfinished / _CONFIG).write_text(text, encoding="utf-8")


def read_run(folder: str | Path, mesh: mtf.Mesh) -> Model:
    """Returns the model of a folder's config.gin, with the numbers of its last
    checkpoint.

    What an optimizer keeps is not read. Settings of gin that were made before are
    forgotten.

    Raises:
      CheckpointError: there is no checkpoint, or it is of another model.
      ConfigError: gin cannot read config.gin.
    """
    found = mtf.latest_checkpoint(str(folder))
    if found is None or not Path(folder, _CONFIG).is_file():
        raise mtf.CheckpointError(
            f"{folder} has no {_CONFIG}, or no checkpoint beside it."
        )
    gin.clear_config()
    command_line.configure([str(Path(folder, _CONFIG))], [])
    model = gin.query_parameter("train.model").scoped_configurable_fn(mesh)
    mtf.restore_checkpoint(found[1], {v.name: v for v in model.variables}, partly=True)
    return model


def _settings(model: Model) -> Iterator[str]:
    """Yields the lines of config.gin."""
    kind = type(model).__name__
    yield "import transformer.training.training_run"
    yield f"import {type(model).__module__}"
    yield f"\ntrain.model = @{kind}"
    if isinstance(model, Classifier):
        yield f"{kind}.labels = {model.classes.new_dims.size}"
    of_bert = type(model).__module__ == bert_architecture.__module__
    said = _fields(model.architecture)
    yield ""
    for name, value in said.items():
        yield f"{'bert_architecture' if of_bert else 'Architecture'}.{name} = {value!r}"
    decoder = _fields(model.decoder.architecture) if hasattr(model, "decoder") else said
    if decoder != said:
        yield f"\n{kind}.decoder = @decoder/Architecture()"
        for name, value in decoder.items():
            if said[name] != value:
                yield f"decoder/Architecture.{name} = {value!r}"


def _fields(architecture: Architecture) -> dict[str, object]:
    """Returns all that gin is told of an architecture; None is what it is without being
    told.
    """
    values = {
        f.name: getattr(architecture, f.name) for f in dataclasses.fields(architecture)
    }
    return {
        name: value
        for name, value in values.items()
        if value is not None and name != "mixture"
    }
