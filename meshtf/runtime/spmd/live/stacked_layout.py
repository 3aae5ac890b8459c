"""Shards of devices that all have an array of their own, as one `jax.Array`."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.graph import Spec
from meshtf.mesh import Mesh, Placement
from meshtf.partition.cost import local_shape
from meshtf.runtime.spmd.live.jax_module import load_jax


class StackedLayout:
    """The shards of all replicas, stacked along a new first dimension; see `ModuleLayout`.

    Args:
      local_sizes: the sizes of one shard.
      dtype: the data type.
      mesh: jax's mesh, with one axis for the replicas.
    """

    def __init__(
        self, local_sizes: tuple[int, ...], dtype: np.dtype[Any], mesh: Any
    ) -> None:
        self.local_sizes = local_sizes
        self.dtype = dtype
        self.shard_sizes = (1, *local_sizes)
        self.global_sizes = (mesh.size, *local_sizes)
        sharding = load_jax().sharding
        self.partition_spec = sharding.PartitionSpec(mesh.axis_names[0])
        self.sharding = sharding.NamedSharding(mesh, self.partition_spec)

    @classmethod
    def of(
        cls, spec: Spec, placement: Placement, mesh: Mesh, devices: Any
    ) -> StackedLayout:
        """Returns the layout of the shards of a tensor.

        Args:
          spec: the shape and dtype of the tensor.
          placement: the placement of the tensor.
          mesh: the mesh of the tensor.
          devices: jax's mesh, with one axis for the positions of `mesh`.
        """
        shape = local_shape(spec.shape, placement, mesh)
        dtype = np.dtype(tf.as_dtype(spec.dtype).as_numpy_dtype)
        return cls(shape.sizes, dtype, devices)
