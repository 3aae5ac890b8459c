"""Errors for uses of `tf.train.Checkpoint` or `tf.saved_model.save` on meshtf's variables,
which TensorFlow cannot save.

TensorFlow traverses the attributes of objects and saves the tf.Variables that it finds.
It would find none in a meshtf module, and would silently write a checkpoint or a model
without weights.
"""

from __future__ import annotations

from typing import Any

from meshtf.errors import CheckpointError, MeshtfError, PlanError, explain_error
from meshtf.graph.operators import line_of_caller
from meshtf.runtime.tf_internals.tracking import Trackable


class Untracked(Trackable):
    """Base class of objects that TensorFlow can neither save nor restore. An attempt to
    do so raises CheckpointError or PlanError.
    """

    @property
    def name(self) -> str:
        """The name in errors."""
        raise NotImplementedError

    @property
    def _unique_id(self) -> str:
        """Raises PlanError. Optimizers of Keras read it of each variable."""
        raise PlanError(
            explain_error(
                f"variable {self.name!r} is none that Keras or TensorFlow can update.",
                source=line_of_caller(),
                way_out="Take an optimizer of mtf.optimizers, such as "
                "mtf.optimizers.Adam(variables, 1e-3), and its "
                "apply_gradients(mtf.gradients([loss], variables), variables, step).",
            )
        )

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        """Raises the error. TensorFlow calls this method on each object that it saves."""
        raise tracking_error(f"variable {self.name!r}", save_type)


def tracking_error(description: str, save_type: str) -> MeshtfError:
    """Returns the error that says what to call instead.

    Args:
      description: a name for the object that TensorFlow tries to save, such as
        "variable 'w'".
      save_type: "checkpoint" or "savedmodel", as TensorFlow calls it.
    """
    line = line_of_caller()
    if save_type == "savedmodel":
        return PlanError(
            explain_error(
                f"tf.saved_model.save would save nothing of {description}.",
                source=line,
                way_out="Save a function of it: mtf.export_saved_model(function, "
                "*arguments).save(path).",
            )
        )
    return CheckpointError(
        explain_error(
            f"tf.train.Checkpoint can neither save nor restore {description}.",
            source=line,
            way_out="Call mtf.checkpoints.save(directory, step, {v.name: v for v in "
            "module.variables}) "
            "and mtf.checkpoints.restore(path, {v.name: v ...}).",
        )
    )
