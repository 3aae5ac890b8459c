"""Loads a trained model from the folder of its training run, without the optimizer.

    trained = Trained.of("runs/lm_stdlib")        # gin holds the settings of the run
    trained.model, trained.data.vocabulary, trained.step

The checkpoint may come from any mesh and layout. If a file of the latest checkpoint is
damaged, a warning names the file, and the checkpoint before is read. Names and shapes of
variables must be those of the model: the error lists all that are missing, unexpected or
of another shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import meshtf as mtf
from transformer.data import Data
from transformer.models.base import Model
from transformer.training import training_run
from transformer.training.run_record import check_vocabulary

_MAX_LINES = 12  # shown of each kind of difference


class Trained(NamedTuple):
    """A trained model, the data it was trained on, and the step of its checkpoint."""

    model: Model
    data: Data
    step: int

    @classmethod
    def of(cls, model_dir: str) -> Trained:
        """Builds the model from gin's settings of `train`, and restores its variables from
        the latest checkpoint.

        Raises:
          CheckpointError: there is no undamaged checkpoint, or it is one of another model
            or vocabulary.
          DataError: the vocabulary is larger than the model's, or the data have features
            that the model does not take.
        """
        if mtf.checkpoints.latest(model_dir) is None:
            raise mtf.CheckpointError(
                f"there is no checkpoint in {model_dir}.\n  Train the model first, "
                "or name the folder of a run: --model_dir=FOLDER."
            )
        run = training_run.Run()
        checkpoint = mtf.checkpoints.newest_complete(
            model_dir, lambda path: restore(path, run.model)
        )
        assert checkpoint is not None
        check_vocabulary(checkpoint.extra, run.data.vocabulary, checkpoint.path)
        return cls(run.model, run.data, checkpoint.step)


def restore(path: str, model: Model) -> dict[str, Any]:
    """Reads the variables of a model from a checkpoint of its training; returns its
    `extra`.

    Raises:
      CheckpointError: names or shapes differ, or a file is damaged.
    """
    variables = {v.name: v for v in model.variables}
    differences = _differences(path, variables)
    if any(differences.values()):
        raise mtf.CheckpointError(
            f"the checkpoint {path} is of another model.\n"
            + "".join(
                f"  {kind}:\n{_abridged(lines)}"
                for kind, lines in differences.items()
                if lines
            )
            + "  Use the configuration that it was trained with: the config.gin in "
            "its folder."
        )
    return mtf.checkpoints.restore(path, variables, partly=True)


def _differences(
    path: str, variables: Mapping[str, mtf.Variable]
) -> dict[str, list[str]]:
    """Returns a line for each variable in which a checkpoint and a model differ, by the
    kind of the difference.
    """
    tensors = mtf.checkpoints.Manifest.read(path).tensors
    saved = {name: list(spec.sizes) for name, spec in tensors.items()}
    # Optimizer slots are saved under the name of their variable, and one more.
    known = set(variables) | {
        name for name in saved if name.rpartition("/")[0] in variables
    }
    top_scopes = {name.partition("/")[0] for name in variables}
    unexpected = [
        f"{name} {shape}"
        for name, shape in saved.items()
        if name not in known and name.partition("/")[0] in top_scopes
    ]
    missing = [
        f"{name} {v.shape!r}" for name, v in variables.items() if name not in saved
    ]
    reshaped = [
        f"{name}: {saved[name]} saved, {v.shape!r} now"
        for name, v in variables.items()
        if name in saved and tuple(saved[name]) != v.shape.sizes
    ]
    return {
        "only in the checkpoint": unexpected,
        "only in the model": missing,
        "of another shape": reshaped,
    }


def _abridged(lines: Sequence[str]) -> str:
    """Returns indented lines; of a long list only the start, and a count of the rest."""
    shown = list(lines[:_MAX_LINES])
    if len(lines) > _MAX_LINES:
        shown.append(f"and {len(lines) - _MAX_LINES} more")
    return "".join(f"    {line}\n" for line in shown)
