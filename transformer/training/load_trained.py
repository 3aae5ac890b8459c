"""Loads a trained model from the folder of its training run, without the optimizer.

    trained = Trained.of("runs/lm_stdlib")        # gin has the settings of the run
    trained.model, trained.data.vocabulary, trained.step

The checkpoint may come from any mesh and layout. Of variables with moving averages
(`train.ema_decay`) it gives the averages. If a file of the latest checkpoint is
damaged, a warning names the file, and the checkpoint before it is read. The checkpoint must
have the variables of the model: the error lists all that are missing, unexpected or of
another shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import meshtf as mtf
from transformer.data import Data
from transformer.models.base import Model
from transformer.training import training_run
from transformer.training.run_record import averages_in, check_vocabulary

_MAX_LINES = 12  # the most lines of each kind of difference in an error message


class Trained(NamedTuple):
    """A trained model.

    Attributes:
      model: the model, with variables from the checkpoint.
      data: the data it was trained on.
      step: the count of steps done when the checkpoint was written.
    """

    model: Model
    data: Data
    step: int

    @classmethod
    def of(cls, model_dir: str) -> Trained:
        """Builds the model from gin's settings of `train`, and restores its variables from
        the latest checkpoint.

        Raises:
          CheckpointError: there is no undamaged checkpoint, or the checkpoint is of another
            model or vocabulary.
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
        assert checkpoint is not None, "`latest` has found a checkpoint above"
        check_vocabulary(checkpoint.extra, run.data.vocabulary, source=checkpoint.path)
        return cls(run.model, run.data, checkpoint.step)


def restore(path: str, model: Model) -> dict[str, Any]:
    """Reads the variables of a model from a checkpoint; returns the checkpoint's `extra`, a
    dict with the record of the run (see `run_record`).

    Args:
      path: the folder of the checkpoint.
      model: the model, whose variables are set.

    Raises:
      CheckpointError: names or shapes differ, or a file is damaged.
    """
    variables = {variable.name: variable for variable in model.variables}
    differences = _differences(path, variables)
    if any(differences.values()):
        paragraphs = [
            f"  {kind}:\n{_abridge(lines)}"
            for kind, lines in differences.items()
            if lines
        ]
        raise mtf.CheckpointError(
            f"the checkpoint {path} is of another model.\n"
            + "".join(paragraphs)
            + "  Use the configuration that it was trained with: the config.gin in "
            "its folder."
        )
    # `partly`: the checkpoint also has variables of the optimizer, which are not read.
    averages = averages_in(path, model.variables)
    return mtf.checkpoints.restore(path, variables, partly=True, renames=averages)


def _differences(
    path: str, variables: Mapping[str, mtf.Variable]
) -> dict[str, list[str]]:
    """Returns the differences between the variables of a checkpoint and of a model: kind
    of difference -> a line for each variable.
    """
    tensors = mtf.checkpoints.Manifest.read(path).tensors
    saved_shapes = {name: list(spec.sizes) for name, spec in tensors.items()}
    # The slots of an optimizer are its statistics of each variable, such as the moments of
    # Adam. A slot is named after its variable: "decoder/w/m".
    slots = {name for name in saved_shapes if name.rpartition("/")[0] in variables}
    expected = set(variables) | slots
    # Tensors of other modules, such as the optimizer's step, are not the model's.
    top_scopes = {name.partition("/")[0] for name in variables}
    unexpected = [
        f"{name} {shape}"
        for name, shape in saved_shapes.items()
        if name not in expected and name.partition("/")[0] in top_scopes
    ]
    missing = []
    other_shapes = []
    for name, variable in variables.items():
        shape = variable.shape
        if name not in saved_shapes:
            missing.append(f"{name} {shape!r}")
        elif tuple(saved_shapes[name]) != shape.sizes:
            other_shapes.append(f"{name}: {saved_shapes[name]} saved, {shape!r} now")
    return {
        "only in the checkpoint": unexpected,
        "only in the model": missing,
        "of another shape": other_shapes,
    }


def _abridge(lines: Sequence[str]) -> str:
    """Returns indented lines: at most `_MAX_LINES`, and the count of the rest."""
    shown_lines = list(lines[:_MAX_LINES])
    if len(lines) > _MAX_LINES:
        shown_lines.append(f"and {len(lines) - _MAX_LINES} more")
    return "".join(f"    {line}\n" for line in shown_lines)
