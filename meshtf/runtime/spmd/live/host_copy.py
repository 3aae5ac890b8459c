"""The shards of a `jax.Array` on the host.

    copy = HostCopy(array)
    copy.shard(device)                   # a NumPy array

If other processes have some of the shards, the first call of `shard` gathers the array from
all processes: so all processes must call it, and for several arrays in the same order. An
array that is replicated over all devices, such as a loss, is not gathered.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshtf.runtime.spmd.live.jax_errors import memory_errors
from meshtf.runtime.spmd.live.jax_module import load_jax
from meshtf.runtime.spmd.live.join_processes import native_output_to_stderr


class HostCopy:
    """The shards of a `jax.Array` as NumPy arrays, which may be views of its memory.

    Args:
      array: the array.
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    def shard(self, device: Any) -> np.ndarray:
        """Returns the shard of a device, which another process may have.

        Raises:
          DeviceMemoryError: the program that computed the array ran out of memory.
        """
        if self._array.is_fully_replicated:
            return numpy_array(self._array.addressable_data(0))
        if self._array.is_fully_addressable:
            return numpy_array(self._local_shards[device])
        return self._gathered[self._regions[device]]

    @functools.cached_property
    def _local_shards(self) -> dict[Any, Any]:
        """{device: its shard, a `jax.Array`}, for the devices of this process."""
        return {shard.device: shard.data for shard in self._array.addressable_shards}

    @functools.cached_property
    def _regions(self) -> dict[Any, tuple[slice, ...]]:
        """{device: the region of the array that its shard covers}, for all devices."""
        regions: dict[Any, tuple[slice, ...]] = (
            self._array.sharding.devices_indices_map(self._array.shape)
        )
        return regions

    @functools.cached_property
    def _gathered(self) -> np.ndarray:
        """The global array, gathered from all processes, each of which must call this."""
        jax = load_jax()
        replicated = jax.sharding.NamedSharding(
            self._array.sharding.mesh, jax.sharding.PartitionSpec()
        )
        with native_output_to_stderr():
            gathered_array = jax.jit(_identity, out_shardings=replicated)(self._array)
            return numpy_array(gathered_array.addressable_data(0))


def numpy_array(array: Any) -> np.ndarray:
    """Returns a `jax.Array` of one device as a NumPy array, which may be a view of its memory.

    Calls of programs do not wait for the devices, so this is where their errors come.

    Raises:
      DeviceMemoryError: the program that computed the array ran out of memory.
    """
    with memory_errors("the program that computed this value"):
        # NumPy alone would wait for ever if the program failed on a CPU.
        array.block_until_ready()
        return np.asarray(array)


def _identity(x: Any) -> Any:
    """Returns x. It is a named function, not a lambda, so that jax finds it in its cache and
    compiles it only once for each shape and sharding.
    """
    return x
