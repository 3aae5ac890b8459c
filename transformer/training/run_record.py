"""What shaped a run, saved with its checkpoints: its vocabulary, and what its numbers
depend on.

    record = of_run(trainer, data, {"train.batch_size": 16})
    trainer.record = record                            # goes into each checkpoint
    check_vocabulary(trainer.restored, data.vocabulary, folder)
    differences(trainer.restored, record)              # ["AdamW.beta_2: 0.98 before, 0.9 now"]

A mesh and a layout change no numbers, nor does it matter when something is told or
saved. So these are left out, and a run may go on with others without a word.
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

VOCABULARY, SETTINGS = "vocabulary", "settings"
# Of these, numbers do not depend, or they are taken from the objects themselves.
_LEFT_OUT = (
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


def of_run(trainer: Trainer, data: Data, more: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what is to be saved with a run: as JSON can hold it.

    Args:
      trainer: with a model and an optimizer.
      data: what is learned from.
      more: further settings, by the names that people give them; with "data", if data
        are not to be asked what they are, for which they read all.
    """
    model, optimizer = trainer.model, trainer.optimizer
    settings: dict[str, Any] = {
        "model": type(model).__name__,
        "optimizer": type(optimizer).__name__,
        "rows": _shapes(data),
    }
    for field in dataclasses.fields(model.architecture):
        settings[f"Architecture.{field.name}"] = getattr(model.architecture, field.name)
    for name, value in vars(optimizer).items():
        if isinstance(value, _PLAIN) and name != "name":
            settings[f"{type(optimizer).__name__}.{name}"] = value
    settings |= _of_gin()
    settings |= more if "data" in more else {"data": str(data), **more}
    return {
        VOCABULARY: data.vocabulary.fingerprint(),
        SETTINGS: {name: _shown(value) for name, value in settings.items()},
    }


def check_vocabulary(
    restored: Mapping[str, Any], vocabulary: Vocabulary, where: str
) -> None:
    """Refuses a vocabulary whose ids mean something else than those that a model
    learned.

    Args:
      restored: what a checkpoint has beside its variables.
      vocabulary: what is to be used with it.
      where: the checkpoint, or the folder of the run.

    Raises:
      CheckpointError: they differ.
    """
    before, now = restored.get(VOCABULARY), vocabulary.fingerprint()
    if before not in (None, _NO_VOCABULARY, now) and now != _NO_VOCABULARY:
        raise mtf.CheckpointError(
            f"{where} was trained with another vocabulary: its ids mean something "
            "else.\n"
            f"  trained with  {before}\n  now           {now}: {vocabulary}\n"
            "  Take the vocabulary that it was trained with; or begin a new run in "
            "another folder."
        )


def differences(restored: Mapping[str, Any], record: Mapping[str, Any]) -> list[str]:
    """Returns a line for each setting that is not what it was when a checkpoint was
    written.
    """
    before, now = restored.get(SETTINGS), record[SETTINGS]
    if before is None:  # of an earlier version, or of another program
        return []
    absent = "unset"
    return [
        f"{name}: {before.get(name, absent)} before, {now.get(name, absent)} now"
        for name in dict.fromkeys((*before, *now))
        if before.get(name) != now.get(name)
    ]


def _of_gin() -> dict[str, Any]:
    """Returns the settings that gin gave to what was made so far, and the defaults of
    that.
    """
    found: dict[str, Any] = {}
    for (scope, selector), parameters in gin_config._OPERATIVE_CONFIG.items():
        short = selector if selector.startswith("gin.") else selector.rpartition(".")[2]
        if not short.startswith("gin.") and (scope or short not in _LEFT_OUT):
            found |= {
                gin_settings.shown((scope, selector, name)): gin_settings.resolved(
                    value
                )
                for name, value in parameters.items()
            }
    return found


def _shapes(data: Data) -> str:
    return ", ".join(
        f"{name} {spec.shape[1:]}" for name, spec in sorted(data.features(1).items())
    )


def _shown(value: Any) -> str:
    """Returns a value as text that is the same in every process."""
    if callable(value) and not isinstance(value, gin_config.ConfigurableReference):
        return str(getattr(value, "__name__", type(value).__name__))
    return repr(value)
