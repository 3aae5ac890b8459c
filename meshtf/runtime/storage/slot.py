"""Slots: the storage of one shard of a variable on one device.

    slot.read()                      # a NumPy array
    slot.assign(array)
    read_snapshot = slot.snapshot()
    slot.assign(other_array)
    read_snapshot()                  # the value of `array`, as a tensor
    copy.deepcopy(slot)              # a slot on the same device, with memory of its own
    slot.device, slot.host

Variables and checkpoints use only the protocol `Slot`. Each runtime has its own class of
slots. The class of the placed runtime, in which one TensorFlow program drives all devices,
is `TensorFlowSlot`: a resource handle that TensorFlow's ops accept.
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
    """The storage of one shard of a variable on one device. Mesh positions (elements of the
    mesh's grid) that are on the same device and have the same shard share a slot.
    """

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
        """Returns a copy of the current value, in this process."""

    def value_on(self, device: str) -> Any:
        """Returns the current value as a tensor on a TensorFlow device.

        Nothing is copied if this device shares its memory with the slot's device.
        """

    def assign(self, value: Any) -> None:
        """Assigns an array, or a tensor of any device. Raises ShapeError if the shape of
        the value is not that of the slot.
        """

    def snapshot(self) -> Callable[[], Any]:
        """Returns a function that returns the current value as a tensor on `host`, even
        if other values are assigned before it is called.

        If the host can read the device's memory, the value is copied only when the slot
        is next written; otherwise it is copied to the host at once.
        """

    def free(self) -> None:
        """Releases the memory; the slot has no value until the next `assign`."""


class VariableKind(NamedTuple):
    """The properties that a tf.Variable has besides its value.

    Attributes:
      shape: the shape of the value.
      dtype: the data type of the value.
      trainable: whether optimizers update the variable.
    """

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
      kind: the shape and data type of the value, and whether optimizers update it.
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
        """Returns the current value."""
        return np.asarray(self.value_on(self.device).numpy())

    def value_on(self, device: str) -> Any:
        """Returns the current value as a tensor on a device."""
        with tf.device(self.device):
            value = tf.raw_ops.ReadVariableOp(
                resource=self.variable.handle, dtype=self.kind.dtype
            )
        if device == self.device:
            return value
        return _copy_on(value, device)

    def assign(self, value: Any) -> None:
        """Assigns a new value, also after `free`. Raises ShapeError for another shape."""
        value = tf.convert_to_tensor(value, self.kind.dtype)
        if value.shape != self.kind.shape:
            raise ShapeError(
                f"a value of shape {value.shape} is assigned to a slot of shape "
                f"{self.kind.shape}."
            )
        self._replace(value)

    def snapshot(self) -> Callable[[], Any]:
        """Returns a function that returns the current value as a tensor on the host."""
        device = self.host
        if "CPU" in self.device.upper():
            # Nothing is copied now: TensorFlow copies the value when it is next written.
            device = self.device
        value = self.value_on(device)
        return functools.partial(_copy_on, value, self.host)

    def free(self) -> None:
        """Releases the memory: the value becomes a tensor without elements."""
        self._replace(tf.zeros([0], self.kind.dtype))

    def __deepcopy__(self, memo: dict[int, Any]) -> TensorFlowSlot:
        """Returns a slot with the same value; TensorFlow copies the memory when one of the
        two is next written.
        """
        (slot,) = make_slots(
            [self.value_on(self.device)], [self.device], self.kind.trainable
        )
        return slot

    def _replace(self, value: Any) -> None:
        """Assigns a value of any shape, which `tf.Variable.assign` would refuse."""
        with tf.device(self.device):
            tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=value)


def make_slots(
    values: Sequence[Any], devices: Sequence[str], trainable: bool
) -> list[TensorFlowSlot]:
    """Returns slots with initial values, one on each of `devices`.

    It must be called outside of a tf.function.

    Args:
      values: the initial value of each slot.
      devices: the device of each slot.
      trainable: whether optimizers update the variable.
    """
    # `private`: whether handles may be created by private symbols of TensorFlow.
    if not private("bare_handles"):
        return [
            _public_slot(value, device, trainable)
            for value, device in zip(values, devices, strict=True)
        ]
    handles = make_handles(values, devices)
    return [
        TensorFlowSlot(
            handle, VariableKind(value.shape, value.dtype, trainable), device
        )
        for handle, value, device in zip(handles, values, devices)
    ]


def _copy_on(value: Any, device: str) -> Any:
    """Returns a tensor on a device, copied if necessary."""
    with tf.device(device):
        return tf.identity(value)


def _public_slot(value: Any, device: str, trainable: bool) -> TensorFlowSlot:
    """Returns a slot with the handle of a new tf.Variable. This needs no private symbols of
    TensorFlow.
    """
    with tf.device(device):
        variable = tf.Variable(value, trainable=trainable)
    kind = VariableKind(value.shape, value.dtype, trainable)
    slot = TensorFlowSlot(variable.handle, kind, device)
    # Sets the cached property, and keeps the tf.Variable alive.
    slot.variable = variable
    return slot
