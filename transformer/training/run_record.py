"""The record of a run, saved with its checkpoints: its vocabulary, and the settings that
its results depend on.

    record = of_run(trainer, data, {"train.batch_size": 16})
    trainer.record = record                            # goes into each checkpoint
    check_vocabulary(trainer.restored, data.vocabulary, folder)
    differences(trainer.restored, record)              # ["AdamW.beta_2: 0.98 before, 0.9 now"]

Results do not depend on mesh and layout, nor on when a run reports or saves. So these
settings are not recorded, and a run may resume with other ones without a notice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from gin import config as gin_config

import meshtf as mtf
from transformer.cli import gin_settings
from transformer.data import Data, Vocabulary
from transformer.training.trainer import Trainer

VOCABULARY = "vocabulary"
SETTINGS = "settings"
# Configurables that do not change results, or whose settings are read from the objects.
_OMITTED = (
    "Architecture",
    "bert_architecture",
    "train",
    "Mesh",
    "Evaluation",
    "sample",
    "Decoder",
)
_PLAIN = (bool, int, float, str, type(None))
_NO_VOCABULARY = "none"  # of data without texts


def of_run(
    trainer: Trainer, data: Data, extra_settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the record of a run, as values of JSON.

    Args:
      trainer: has the model and the optimizer.
      data: the training data.
      extra_settings: further settings by gin name. An entry "data" replaces `str(data)`,
        which may have to read all of the data.
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
        if isinstance(value, _PLAIN) and name != "name":
            settings[f"{type(optimizer).__name__}.{name}"] = value
    settings |= _of_gin()
    if "data" not in extra_settings:
        settings["data"] = str(data)
    settings |= extra_settings
    return {
        VOCABULARY: data.vocabulary.fingerprint(),
        SETTINGS: {name: _shown(value) for name, value in settings.items()},
    }


def check_vocabulary(
    restored: Mapping[str, Any], vocabulary: Vocabulary, source: str
) -> None:
    """Checks that a checkpoint was trained with the same vocabulary.

    Args:
      restored: the `extra` of the checkpoint.
      vocabulary: the vocabulary to use with it.
      source: the name of the checkpoint, or of the folder of the run, in the message.

    Raises:
      CheckpointError: the vocabularies differ.
    """
    before = restored.get(VOCABULARY)
    now = vocabulary.fingerprint()
    if before not in (None, _NO_VOCABULARY, now) and now != _NO_VOCABULARY:
        raise mtf.CheckpointError(
            f"{source} was trained with another vocabulary: its ids have other "
            "meanings.\n"
            f"  trained with  {before}\n  now           {now}: {vocabulary}\n"
            "  Use the vocabulary that it was trained with, or start a new run in "
            "another folder."
        )


def differences(restored: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Returns a line for each setting that has changed since the checkpoint was written."""
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


def _of_gin() -> dict[str, Any]:
    """Returns the settings that gin has applied so far, defaults included."""
    settings: dict[str, Any] = {}
    for (scope, selector), parameters in gin_config._OPERATIVE_CONFIG.items():
        short = selector if selector.startswith("gin.") else selector.rpartition(".")[2]
        if not short.startswith("gin.") and (scope or short not in _OMITTED):
            settings |= {
                gin_settings.setting_name(
                    (scope, selector, name)
                ): gin_settings.resolved(value)
                for name, value in parameters.items()
            }
    return settings


def _shapes(data: Data) -> str:
    """Returns the shapes of one example, by feature."""
    return ", ".join(
        f"{name} {spec.shape[1:]}" for name, spec in sorted(data.features(1).items())
    )


def _shown(value: Any) -> str:
    """Returns a value as text that is the same in every process."""
    if callable(value) and not isinstance(value, gin_config.ConfigurableReference):
        return str(getattr(value, "__name__", type(value).__name__))
    return repr(value)
