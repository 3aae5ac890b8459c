"""The time of collectives: which links they cross, and how many bytes each device receives.

>>> from meshtf.hardware.profile import Hardware, Link
>>> links = (Link("host", 8, 400e9, 5e-6), Link("network", None, 50e9, 1e-5))
>>> gpu = Hardware("gpu", {"bfloat16": 1e15}, 3e12, links)
>>> times = CollectiveTimes(gpu, {"data": 4, "model": 8})
>>> f"{times.seconds('all_reduce', ('model',), 1e9):.4f}"
'0.0025'
>>> f"{times.seconds('all_reduce', ('data',), 1e9):.4f}"
'0.0201'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshtf.hardware.profile import Hardware

# Rounds of messages that wait for each other, in units of log2(devices) in a tree, and of
# devices - 1 in a ring.
_ROUNDS = {"all_reduce": 2.0, "send": 0.0, "broadcast": 1.0}
_KIND_OF = {"window": "collective_permute", "gather_statistics": "all_gather"}


class _Path(NamedTuple):
    """How collectives along some axes use one link; values are numbers or arrays.

    Attributes:
      latency: the seconds before the bytes arrive.
      bandwidth: the bytes per second of a device.
      crosses: whether the devices are on both sides of it.
    """

    latency: Any
    bandwidth: Any
    crosses: Any


class CollectiveTimes:
    """Predicts the seconds of collectives on a mesh.

    Args:
      hardware: the profile, with its links.
      axes: the size of each axis of the mesh: a number, or an array with an entry for each
        mesh that is compared. Positions that differ only along the last axis are neighbours.
      within_host: axes whose positions share a host: they are innermost, as if they were the
        last axes.
      strides: for each axis, how many positions are nearer to each other than those along
        it; None: as the order of the axes says.
    """

    def __init__(
        self,
        hardware: Hardware,
        axes: Mapping[str, Any],
        within_host: Sequence[str] = (),
        strides: Mapping[str, Any] | None = None,
    ) -> None:
        self._links = hardware.links
        self._axes = axes
        self._paths: dict[tuple[str, tuple[str, ...]], list[_Path]] = {}
        if strides is not None:
            self._strides = dict(strides)
            return
        outer = [axis for axis in axes if axis not in within_host]
        order = [*outer, *(axis for axis in axes if axis in within_host)]
        self._strides = {}
        stride: Any = 1
        for axis in reversed(order):
            self._strides[axis] = stride
            stride = stride * axes[axis]

    def group_size(self, axes: Sequence[str]) -> Any:
        """Returns the number of devices of a collective along axes."""
        size: Any = 1
        for axis in axes:
            size = size * self._axes[axis]
        return size

    def seconds(
        self, kind: str, axes: Sequence[str], received: Any, merged: bool = False
    ) -> Any:
        """Returns the seconds of a collective.

        Args:
          kind: the kind, such as "all_reduce"; "slice", "drop" and "keep" take no time.
          axes: the axes of the mesh along which devices communicate.
          received: the bytes that one device receives.
          merged: whether it runs with another collective, which has the latency.
        """
        if kind in ("slice", "drop", "keep"):
            return 0.0 * received
        key = _KIND_OF.get(kind, kind), tuple(axes)
        if key not in self._paths:
            self._paths[key] = list(self._paths_of(*key))
        result: Any = 0.0
        for path in self._paths[key]:
            seconds = received / path.bandwidth
            if not merged:
                seconds = path.latency + seconds
            # The slowest link that a group crosses decides.
            result = np.where(path.crosses, np.maximum(seconds, result), result)
        return result

    def _paths_of(self, kind: str, axes: Sequence[str]) -> Iterator[_Path]:
        """Yields the links that a collective along axes may cross, and how it uses them."""
        size = self.group_size(axes)
        stride = self._strides[axes[0]]
        for axis in axes[1:]:
            stride = np.minimum(stride, self._strides[axis])
        for i, link in enumerate(self._links):
            latency, bandwidth = link.rate(kind)
            devices = np.maximum(size, 1)
            waits = devices - 1 if link.ring else np.log2(devices)
            rounds = 1.0 + _ROUNDS.get(kind, 1.0) * waits
            if link.has_groups(kind):
                latency, bandwidth = link.rate_of_group(kind, size)
                rounds = 1.0
            crosses = np.asarray(size) > 1
            if i:
                # Of each host, the devices of the group share what the host receives.
                joined = self._links[i - 1].devices or 1
                positions_in_host = np.clip(joined / stride, 1, size)
                if kind != "all_to_all":
                    bandwidth = bandwidth * positions_in_host
                bandwidth = np.minimum(bandwidth, self._links[0].rate(kind)[1])
                crosses = crosses & (size > positions_in_host)
            yield _Path(latency * rounds, bandwidth, crosses)
