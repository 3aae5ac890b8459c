"""Seconds of collectives, and what a device receives in the exchanges of ops: halos of windows,
and statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshtf.graph import Spec
from meshtf.hardware import CollectiveTimes, Hardware
from meshtf.mesh import Mesh
from meshtf.mesh.axis_order import axes_by_dim
from meshtf.names import dtype_bytes
from meshtf.partition.cost import elements_received
from meshtf.partition.steps import GatherStatisticsStep, WindowStep

# The kind of work that all collectives have in common: latency, and the time in which devices
# wait for the last one.
LATENCY = "latency"


def collective_seconds(
    hardware: Hardware,
    times: CollectiveTimes,
    kind: str,
    axes: Sequence[str],
    received: Any,
    merged: bool = False,
    copies: Any = 0.0,
) -> Any:
    """Returns the seconds of a collective, by the factors of a profile: that of its kind for
    its bytes, and that of `LATENCY`, if there is one, for its latency.

    Args:
      hardware: the profile.
      times: the times of collectives without factors.
      kind: the kind, such as "all_reduce".
      axes: the axes of the mesh along which devices communicate.
      received: the bytes that one device receives.
      merged: whether it runs with another collective, which has the latency.
      copies: the seconds of copies before and after it.
    """
    factor = hardware.work_factor(kind)
    factor_of_latency = hardware.work_factors.get(LATENCY, factor)
    if merged or factor_of_latency == factor:
        return (times.seconds(kind, axes, received, merged) + copies) * factor
    of_bytes = times.seconds(kind, axes, received, merged=True)
    latency = times.seconds(kind, axes, received) - of_bytes
    return (of_bytes + copies) * factor + latency * factor_of_latency


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
