"""What a device receives in the exchanges of ops: halos of windows, and statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshtf.graph import Spec
from meshtf.mesh import Mesh
from meshtf.mesh.axis_order import axes_by_dim
from meshtf.names import dtype_bytes
from meshtf.partition.cost import elements_received
from meshtf.partition.steps import GatherStatisticsStep, WindowStep


def halo_fraction(step: WindowStep, num_shards: Any) -> Any:
    """Returns the elements that a device receives in a halo exchange, over those that it has.

    Args:
      step: the exchange.
      num_shards: the number of shards of the dimension; an array gives an array.
    """
    # `elements_received` takes numbers: it is called once for each number of shards.
    counts, index = np.unique(num_shards, return_inverse=True)
    fractions = [_halo_fraction(step, int(count)) for count in counts]
    return np.reshape(np.take(fractions, index), np.shape(num_shards))


def _halo_fraction(step: WindowStep, num_shards: int) -> float:
    """Returns what `halo_fraction` does, for one number of shards."""
    spec = step.src.spec
    assert spec is not None
    local_size = -(-spec.shape[step.dim] // num_shards)
    received = elements_received(step.window, step.factor_size, local_size, num_shards)
    return received / max(local_size, 1)


def statistics_bytes(
    step: GatherStatisticsStep,
    mesh: Mesh,
    local_size: Callable[[str, int, tuple[str, ...]], Any],
) -> Any:
    """Returns the bytes of the statistics of one shard.

    Args:
      step: the exchange.
      mesh: the mesh that it was planned for.
      local_size: a function of a dimension, its global size, and the axes that shard it, that
        returns its size on one device.
    """

    def num_bytes(spec: Spec) -> Any:
        """Returns the bytes of a statistic, planned with `spec`."""
        result: Any = dtype_bytes(spec.dtype)
        for dim in spec.shape:
            size: Any = dim.size
            for x, target in zip(step.node.inputs, step.plan.targets):
                if dim.name in x.shape:
                    axes = axes_by_dim(mesh.axes, target).get(dim.name, ())
                    size = local_size(dim.name, x.shape[dim.name], axes)
            result = result * size
        return result

    return sum(num_bytes(spec) for spec in step.specs(mesh))
