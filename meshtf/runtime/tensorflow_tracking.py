"""What answers `tf.train.Checkpoint` and `tf.saved_model.save`, which do not know our
variables.

TensorFlow walks from object to object and saves the tf.Variables that it meets. It
would meet none, and would write a checkpoint or a model without weights, and say
nothing.
"""

from __future__ import annotations

from typing import Any

from meshtf.errors import CheckpointError, MeshtfError, PlanError, explain_error
from meshtf.graph import Source
from meshtf.runtime.tf_internals.tracking import Trackable


class Untracked(Trackable):
    """Base class of what TensorFlow can neither save nor restore: it says so when it is
    asked to.
    """

    @property
    def name(self) -> str:
        """What errors call it."""
        raise NotImplementedError

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        raise tracking_error(f"variable {self.name!r}", save_type)


def tracking_error(what: str, save_type: str) -> MeshtfError:
    """Returns the error that says what to call instead.

    Args:
      what: what TensorFlow was to save.
      save_type: "checkpoint" or "savedmodel", as TensorFlow calls it.
    """
    line = str(Source.of_caller()).partition(", ")[
        2
    ]  # without the method that TensorFlow called
    if save_type == "savedmodel":
        return PlanError(
            explain_error(
                f"tf.saved_model.save would save nothing of {what}.",
                **{"from": line},
                way_out="Save a function of it: mtf.export_saved_model(function, "
                "*arguments).save(path).",
            )
        )
    return CheckpointError(
        explain_error(
            f"tf.train.Checkpoint can neither save nor restore {what}.",
            **{"from": line},
            way_out="Call mtf.checkpoints.save(directory, step, {v.name: v for v in "
            "module.variables}) "
            "and mtf.checkpoints.restore(path, {v.name: v ...}).",
        )
    )
