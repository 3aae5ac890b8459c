"""Slots of the SPMD runtime. A slot is the storage of one shard of a variable; here all shards
are one `jax.Array`.

    variable_value = VariableArray(layout, array, mesh)
    variable_value.array                         # the jax.Array, an input of programs
    variable_value.array = new_array             # the output of a program that writes it
    JaxSlot(variable_value, 3).read()            # the shard of mesh position 3

A program that writes a variable reuses the memory of its array, and returns a new array. So
slots refer to the `VariableArray`, which always has the newest array.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import ShapeError
from meshtf.mesh import Mesh
from meshtf.runtime.devices.names import LOCAL_CPU
from meshtf.runtime.devices.processes import process_host, processes
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout
from meshtf.runtime.spmd.live.host_copy import HostCopy, numpy_array
from meshtf.runtime.spmd.live.jax_errors import memory_errors
from meshtf.runtime.spmd.live.jax_host import is_local, live_devices
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.run_checks import raise_all


class VariableArray:
    """The current value of a variable on the devices of a live mesh.

    Args:
      layout: the layout of the array.
      array: the array.
      mesh: the mesh of the programs that write the variable. On a pipeline stage, the layout
        has the mesh of the stage, and programs that of all stages.
    """

    def __init__(self, layout: ArrayLayout, array: Any, mesh: Mesh) -> None:
        self.layout = layout
        self.mesh = mesh
        self._array: Any = array
        # Set instead of `_array` after a single shard was assigned: the shard of each
        # position; None in the list: it was freed, or another process has it.
        self._shards: list[Any] | None = None
        # With several processes: the copy of `_array` on the host, once it was read.
        self._gathered: HostCopy | None = None

    @property
    def array(self) -> Any:
        """The array, joined from the shards if some were assigned."""
        if self._array is None:
            assert self._shards is not None
            self._array = self.layout.join(self._shards)
            self._shards = None
        return self._array

    @array.setter
    def array(self, array: Any) -> None:
        """Replaces the array by the output of a program that wrote the variable."""
        self._array = array
        self._shards = None
        self._gathered = None

    def __deepcopy__(self, memo: dict[int, Any]) -> VariableArray:
        """Returns the same value in memory of its own."""
        raise_all(self.mesh)
        with memory_errors("the copy of a variable"):
            return VariableArray(self.layout, self.array.copy(), self.mesh)

    def local_shard(self, position: int) -> Any:
        """Returns the `jax.Array` of one position of this process."""
        # The shards are not cached: jax cannot donate the memory of an array with views.
        shards = self._shards or self.layout.split(self._array)
        return shards[position]

    def on_host(self, position: int) -> np.ndarray:
        """Returns the shard of one position, which may be of another process: see
        `HostCopy`.
        """
        if processes().count == 1:
            return numpy_array(self.local_shard(position))
        if self._gathered is None:
            self._gathered = HostCopy(self.array)
        return self._gathered.shard(live_devices(self.layout.mesh)[position])

    def set_shard(self, position: int, value: Any) -> None:
        """Replaces the shard of one position; None: it is freed, or of another process."""
        if self._shards is None:
            self._shards = self.layout.split(self._array)
        self._shards[position] = value
        self._array = None
        self._gathered = None


class JaxSlot:
    """The storage of the shard of one mesh position; see `storage.slot.Slot`.

    Args:
      value: the array of the variable.
      position: the mesh position.
    """

    def __init__(self, value: VariableArray, position: int) -> None:
        self.value = value
        self.position = position

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the shard."""
        return self.value.layout.local_sizes

    @property
    def dtype(self) -> str:
        """The name of the data type."""
        return self.value.layout.spec.dtype

    @property
    def host(self) -> str:
        """The CPU that reads and writes files; with several processes, the process."""
        if processes().count == 1:
            return LOCAL_CPU
        return process_host(self._device.process_index)

    @property
    def device(self) -> str:
        """The device of the slot, named as jax names it."""
        return str(self._device)

    @property
    def _device(self) -> Any:
        return live_devices(self.value.layout.mesh)[self.position]

    def read(self) -> np.ndarray:
        """Returns a copy of the current value."""
        raise_all(self.value.mesh)
        return np.array(self.value.on_host(self.position))

    def value_on(self, device: str) -> Any:
        """Returns the current value as a tensor on a TensorFlow device."""
        raise_all(self.value.mesh)
        with tf.device(device):
            return tf.constant(self.value.on_host(self.position))

    def assign(self, value: Any) -> None:
        """Assigns an array, or a tensor from any device, also after `free`."""
        array = np.array(value, self.value.layout.dtype)
        if array.shape != self.shape:
            raise ShapeError(
                f"a value of shape {array.shape} is assigned to a slot of shape "
                f"{self.shape}."
            )
        on_device = None
        if is_local(self._device):
            with memory_errors("the value of a variable"):
                on_device = load_jax().device_put(array, self._device)
        self.value.set_shard(self.position, on_device)

    def snapshot(self) -> Callable[[], Any]:
        """Returns a function that returns the current value, on the host. The device of the
        slot must belong to this process.

        On CPUs the value is a view of the array, and the next program that writes the
        variable does not reuse this memory. From other devices the value is copied.
        """
        raise_all(self.value.mesh)
        value = numpy_array(self.value.local_shard(self.position))
        return functools.partial(_on_host, value)

    def free(self) -> None:
        """Releases the memory."""
        self.value.set_shard(self.position, None)


def _on_host(value: np.ndarray) -> Any:
    """Returns a NumPy array as a TensorFlow tensor on the host."""
    with tf.device(LOCAL_CPU):
        return tf.constant(value)
