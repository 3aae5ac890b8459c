"""Collectives of groups that lie on several hosts: first within each host, then between
hosts.

One device of each host, its first, speaks for it: what its host holds is brought
together there, those who speak form a ring, and what comes is handed out within the
host. So the network carries what a ring of as many devices as there are hosts would
send, however many devices there are. An all_to_all is left to `ring`: each piece has
but one place to go to.

    all_reduce([x0, x1, x2, x3], devices, "sum")      # 0 and 1 on one host, 2 and 3 on another
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.runtime.devices.names import host_of
from meshtf.runtime.placed.collectives import ring
from meshtf.runtime.placed.collectives.primitives import combine_all, send
from meshtf.runtime.placed.program.tensor_ops import concat, split
from meshtf.runtime.placed.program.tensor_ops import stack as stacked

all_to_all = ring.all_to_all


def all_reduce(xs: Sequence[Any], devices: Sequence[str], kind: str) -> list[Any]:
    """Returns the reduced tensor on each device."""
    hosts = _hosts(devices)
    totals = [_combined(xs, devices, members, kind) for members in hosts]
    spoken = ring.all_reduce(totals, [devices[members[0]] for members in hosts], kind)
    return _handed_out(spoken, hosts, devices)


def reduce_scatter(
    xs: Sequence[Any], devices: Sequence[str], kind: str, axis: int
) -> list[Any]:
    """Returns piece j of the reduced tensor on device j."""
    hosts, speakers = (
        _hosts(devices),
        [devices[members[0]] for members in _hosts(devices)],
    )
    bundles = []
    for members, speaker in zip(hosts, speakers):
        total = _combined(xs, devices, members, kind)
        pieces = split(total, len(devices), axis, speaker)
        bundles.append(
            [_joined([pieces[p] for p in others], axis, speaker) for others in hosts]
        )
    out: list[Any] = [None] * len(devices)
    for members, speaker, bundle in zip(
        hosts, speakers, ring.reduce_pieces(bundles, speakers, kind)
    ):
        pieces = split(bundle, len(members), axis, speaker)
        for p, x in zip(members, pieces):
            out[p] = send(x, speaker, devices[p])
    return out


def all_gather(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[Any]:
    """Returns all tensors joined along an axis on each device."""
    hosts = _hosts(devices)
    speakers = [devices[members[0]] for members in hosts]
    bundles = []
    for members, speaker in zip(hosts, speakers):
        came = [send(xs[p], devices[p], speaker) for p in members]
        bundles.append(_joined(came, axis, speaker))
    order = [p for members in hosts for p in members]
    spoken = []
    for some, speaker in zip(ring.share_pieces(bundles, speakers), speakers):
        if order == sorted(order):
            spoken.append(_joined(some, axis, speaker))
            continue
        pieces = [
            x
            for members, bundle in zip(hosts, some)
            for x in split(bundle, len(members), axis, speaker)
        ]
        in_order = [pieces[order.index(p)] for p in range(len(devices))]
        spoken.append(_joined(in_order, axis, speaker))
    return _handed_out(spoken, hosts, devices)


def stack(xs: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns all tensors as rows of one, on each device."""
    rows = [stacked([x], device) for x, device in zip(xs, devices)]
    return all_gather(rows, devices, 0)


def _hosts(devices: Sequence[str]) -> list[list[int]]:
    """Returns the places in a group of the devices of each host."""
    found: dict[str, list[int]] = {}
    for place, device in enumerate(devices):
        found.setdefault(host_of(device), []).append(place)
    return list(found.values())


def _combined(
    xs: Sequence[Any], devices: Sequence[str], members: Sequence[int], kind: str
) -> Any:
    """Returns what a host holds of a reduction, on the device that speaks for it."""
    speaker = devices[members[0]]
    came = [send(xs[p], devices[p], speaker) for p in members]
    return combine_all(kind, came, speaker)


def _handed_out(
    spoken: Sequence[Any], hosts: Sequence[Sequence[int]], devices: Sequence[str]
) -> list[Any]:
    """Returns for each device what the one that speaks for its host has."""
    out: list[Any] = [None] * len(devices)
    for x, members in zip(spoken, hosts):
        for p in members:
            out[p] = send(x, devices[members[0]], devices[p])
    return out


def _joined(xs: Sequence[Any], axis: int, device: str) -> Any:
    return xs[0] if len(xs) == 1 else concat(xs, axis, device)
