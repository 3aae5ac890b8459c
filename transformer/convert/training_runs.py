"""Models in the folder of a training run: a checkpoint, and config.gin with the model's
settings.

    write_run(model, "runs/bert")         # step_00000000/ and config.gin
    model = read_run("runs/bert", mesh)   # the last checkpoint of any training run

Further gin files set the optimizer, the mesh and the data:

    python -m transformer.train --gin_file=runs/bert/config.gin --gin_file=mine.gin
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gin

import meshtf as mtf
from transformer.cli import command_line
from transformer.convert.safetensors_files import new_folder
from transformer.data import Vocabulary
from transformer.models.architecture import Architecture
from transformer.models.base import Model
from transformer.models.bert import BertModel, Classifier
from transformer.models.encoders.bert_variants import TextEncoder
from transformer.training.run_record import VOCABULARY, averages_in
from transformer.training.weights.source_files import read_run_files, write_run_files

_CONFIG = "config.gin"


def write_run(
    model: Model, folder: str | Path, vocabulary: Vocabulary | None = None
) -> None:
    """Writes a model as a checkpoint of step 0 and config.gin.

    Args:
      model: one of our models.
      folder: the folder to write, which must not exist.
      vocabulary: the vocabulary of the model, whose fingerprint is saved: the checkpoint is
        then refused with another vocabulary. None: it is not known.

    Raises:
      CheckpointError: the folder exists already.
    """
    variables = {variable.name: variable for variable in model.variables}
    record: dict[str, Any] = {}
    if vocabulary is not None:
        record[VOCABULARY] = vocabulary.fingerprint()
    with new_folder(folder) as temporary_folder:
        mtf.checkpoints.save(
            str(temporary_folder), step=0, variables=variables, extra=record
        )
        write_run_files(model.source_files, temporary_folder)
        text = "\n".join(_settings(model)) + "\n"
        (temporary_folder / _CONFIG).write_text(text, encoding="utf-8")


def read_run(folder: str | Path, mesh: mtf.Mesh) -> Model:
    """Returns the model of a training run, with the variables of the last checkpoint, or with
    their moving averages if it has them.

    The statistics of the optimizer are not read. Earlier bindings of gin are cleared.

    Args:
      folder: the folder of the run, with config.gin and checkpoints.
      mesh: the mesh of the variables.

    Raises:
      CheckpointError: there is no checkpoint, or it is of another model.
      ConfigError: gin cannot read config.gin.
    """
    checkpoint = mtf.checkpoints.latest(str(folder))
    if checkpoint is None or not Path(folder, _CONFIG).is_file():
        foreign = mtf.checkpoints.foreign_format(str(folder))
        raise mtf.CheckpointError(
            f"{folder} has no {_CONFIG}, or no checkpoint.\n  {foreign}".rstrip()
        )
    gin.clear_config()
    command_line.configure(files=[str(Path(folder, _CONFIG))], params=[])
    # `train.model` is a reference such as @Bert: the function of gin makes the model.
    model = gin.query_parameter("train.model").scoped_configurable_fn(mesh)
    _step, path = checkpoint
    variables = {variable.name: variable for variable in model.variables}
    averages = averages_in(path, model.variables)
    mtf.checkpoints.restore(path, variables, partly=True, renames=averages)
    model.source_files = read_run_files(folder)
    return model


def _settings(model: Model) -> Iterator[str]:
    """Yields the lines of config.gin."""
    class_name = type(model).__name__
    yield "import transformer.training.training_run"
    yield f"import {type(model).__module__}"
    yield f"\ntrain.model = @{class_name}"
    if type(model) is Classifier:
        yield f"{class_name}.labels = {model.classes.new_dims.size}"
    if isinstance(model, TextEncoder):
        yield f"{class_name}.has_pooler = {model.encoder.pooler is not None}"
    # Models with BERT's encoder take their architecture from `bert_architecture`.
    is_bert = isinstance(model, BertModel)
    configurable = "bert_architecture" if is_bert else "Architecture"
    settings = _fields(model.architecture)
    yield ""
    for name, value in settings.items():
        yield f"{configurable}.{name} = {value!r}"
    decoder_settings = settings
    if hasattr(model, "decoder"):
        decoder_settings = _fields(model.decoder.architecture)
    if decoder_settings != settings:
        yield f"\n{class_name}.decoder = @decoder/Architecture()"
        for name, value in decoder_settings.items():
            if settings[name] != value:
                yield f"decoder/Architecture.{name} = {value!r}"


def _fields(architecture: Architecture) -> dict[str, object]:
    """Returns the settings of an architecture to bind in gin, by name.

    Settings that are None are left unbound: None is their default. `mixture` is a class,
    which has no text in a gin file.
    """
    settings = {}
    for field in dataclasses.fields(architecture):
        value = getattr(architecture, field.name)
        if value is not None and field.name != "mixture":
            settings[field.name] = value
    return settings
