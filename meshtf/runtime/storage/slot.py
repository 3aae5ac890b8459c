"""Slots: the storage of one shard of a variable on one device.

    slot.read()                      # a NumPy array
    slot.assign(array)
    value = slot.snapshot()          # value() is the present value, also after later writes
    slot.device, slot.host

`Slot` is all that variables and checkpoints know about storage. Each runtime has its own
class of slots. That of the placed runtime is `TensorFlowSlot`: a resource handle that
TensorFlow's ops accept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

from meshtf.errors import ShapeError
from meshtf.runtime.devices.names import host_cpu
from meshtf.runtime.tf_internals.switches import private
from meshtf.runtime.tf_internals.variable_handles import make_handles, variable_of


class Slot(Protocol):
    """Storage of one shard of a variable; mesh positions of one device may share it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the shard."""

    @property
    def dtype(self) -> str:
        """The name of the data type."""

    @property
    def device(self) -> str:
        """The device of the slot, named as the runtime names devices."""

    @property
    def host(self) -> str:
        """TensorFlow's name of the CPU of the device's host, which reads and writes files."""

    def read(self) -> np.ndarray:
        """Returns a copy of the present value, in this process."""

    def value_on(self, device: str) -> Any:
        """Returns the present value as a tensor on a TensorFlow device.

        Nothing is copied if that device shares its memory with the slot's device.
        """

    def assign(self, value: Any) -> None:
        """Assigns an array, or a tensor from any device. Raises ShapeError if it has
        another shape than the slot.
        """

    def snapshot(self) -> Callable[[], Any]:
        """Returns a function that returns the present value as a tensor on `host`, even
        if other values are assigned before it is called.

        If the host can read the device's memory, the value is copied only when the slot
        is next written; otherwise it is copied to the host at once.
        """

    def free(self) -> None:
        """Releases the memory; the slot has no value until the next `assign`."""


class VariableKind(NamedTuple):
    """The properties that a tf.Variable has besides its value."""

    shape: tf.TensorShape
    dtype: tf.DType
    trainable: bool


class TensorFlowSlot:
    """A slot of the placed runtime: a resource handle, and a tf.Variable on demand.

    A model on many devices has thousands of shards, and creating a tf.Variable takes
    longer than creating its value. A program that gets all handles of a device as one
    tensor needs no tf.Variable.

    Args:
      handle: TensorFlow's resource handle, a scalar, which keeps the value alive.
      kind: shape, data type, and whether optimizers update it.
      device: TensorFlow's name of the device of the handle.
    """

    def __init__(
        self,
        handle: Any,
        kind: VariableKind,
        device: str,
    ) -> None:
        self.handle = handle
        self.kind = kind
        self.device = device

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the shard."""
        return tuple(self.kind.shape)

    @property
    def dtype(self) -> str:
        """The name of the data type."""
        return str(self.kind.dtype.name)

    @property
    def host(self) -> str:
        """The CPU of the device's host."""
        return host_cpu(self.device)

    @functools.cached_property
    def variable(self) -> tf.Variable:
        """A tf.Variable with this handle."""
        return variable_of(self.handle, self.kind)

    def read(self) -> np.ndarray:
        """Returns the present value."""
        return np.asarray(self.value_on(self.device).numpy())

    def value_on(self, device: str) -> Any:
        """Returns the present value as a tensor on a device."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(
                resource=self.variable.handle, dtype=self.kind.dtype
            )
        return value if device == self.device else _on(value, device)

    def assign(self, value: Any) -> None:
        """Assigns a new value, also after `free`."""
        value = tf.convert_to_tensor(value, self.kind.dtype)
        if value.shape != self.kind.shape:
            raise ShapeError(
                f"a value of shape {value.shape} is assigned to a slot of shape "
                f"{self.kind.shape}."
            )
        self._replace(value)

    def snapshot(self) -> Callable[[], Any]:
        """Returns a function that returns the present value, on the host."""
        on_cpu = "CPU" in self.device.upper()
        value = self.value_on(self.device if on_cpu else self.host)
        return functools.partial(_on, value, self.host)

    def free(self) -> None:
        """Releases the memory."""
        self._replace(tf.zeros([0], self.kind.dtype))

    def _replace(self, value: Any) -> None:
        """Assigns a value of any shape, which `tf.Variable.assign` would refuse."""
        with tf.device(self.device):
            tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=value)


def make_slots(
    values: Sequence[Any], devices: Sequence[str], trainable: bool
) -> list[TensorFlowSlot]:
    """Returns slots with initial values, one on each of `devices`.

    To be called outside of a tf.function.
    """
    if not private("bare_handles"):
        return [
            _public_slot(value, device, trainable)
            for value, device in zip(values, devices, strict=True)
        ]
    handles = make_handles(values, devices)
    return [
        TensorFlowSlot(handle, VariableKind(x.shape, x.dtype, trainable), device)
        for handle, x, device in zip(handles, values, devices)
    ]


def _on(value: Any, device: str) -> Any:
    with tf.device(device):
        return tf.identity(value)


def _public_slot(value: Any, device: str, trainable: bool) -> TensorFlowSlot:
    """Returns a slot with a tf.Variable from the start."""
    with tf.device(device):
        variable = tf.Variable(value, trainable=trainable)
    kind = VariableKind(value.shape, value.dtype, trainable)
    slot = TensorFlowSlot(variable.handle, kind, device)
    slot.variable = variable
    return slot
