"""Slots: what holds one shard of a variable on one device.

    slot.read()                      # a NumPy array
    slot.assign(array)
    value = slot.snapshot()          # value() is what it held just now, whatever comes later
    slot.device, slot.host

Variables and checkpoints know storage by `Slot` alone. Each runtime has its own form;
`TensorFlowSlot` is that of the placed runtime: a handle that all ops of TensorFlow take.
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
    """What holds one shard of a variable; mesh positions of one device may share it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the shard."""

    @property
    def dtype(self) -> str:
        """The name of the data type."""

    @property
    def device(self) -> str:
        """The name of the device that holds it, as the runtime calls devices."""

    @property
    def host(self) -> str:
        """TensorFlow's name of the CPU beside the device, which reads and writes
        files.
        """

    def read(self) -> np.ndarray:
        """Returns the present value as an array of its own, in this process."""

    def value_on(self, device: str) -> Any:
        """Returns the present value as a tensor on one of TensorFlow's devices.

        Nothing is copied where that device and the slot's see one memory.
        """

    def assign(self, value: Any) -> None:
        """Gives it a new value, an array or tensor of its shape from anywhere. Raises
        ShapeError.
        """

    def snapshot(self) -> Callable[[], Any]:
        """Returns what gives the present value as a tensor on `host`, even after other
        values were assigned.

        Where the host sees the device's memory, nothing is copied until a new value
        comes; else the value is copied to the host at once.
        """

    def free(self) -> None:
        """Gives its memory back; it has no value until the next `assign`."""


class VariableKind(NamedTuple):
    """What tells TensorFlow's variables apart, other than their values."""

    shape: tf.TensorShape
    dtype: tf.DType
    trainable: bool


class TensorFlowSlot:
    """A slot of TensorFlow's: a handle, and a tf.Variable once somebody asks.

    A model on many devices has thousands of shards, and tf.Variables take longer to
    make than what they stand for. A program whose devices have all handles as one
    tensor asks for none.

    Args:
      handle: TensorFlow's, of shape [], which keeps the value alive.
      kind: shape, data type, and whether optimizers update it.
      device: TensorFlow's name of where the handle lies.
    """

    def __init__(self, handle: Any, kind: VariableKind, device: str) -> None:
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
        """The tf.Variable that stands for it."""
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
        """Gives it a new value, also where it was freed."""
        value = tf.convert_to_tensor(value, self.kind.dtype)
        if value.shape != self.kind.shape:
            raise ShapeError(
                f"a value of shape {value.shape} is assigned to a slot of shape "
                f"{self.kind.shape}."
            )
        self._replace(value)

    def snapshot(self) -> Callable[[], Any]:
        """Returns what gives the present value later."""
        on_cpu = "CPU" in self.device.upper()
        value = self.value_on(self.device if on_cpu else self.host)
        return functools.partial(_on, value, self.host)

    def free(self) -> None:
        """Gives its memory back."""
        self._replace(tf.zeros([0], self.kind.dtype))

    def _replace(self, value: Any) -> None:
        """Takes a value of any shape, which `tf.Variable.assign` would refuse."""
        with tf.device(self.device):
            tf.raw_ops.AssignVariableOp(resource=self.variable.handle, value=value)


def make_slots(
    values: Sequence[Any], devices: Sequence[str], trainable: bool
) -> list[TensorFlowSlot]:
    """Returns slots with these first values, one on each device; outside of
    functions.
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
