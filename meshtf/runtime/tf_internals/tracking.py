"""The base classes of objects that `tf.train.Checkpoint` and `tf.saved_model.save` visit.

Commands that only plan save nothing, and import no TensorFlow: there they are empty classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshtf.deferred_tensorflow import is_deferred

if TYPE_CHECKING or not is_deferred():
    from tensorflow import Module as TensorFlowModule
    from tensorflow.python.trackable.base import Trackable as Trackable
else:

    class Trackable:
        """Stands for TensorFlow's class."""

    class TensorFlowModule(Trackable):
        """Stands for `tf.Module`."""

        def __init__(self, name: Any = None) -> None:
            super().__init__()


def is_module(x: Any) -> bool:
    """Returns whether x is a `tf.Module`, as all modules of meshtf are."""
    if isinstance(x, TensorFlowModule):
        return True
    # A program of the user may import TensorFlow after all, and derive from its class.
    return is_deferred() and any(
        f"{cls.__module__}.{cls.__name__}" == "tensorflow.python.module.module.Module"
        for cls in type(x).__mro__
    )
