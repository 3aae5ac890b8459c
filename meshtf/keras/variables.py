"""TensorFlow variables whose values are on a mesh.

A Keras variable keeps its value in a `tf.Variable`, whose class is replaced by a subclass of it.
All that reads or writes a variable asks for its `handle`. Before that, the shards are brought to
the host if a step has changed them; and what may have been written is sent before the next step.
So weights, checkpoints and callbacks work as they do on one device.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import PlanError, TraceWarning
from meshtf.graph import Tensor
from meshtf.runtime.variable import Variable

_READS = ("value", "read_value", "numpy", "sparse_read", "gather_nd")


class StepCheck:
    """Raises the error of a step, once. A live mesh raises errors where results are read, and
    there Keras ignores them: it reads logs as numbers if it can.
    """

    def __init__(self, result: Tensor) -> None:
        """Prepares a check.

        Args:
            result: A result of the step.
        """
        self._result: Tensor | None = result

    def __call__(self) -> None:
        """Waits for the step."""
        result, self._result = self._result, None
        if result is not None:
            result.numpy()


class OnMesh:
    """Where a variable's value is newest; or those of the same variable of repeated layers.

    Attributes:
        hosts: The TensorFlow variable, or that of each layer.
        variable: The mesh's variable: that of repeated layers has a dimension for them first.
        mesh_is_newer: A step changed it, and the host has not read it.
        host_is_newer: The host may have changed it, and no step has read it.
        is_elsewhere: Another mesh has the variable now.
    """

    _tracing = False

    def __init__(self, hosts: Sequence[tf.Variable], variable: Variable) -> None:
        self.hosts = list(hosts)
        self.variable = variable
        self.mesh_is_newer = False
        self.host_is_newer = False
        self.is_elsewhere = False
        self._reading = False
        self._check: StepCheck | None = None
        # References to the graphs of functions, as long as somebody has them.
        self._traces: set[weakref.ref[Any]] = set()

    @property
    def _is_stack(self) -> bool:
        return len(self.hosts) > 1

    @property
    def in_traces(self) -> bool:
        """Whether a function that TensorFlow has traced may read and write the host's copy."""
        return bool(self._traces)

    def to_host(self) -> None:
        """Brings the value to the host, if the mesh has a newer one.

        Raises:
            IndexRangeError: An index was out of range in the step that made it.
        """
        if self.mesh_is_newer:
            if self._check is not None:
                self._check()
            self.mesh_is_newer = False
            with tf.init_scope():
                value = self.variable.numpy()
                for host, x in zip(self.hosts, value if self._is_stack else [value]):
                    host.assign(x.reshape(host.shape))
            self.host_is_newer = False

    def to_mesh(self) -> None:
        """Sends the value to the mesh, if the host has a newer one."""
        if self.is_elsewhere:
            raise PlanError(
                f"The variable {self.hosts[0].name} is on another mesh now, since a model that "
                "has it was distributed there. Call mtf.keras.distribute again for this model."
            )
        if self.host_is_newer or self.in_traces:
            self.host_is_newer = False
            value = np.stack([np.asarray(host.numpy()) for host in self.hosts])
            self.variable.assign(value.reshape(self.variable.shape.sizes))

    def changed_by_step(self, check: StepCheck | None) -> None:
        """Notes that a step has assigned to it; `check` raises the step's error."""
        self._check = check
        self.mesh_is_newer = True
        self.host_is_newer = False
        if self.in_traces:
            self.to_host()

    def before_use(self) -> None:
        """Is called before the host's copy is read or written."""
        if not OnMesh._tracing:
            self.to_host()
            if not tf.executing_eagerly():
                self._note_trace()
            elif not self._reading:
                self.host_is_newer = True

    def before_assign(self) -> None:
        """Is called before all of the host's copy is written: there is nothing to bring, but for
        other layers.
        """
        if tf.executing_eagerly() and not OnMesh._tracing and not self._is_stack:
            self.mesh_is_newer = False

    @contextlib.contextmanager
    def read(self) -> Iterator[None]:
        """Within, the host's copy is only read."""
        before, self._reading = self._reading, True
        try:
            yield
        finally:
            self._reading = before

    def _forget_trace(self, graph: weakref.ref[Any]) -> None:
        """Forgets a function that nobody has any more. It may have written before."""
        self._traces.discard(graph)
        self.host_is_newer = True

    def _note_trace(self) -> None:
        is_first = not self._traces
        graph = tf.compat.v1.get_default_graph()
        self._traces.add(weakref.ref(graph, self._forget_trace))
        if is_first:
            warnings.warn(
                "A TensorFlow function, which is not one of the model's own steps, was traced "
                "with variables that are on a mesh. As long as the function exists, these are "
                "copied to the host after every step and back before the next, which makes "
                "steps slower. Call the model outside of tf.function, use `model.predict` or "
                "`model.export`, or delete the function (or the keras.export.ExportArchive) "
                "after its use.",
                TraceWarning,
                stacklevel=5,
            )


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """While a step is traced, variables stand for themselves: nothing is read or sent."""
    before, OnMesh._tracing = OnMesh._tracing, True
    try:
        yield
    finally:
        OnMesh._tracing = before


def put_on_mesh(keras_variables: Sequence[Any], variable: Variable) -> OnMesh:
    """Makes the value of a Keras variable that of a mesh's variable; those of repeated layers
    that of one.
    """
    for before in map(state_of, keras_variables):
        if before is not None:
            before.to_host()
            before.is_elsewhere = True
    state = OnMesh([_host_of(v) for v in keras_variables], variable)
    for host in state.hosts:
        if "_meshtf" not in host.__dict__:
            cls: Any = type(host)
            host.__class__ = _host_class(cls)
        host.__dict__["_meshtf"] = state
    return state


def state_of(keras_variable: Any) -> OnMesh | None:
    """Returns where a Keras variable's value is newest; None if it is on no mesh."""
    return _host_of(keras_variable).__dict__.get("_meshtf")


def _host_of(keras_variable: Any) -> tf.Variable:
    if isinstance(keras_variable, tf.Variable):
        return keras_variable
    with tracing():
        return keras_variable.value


@functools.cache
def _host_class(cls: type) -> type:
    """Returns a subclass of a class of TensorFlow variables whose values are on a mesh."""

    class Variable(cls):
        def __getattribute__(self, name: str) -> Any:
            result = super().__getattribute__(name)
            # TensorFlow's C++ asks for the handle by another name than Python.
            if isinstance(result, tf.Tensor) and result.dtype == tf.resource:
                self.__dict__["_meshtf"].before_use()
            return result

        def assign(self, *args: Any, **kwargs: Any) -> Any:
            self.__dict__["_meshtf"].before_assign()
            return super().assign(*args, **kwargs)

    def reading(name: str) -> Any:
        method = getattr(cls, name)

        @functools.wraps(method)
        def read(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.__dict__["_meshtf"].read():
                return method(self, *args, **kwargs)

        return read

    for name in _READS:
        setattr(Variable, name, reading(name))
    Variable.__name__ = cls.__name__
    Variable.__qualname__ = cls.__qualname__
    Variable.__module__ = cls.__module__
    return Variable
