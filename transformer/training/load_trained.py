"""A model as a run of training left it, without its optimizer, for whatever it is used
for.

    trained = Trained.of("runs/lm_stdlib")        # gin has the settings of the run
    trained.model, trained.data.vocabulary, trained.step

The checkpoint may be one of any mesh and layout. Where what is read of the latest is
damaged, a warning names the file, and the one before is taken. Names and shapes must be
those of the model: what is missing, left over or of another shape is told, as half a
model is of no use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import meshtf as mtf
from transformer.data import Data
from transformer.models.base import Model
from transformer.training import training_run
from transformer.training.run_record import check_vocabulary

_MOST = 12  # lines of one kind of difference that are shown


class Trained(NamedTuple):
    """A model, what it learned from, and how many steps it did so."""

    model: Model
    data: Data
    step: int

    @classmethod
    def of(cls, model_dir: str) -> Trained:
        """Returns what gin's settings of `train` make, with the variables of the latest
        checkpoint.

        Raises:
          CheckpointError: there is none that is whole, or it is one of another model or
            vocabulary.
          DataError: the vocabulary is larger than the model knows, or data are for
            other models.
        """
        if mtf.latest_checkpoint(model_dir) is None:
            raise mtf.CheckpointError(
                f"there is no checkpoint in {model_dir}.\n  Train the model first, "
                "or name the folder of a run: --model_dir=FOLDER."
            )
        run = training_run.Run()
        found = mtf.checkpoints.newest_whole(
            model_dir, lambda path: restore(path, run.model)
        )
        assert found is not None
        check_vocabulary(found.extra, run.data.vocabulary, found.path)
        return cls(run.model, run.data, found.step)


def restore(path: str, model: Model) -> dict[str, Any]:
    """Reads the variables of a model from a checkpoint of its training; returns its
    `extra`.

    Raises:
      CheckpointError: names or shapes differ, or a file is damaged.
    """
    saved = {
        name: list(s.sizes)
        for name, s in mtf.checkpoints.Manifest.read(path).tensors.items()
    }
    variables = {v.name: v for v in model.variables}
    own = {name.partition("/")[0] for name in variables}
    # What optimizers keep is saved under the name of its variable, and one more.
    known = {
        *variables,
        *(name for name in saved if name.rpartition("/")[0] in variables),
    }
    differences = {
        "only in the checkpoint": [
            f"{name} {shape}"
            for name, shape in saved.items()
            if name not in known and name.partition("/")[0] in own
        ],
        "only in the model": [
            f"{name} {v.shape!r}" for name, v in variables.items() if name not in saved
        ],
        "of another shape": [
            f"{name}: {saved[name]} saved, {v.shape!r} now"
            for name, v in variables.items()
            if name in saved and tuple(saved[name]) != v.shape.sizes
        ],
    }
    if any(differences.values()):
        raise mtf.CheckpointError(
            f"the checkpoint {path} is of another model.\n"
            + "".join(
                f"  {kind}:\n{_some(lines)}"
                for kind, lines in differences.items()
                if lines
            )
            + "  Use the configuration that it was trained with: the config.gin beside "
            "it."
        )
    return mtf.restore_checkpoint(path, variables, partly=True)


def _some(lines: Sequence[str]) -> str:
    more = [f"and {len(lines) - _MOST} more"] if len(lines) > _MOST else []
    return "".join(f"    {line}\n" for line in [*lines[:_MOST], *more])
