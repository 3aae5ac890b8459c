"""Keras variables whose values are on a mesh.

A variable's class is replaced by a subclass of it. Reading `value` brings the shards to the
host if a step has changed them; assigning to it sends them before the next step. So weights,
checkpoints and callbacks work as they do on one device.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import TraceWarning
from meshtf.runtime.variable import Variable


class OnMesh:
    """Where a variable's value is newest.

    Attributes:
        variable: The mesh's variable.
        mesh_is_newer: A step changed it, and the host has not read it.
        host_is_newer: The host changed it, and no step has read it.
        sizes: Sizes of the mesh's variable, where merged axes are apart.
    """

    # Other functions that TensorFlow has traced read the host's copies.
    read_by_traces = False
    _tracing = False

    def __init__(self, host: tf.Variable, variable: Variable) -> None:
        self.host = host
        self.variable = variable
        self.mesh_is_newer = False
        self.host_is_newer = False

    def to_host(self) -> None:
        """Brings the value to the host, if the mesh has a newer one."""
        if self.mesh_is_newer:
            self.mesh_is_newer = False
            value = self.variable.numpy().reshape(self.host.shape)
            type(self.host).assign_from_mesh(self.host, value)

    def to_mesh(self) -> None:
        """Sends the value to the mesh, if the host has a newer one."""
        if self.host_is_newer:
            self.host_is_newer = False
            value = np.asarray(self.host.numpy())
            self.variable.assign(value.reshape(self.variable.shape.sizes))

    def changed_by_step(self) -> None:
        """Notes that a step has assigned to it."""
        self.mesh_is_newer = True
        if self.read_by_traces:
            self.to_host()

    def changed_by_host(self) -> None:
        """Notes that the host has assigned to it."""
        self.host_is_newer = True
        self.mesh_is_newer = False


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """While a step is traced, variables stand for themselves: nothing is read or sent."""
    before, OnMesh._tracing = OnMesh._tracing, True
    try:
        yield
    finally:
        OnMesh._tracing = before


def put_on_mesh(keras_variable: Any, variable: Variable) -> OnMesh:
    """Makes a Keras variable one whose value is that of a mesh's variable."""
    with tracing():
        host = keras_variable.value
    state = OnMesh(host, variable)
    host.__dict__["_meshtf"] = keras_variable.__dict__["_meshtf"] = state
    host.__class__ = _host_class(type(host))
    keras_variable.__class__ = _keras_class(type(keras_variable))
    return state


def state_of(keras_variable: Any) -> OnMesh | None:
    """Returns where a Keras variable's value is newest; None if it is on no mesh."""
    return keras_variable.__dict__.get("_meshtf")


@functools.cache
def _keras_class(cls: type) -> type:
    """Returns a subclass of a class of Keras variables that reads values from the mesh."""

    class Variable(cls):
        @property
        def value(self) -> Any:
            state = self.__dict__["_meshtf"]
            if not OnMesh._tracing:
                state.to_host()
                if not tf.executing_eagerly():
                    _warn_of_trace()
            return cls.value.fget(self)

    Variable.__name__ = cls.__name__
    Variable.__qualname__ = cls.__qualname__
    Variable.__module__ = cls.__module__
    return Variable


@functools.cache
def _host_class(cls: type) -> type:
    """Returns a subclass of a class of TensorFlow variables that notes what is assigned."""

    class Variable(cls):
        def assign_from_mesh(self, value: Any) -> None:
            """Assigns what the mesh has, so neither is newer."""
            super().assign(value)

    def noting(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            state = self.__dict__["_meshtf"]
            if tf.executing_eagerly() and not OnMesh._tracing:
                state.to_host()
                state.changed_by_host()
            return getattr(cls, name)(self, *args, **kwargs)

        return functools.wraps(getattr(cls, name))(method)

    for name in ("assign", "assign_add", "assign_sub", "scatter_update"):
        setattr(Variable, name, noting(name))
    Variable.__name__ = cls.__name__
    Variable.__qualname__ = cls.__qualname__
    Variable.__module__ = cls.__module__
    return Variable


def _warn_of_trace() -> None:
    """Copies values to the host after each step from now on: a function that TensorFlow has
    traced reads them there.
    """
    if not OnMesh.read_by_traces:
        OnMesh.read_by_traces = True
        warnings.warn(
            "A TensorFlow function, which is not one of the model's own steps, was traced "
            "with variables that are on a mesh. From now on they are copied to the host "
            "after every step, which makes steps slower. Call the model outside of "
            "tf.function, or use `model.predict`.",
            TraceWarning,
            stacklevel=4,
        )
