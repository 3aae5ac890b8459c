"""Modules: variables and modules by name.

Example:

    class Mlp(mtf.Module):
      def __init__(self, mesh):
        super().__init__(name="mlp")
        with self.scope():
          self.w = mtf.Variable(mesh, "d_model:4;d_ff:8", init, name="w")     # "mlp/w"

      def __call__(self, x):                                                 # random ops: "mlp/..."
        return mtf.relu(mtf.einsum([x, self.w], "batch;d_ff"))
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, ClassVar

import tensorflow as tf

from meshtf.graph import context, current
from meshtf.names.arguments import as_text
from meshtf.runtime.tensorflow_tracking import tracking_error
from meshtf.runtime.variable import Variable


@contextlib.contextmanager
def scope(name: str) -> Iterator[None]:
    """Adds a name to the path of the variables and random ops made inside."""
    as_text("name", name)
    with context(path=(*current().path, name)):
        yield


class Module(tf.Module):
    """A tf.Module whose variables are mtf Variables; its name is in the path of what it
    makes.

    A subclass that only calls other layers may say `called_in_path = False`: what it
    makes when it is called then has the path of its caller.
    """

    called_in_path: ClassVar[bool] = True

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            as_text("name", name)
        super().__init__(name=None)
        self.path = (*current().path, name or type(self).__name__.lower())

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__call__" in cls.__dict__ and cls.called_in_path:
            cls.__call__ = _within_path(cls.__dict__["__call__"])

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Gives what is made inside this module's path."""
        with context(path=self.path):
            yield

    @property
    def variables(self) -> tuple[Variable, ...]:
        """All variables of this module and those inside it."""
        return tuple(
            self._flatten(
                predicate=lambda x: isinstance(x, Variable), expand_composites=False
            )
        )

    @property
    def trainable_variables(self) -> tuple[Variable, ...]:
        """The variables that optimizers update."""
        return tuple(v for v in self.variables if v.trainable)

    def _trackable_children(
        self, save_type: str = "checkpoint", **kwargs: Any
    ) -> dict[str, Any]:
        if self.variables:  # TensorFlow asks, and would save none of them
            raise tracking_error(
                f"module {'/'.join(self.path)!r} with its variables", save_type
            )
        children: dict[str, Any] = super()._trackable_children(save_type, **kwargs)
        return children


def _within_path(call: Any) -> Any:
    @functools.wraps(call)
    def __call__(self: Module, *args: Any, **kwargs: Any) -> Any:
        with self.scope():
            return call(self, *args, **kwargs)

    return __call__
