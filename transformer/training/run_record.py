"""The record of a run, saved with its checkpoints: its vocabulary, and the settings that
its results depend on.

    record = make_record(trainer, data, {"train.batch_size": 16})
    trainer.record = record                            # saved in each checkpoint
    check_vocabulary(trainer.restored_extra, data.vocabulary, folder)
    differences(trainer.restored_extra, record)   # ["AdamW.beta_2: 0.98 before, 0.9 now"]

Results do not depend on mesh and layout, nor on when a run reports or saves. So these
settings are not recorded: a run may resume with other values of them, and no difference is
printed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from gin import config as gin_config

import meshtf as mtf
from transformer.cli import gin_settings
from transformer.data import Data, Vocabulary
from transformer.training.trainer import Trainer

# Keys of a record.
VOCABULARY = "vocabulary"
SETTINGS = "settings"
AVERAGES = "ema"  # the first name of moving averages in checkpoints
# Gin configurables that are not recorded: their settings do not change results, or
# `make_record` reads them from the model.
_OMITTED = (
    "Architecture",
    "bert_architecture",
    "train",
    "Mesh",
    "Evaluation",
    "sample",
    "Decoder",
)
# Types of the optimizer's attributes that are recorded as settings.
_SETTING_TYPES = (bool, int, float, str, type(None))
_NO_VOCABULARY = "none"  # the fingerprint of the vocabulary of data without texts


def make_record(
    trainer: Trainer, data: Data, extra_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the record of a run, a dict that can be written as JSON.

    Args:
      trainer: the trainer, with the model and the optimizer.
      data: the training data.
      extra_settings: further settings by gin name, such as "train.batch_size". An entry
        "data" replaces `str(data)`, which may have to read all of the data.
    """
    model = trainer.model
    optimizer = trainer.optimizer
    settings: dict[str, Any] = {
        "model": type(model).__name__,
        "optimizer": type(optimizer).__name__,
        "features": _shapes(data),
    }
    for field in dataclasses.fields(model.architecture):
        settings[f"Architecture.{field.name}"] = getattr(model.architecture, field.name)
    for name, value in vars(optimizer).items():
        # The attribute `name` is a prefix of the names of variables, not a setting.
        if isinstance(value, _SETTING_TYPES) and name != "name":
            settings[f"{type(optimizer).__name__}.{name}"] = value
    settings |= _gin_settings()
    if "data" not in extra_settings:
        settings["data"] = str(data)
    settings |= extra_settings
    return {
        VOCABULARY: data.vocabulary.fingerprint(),
        SETTINGS: {name: _value_text(value) for name, value in settings.items()},
    }


def check_vocabulary(
    restored: Mapping[str, Any], vocabulary: Vocabulary, source: str
) -> None:
    """Raises CheckpointError if a checkpoint was trained with another vocabulary.

    Args:
      restored: the `extra` of the checkpoint, a dict with the record of its run.
      vocabulary: the vocabulary to use with the checkpoint.
      source: the checkpoint or the run, as the message names it.
    """
    # A fingerprint is a text that two vocabularies share only if they have the same ids.
    before = restored.get(VOCABULARY)
    now = vocabulary.fingerprint()
    both_known = before not in (None, _NO_VOCABULARY) and now != _NO_VOCABULARY
    if both_known and before != now:
        raise mtf.CheckpointError(
            f"{source} was trained with another vocabulary: its ids have other "
            "meanings.\n"
            f"  trained with  {before}\n  now           {now}: {vocabulary}\n"
            "  Use the vocabulary that it was trained with, or start a new run in "
            "another folder."
        )


def averages_in(path: str, variables: Iterable[mtf.Variable]) -> dict[str, str]:
    """Returns the names of the moving averages that a checkpoint has of variables, by the
    names of the variables: whoever reads a trained model reads them in their place.

    Args:
      path: the folder of the checkpoint.
      variables: the variables of the model.
    """
    saved = mtf.checkpoints.Manifest.read(path).tensors
    averages = {}
    for variable in variables:
        name = f"{AVERAGES}/{variable.name}"
        if name in saved:
            averages[variable.name] = name
    return averages


def differences(restored: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Returns a line for each setting that has changed since a checkpoint was written.

    Args:
      restored: the `extra` of the checkpoint, a dict with the record of its run.
      record: the record of the present run, from `make_record`.
    """
    before = restored.get(SETTINGS)
    now = record[SETTINGS]
    if before is None:  # the checkpoint has no record
        return []
    absent = "unset"
    return [
        f"{name}: {before.get(name, absent)} before, {now.get(name, absent)} now"
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
    ]


def _gin_settings() -> dict[str, Any]:
    """Returns the settings that gin has applied so far, defaults included, by name."""
    settings: dict[str, Any] = {}
    # Gin's record of the settings used so far, which has no public name. A selector is the
    # name of a configurable with its modules: "transformer.train".
    for (scope, selector), parameters in gin_config._OPERATIVE_CONFIG.items():
        is_macro = selector.startswith("gin.")
        configurable = selector.rpartition(".")[2]
        is_omitted = configurable in _OMITTED and not scope
        if is_macro or is_omitted:
            continue
        for parameter, value in parameters.items():
            name = gin_settings.setting_name((scope, selector, parameter))
            settings[name] = gin_settings.resolve_macros(value)
    return settings


def _shapes(data: Data) -> str:
    """Returns the shape of each feature of an example, as text."""
    return ", ".join(
        f"{name} {spec.shape[1:]}"  # without the dimension of the batch
        for name, spec in sorted(data.features(batch_size=1).items())
    )


def _value_text(value: Any) -> str:
    """Returns a value as text that is the same in every process: for a function its name,
    as its `repr` has an address.
    """
    if callable(value) and not isinstance(value, gin_config.ConfigurableReference):
        return str(getattr(value, "__name__", type(value).__name__))
    return repr(value)
