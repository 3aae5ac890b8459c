"""Values on the devices of a live mesh: one `jax.Array` for all shards of a value.

A live mesh is one whose devices belong to jax. A mesh axis that shards the value shards the
array as well. Along an axis where the value is a partial sum, each device has a term of it:
for such an axis the array has a further dimension, in front of those of the value.

    layout = ArrayLayout(spec, placement, mesh)
    layout.local_sizes                   # of the shard of one device, as the value has them
    array = layout.array(shards)         # jax.Array, from a NumPy array for each position
    DeviceShards(array, layout)[3]       # the shard of mesh position 3 as a tf.Tensor
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Spec
from meshtf.mesh import Mesh, Placement
from meshtf.partition.cost import local_shape
from meshtf.runtime.devices.processes import processes
from meshtf.runtime.lowering.padding.shard_blocks import NumpyOps, to_blocks
from meshtf.runtime.spmd.live.host_copy import HostCopy
from meshtf.runtime.spmd.live.jax_host import is_local, jax_mesh, live_devices
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.storage.sharding import coordinates_along, with_padding


class ArrayLayout:
    """How the shards of a value form one `jax.Array`.

    Args:
      spec: the global shape and data type of the value.
      placement: the placement of the value.
      mesh: the live mesh of the value.
      device_mesh: jax's mesh of the devices; None: that of the live mesh.

    Attributes:
      partial_axes: the mesh axes along which the value is a partial result.
      local_sizes: the sizes of one shard, without dimensions for `partial_axes`.
    """

    def __init__(
        self,
        spec: Spec,
        placement: Placement,
        mesh: Mesh,
        device_mesh: Any = None,
    ) -> None:
        # The mesh of a pipeline stage has size 1 along the axis of stages, so that all of its
        # devices have a value whose state is OnStage.
        assert placement.stage is None or mesh.num_stages == 1
        self.spec = spec
        self.placement = placement
        self.mesh = mesh
        self._device_mesh = device_mesh
        self.partial_axes = tuple(a for a in mesh.axes if a in placement.partial)
        self.local_sizes: tuple[int, ...] = local_shape(
            spec.shape, placement, mesh
        ).sizes

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type, as NumPy's."""
        return np.dtype(tf.as_dtype(self.spec.dtype).as_numpy_dtype)

    @property
    def global_sizes(self) -> tuple[int, ...]:
        """The sizes of the array: those of the value, with the padding of all shards, after
        the partial axes.
        """
        partial_sizes = (self.mesh.axes[axis] for axis in self.partial_axes)
        sizes = (
            local_size * self.mesh.group_size(*self._axes_of[name])
            for name, local_size in zip(self.spec.shape.names, self.local_sizes)
        )
        return (*partial_sizes, *sizes)

    @functools.cached_property
    def _axes_of(self) -> dict[str, tuple[str, ...]]:
        """The mesh axes that shard each dimension, the major one first."""
        return {name: self.placement.axes_of(name) for name in self.spec.shape.names}

    @property
    def shard_sizes(self) -> tuple[int, ...]:
        """The sizes of the slice of the array on one device."""
        return (*(1 for _ in self.partial_axes), *self.local_sizes)

    @property
    def partition_spec(self) -> Any:
        """The `PartitionSpec` of the array."""
        entries = [axes or None for axes in self._axes_of.values()]
        return load_jax().sharding.PartitionSpec(*self.partial_axes, *entries)

    @functools.cached_property
    def sharding(self) -> Any:
        """The `NamedSharding` of the array."""
        device_mesh = self._device_mesh or jax_mesh(self.mesh)
        return load_jax().sharding.NamedSharding(device_mesh, self.partition_spec)

    def array(self, shards: Sequence[Any]) -> Any:
        """Returns the array whose shards are NumPy arrays, one for each mesh position."""
        jax = load_jax()
        local_shards = [
            # A copy: jax may use the memory of a NumPy array, and donate it.
            jax.device_put(_copied(shard).reshape(self.shard_sizes), device)
            for shard, device in zip(shards, live_devices(self.mesh), strict=True)
            if is_local(device)
        ]
        return self.join(local_shards)

    def join(self, shards: Sequence[Any]) -> Any:
        """Returns the array whose shards are `jax.Array`s, each on its device.

        Args:
          shards: the shard of each position; None, or left out: another process has it.
        """
        local_shards = [shard for shard in shards if shard is not None]
        return load_jax().make_array_from_single_device_arrays(
            self.global_sizes, self.sharding, local_shards
        )

    def global_array(self, value: Any) -> Any:
        """Returns the array of a value, given its global NumPy array, which all processes
        have. The value must not be a partial result.
        """
        assert not self.partial_axes
        array = self._with_padding(_as_numpy(value))
        jax = load_jax()
        if processes().count == 1:
            return jax.device_put(array, self.sharding)
        return jax.make_array_from_callback(
            array.shape, self.sharding, lambda region: array[region]
        )

    def _with_padding(self, array: np.ndarray) -> np.ndarray:
        """Returns a global array with the padding of all shards."""
        for axis, axes in enumerate(self._axes_of.values()):
            axis_sizes = [self.mesh.axes[name] for name in axes]
            array = to_blocks(array, axis, axis_sizes, NumpyOps())
        return array

    def array_of_section(self, section: Any, start: int) -> Any:
        """Returns the array of which each process has a section of the first dimension.

        Args:
          section: the elements with consecutive first indices, which contain the shards of
            this process's devices.
          start: the first index of the section in the array.
        """
        elements = _as_numpy(section)

        def shard(region: tuple[slice, ...]) -> np.ndarray:
            """Returns the elements of a region of the array."""
            first, *other_slices = region
            low, high, _step = first.indices(self.global_sizes[0])
            local_region = (slice(low - start, high - start), *other_slices)
            return with_padding(np.asarray(elements[local_region]), self.shard_sizes)

        return load_jax().make_array_from_callback(
            self.global_sizes, self.sharding, shard
        )

    def split(self, array: Any) -> list[Any]:
        """Returns the `jax.Array` on the device of each position; None: it is a device of
        another process.
        """
        data_on = {shard.device: shard.data for shard in array.addressable_shards}
        return [data_on.get(device) for device in live_devices(self.mesh)]


def _as_numpy(value: Any) -> np.ndarray:
    """Returns a TensorFlow tensor or an array as a NumPy array, without a copy."""
    return value.numpy() if isinstance(value, tf.Tensor) else np.asarray(value)


def _copied(value: Any) -> np.ndarray:
    """Returns a copy as a NumPy array."""
    return np.array(_as_numpy(value))


class DeviceShards(Sequence[Any]):
    """The shards of a `jax.Array` as TensorFlow tensors, copied to the host when they are
    first asked for; positions with equal shards get one tensor.

    Args:
      array: the array.
      layout: the layout of the array.
      check: a function that raises the error of the program that computed the array. It is
        called before a shard is copied to the host. None: there is nothing to check.
    """

    def __init__(
        self,
        array: Any,
        layout: ArrayLayout,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.array = array
        self.layout = layout
        self._check = check
        self._host_copy = HostCopy(array)
        self._tensors: dict[tuple[int, ...], Any] = {}

    def __len__(self) -> int:
        return self.layout.mesh.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        key = self._key(index)
        if self._check is not None:
            self._check()
        if key not in self._tensors:
            device = live_devices(self.layout.mesh)[index]
            local = self._host_copy.shard(device).reshape(self.layout.local_sizes)
            with tf.device("/device:CPU:0"):
                self._tensors[key] = tf.constant(local)
        return self._tensors[key]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def _key(self, index: int) -> tuple[int, ...]:
        """Returns a key that is equal for positions with equal shards: the coordinates along
        the axes that shard the value, or have terms of it.
        """
        axes = self.layout.placement.unreplicated
        mesh = self.layout.mesh
        return coordinates_along(axes, mesh, mesh.coords[index])
