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

import meshtf as mtf
from transformer.inference.trained_model import TrainedModel
from transformer.training import training_run
from transformer.training.run_record import check_vocabulary
from transformer.training.weights.read_weights import restore


class Trained(TrainedModel):
    """A trained model that is read from a checkpoint."""

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
            way_out = (
                mtf.checkpoints.foreign_format(model_dir)
                or "Train the model first, or name the folder of a run: --model_dir=FOLDER."
            )
            raise mtf.CheckpointError(
                f"there is no checkpoint in {model_dir}.\n  {way_out}"
            )
        run = training_run.Run()
        checkpoint = mtf.checkpoints.newest_complete(
            model_dir, lambda path: restore(path, run.model)
        )
        assert checkpoint is not None, "`latest` has found a checkpoint above"
        check_vocabulary(checkpoint.extra, run.data.vocabulary, source=checkpoint.path)
        return cls(run.model, run.data, checkpoint.step)
