"""Reads the variables of a model from a checkpoint, without those of an optimizer.

    restore("runs/lm/step_00000600", model)
    initial_weights("runs/llama", model, data, "runs/tuned")     # to begin a run with

The checkpoint may come from any mesh and layout. It must have the variables of the model: the
error lists all that are missing, unexpected or of another shape.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import meshtf as mtf
from transformer.data import Data
from transformer.models.base import Model
from transformer.training.run_record import averages_in, check_vocabulary
from transformer.training.weights.source_files import read_run_files, write_run_files

_MAX_LINES = 12  # the most lines of each kind of difference in an error message


def initial_weights(
    path: str | None, model: Model, data: Data, model_dir: str
) -> str | None:
    """Reads the weights that a new run begins with; returns the path of their checkpoint. For a
    run that goes on, nothing is read, and None is returned.

    Args:
      path: a checkpoint, or a folder whose newest undamaged one is taken: that of a run, or
        of a model that `transformer.convert` wrote. None: nothing is read or returned.
      model: the model, whose variables are set.
      data: the training data.
      model_dir: the folder of the run.

    Raises:
      CheckpointError: there is no checkpoint, names or shapes differ, or it is of another
        vocabulary.
    """
    if path is None or mtf.checkpoints.latest(model_dir) is not None:
        return None
    if mtf.checkpoints.latest(path) is None:
        _check_exists(path)
        extra = restore(path, model)
    else:
        newest = mtf.checkpoints.newest_complete(path, lambda p: restore(p, model))
        assert newest is not None, "`latest` has found a checkpoint above"
        path = newest.path
        extra = newest.extra
    check_vocabulary(extra, data.vocabulary, source=path)
    return path


def _check_exists(path: str) -> None:
    """Raises CheckpointError if there is nothing of ours at the path of a checkpoint."""
    foreign = mtf.checkpoints.foreign_format(path)
    if os.path.isdir(path) and not foreign:
        return
    way_out = (
        foreign or "Name a checkpoint, or the folder of a run or a converted model."
    )
    raise mtf.CheckpointError(
        f"train.init_checkpoint is {path!r}: there is no checkpoint of meshtf.\n  {way_out}"
    )


def copy_source_files(path: str | None, model_dir: str) -> None:
    """Copies what a converted model has besides weights to the folder of a run, for the way
    back: see `transformer.training.weights.source_files`.

    Args:
      path: the path of the model's checkpoint; None: nothing is copied.
      model_dir: the folder of the run.
    """
    if path is None or not mtf.cluster.processes().is_first:
        return
    folder = os.path.dirname(os.path.abspath(path))
    write_run_files(read_run_files(folder), model_dir)


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
