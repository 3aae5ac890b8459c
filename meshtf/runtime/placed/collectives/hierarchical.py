"""Collectives of groups on several hosts: first within each host, then between hosts.

The first device of each host is its leader. Each leader reduces or gathers the tensors of
its host, the leaders form a ring, and each leader sends the results to the devices of its
host. So the traffic between hosts is that of a ring with one device on each host. An
all_to_all is that of `ring`: each shard is sent directly to its target.

    all_reduce([x0, x1, x2, x3], devices, "sum")      # 0 and 1 on one host, 2 and 3 on another
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshtf.runtime.devices.names import host_of
from meshtf.runtime.placed.collectives import ring
from meshtf.runtime.placed.collectives.primitives import combine_all, send
from meshtf.runtime.placed.program import tensor_ops
from meshtf.runtime.placed.program.tensor_ops import split

all_to_all = ring.all_to_all


def all_reduce(xs: Sequence[Any], devices: Sequence[str], kind: str) -> list[Any]:
    """Returns the reduced tensor on each device."""
    hosts = _hosts(devices)
    totals = [_reduced_within(xs, devices, members, kind) for members in hosts]
    reduced = ring.all_reduce(totals, _leaders(hosts, devices), kind)
    return _sent_to_members(reduced, hosts, devices)


def reduce_scatter(
    xs: Sequence[Any],
    devices: Sequence[str],
    kind: str,
    axis: int,
) -> list[Any]:
    """Returns shard j of the reduced tensor on device j."""
    hosts = _hosts(devices)
    leaders = _leaders(hosts, devices)
    chunks = []
    for members, leader in zip(hosts, leaders):
        total = _reduced_within(xs, devices, members, kind)
        shards = split(total, len(devices), axis, leader)
        chunks.append(
            [
                _concat([shards[p] for p in other_members], axis, leader)
                for other_members in hosts
            ]
        )
    reduced = ring.reduce_chunks(chunks, leaders, kind)
    outputs: list[Any] = [None] * len(devices)
    for members, leader, chunk in zip(hosts, leaders, reduced):
        shards = split(chunk, len(members), axis, leader)
        for p, x in zip(members, shards):
            outputs[p] = send(x, leader, devices[p])
    return outputs


def all_gather(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[Any]:
    """Returns all tensors concatenated along an axis, on each device."""
    hosts = _hosts(devices)
    leaders = _leaders(hosts, devices)
    chunks = []
    for members, leader in zip(hosts, leaders):
        received = [send(xs[p], devices[p], leader) for p in members]
        chunks.append(_concat(received, axis, leader))
    order = [p for members in hosts for p in members]
    gathered = []
    for all_chunks, leader in zip(ring.share_chunks(chunks, leaders), leaders):
        if order == sorted(order):
            gathered.append(_concat(all_chunks, axis, leader))
            continue
        shards: list[Any] = []
        for members, chunk in zip(hosts, all_chunks):
            shards += split(chunk, len(members), axis, leader)
        in_order = [shards[order.index(p)] for p in range(len(devices))]
        gathered.append(_concat(in_order, axis, leader))
    return _sent_to_members(gathered, hosts, devices)


def stack(xs: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns all tensors stacked along a new first axis, on each device."""
    expanded = []
    for x, device in zip(xs, devices):
        expanded.append(tensor_ops.stack([x], device))
    return all_gather(expanded, devices, 0)


def _hosts(devices: Sequence[str]) -> list[list[int]]:
    """Returns, for each host, the indices of its devices in the group."""
    members: dict[str, list[int]] = {}
    for index, device in enumerate(devices):
        members.setdefault(host_of(device), []).append(index)
    return list(members.values())


def _leaders(hosts: Sequence[Sequence[int]], devices: Sequence[str]) -> list[str]:
    """Returns the first device of each host."""
    first_members = [members[0] for members in hosts]
    return [devices[index] for index in first_members]


def _reduced_within(
    xs: Sequence[Any],
    devices: Sequence[str],
    members: Sequence[int],
    kind: str,
) -> Any:
    """Returns the reduction of the tensors of a host, on its leader."""
    leader = devices[members[0]]
    received = [send(xs[p], devices[p], leader) for p in members]
    return combine_all(kind, received, leader)


def _sent_to_members(
    tensors: Sequence[Any], hosts: Sequence[Sequence[int]], devices: Sequence[str]
) -> list[Any]:
    """Returns, on each device, the tensor of its host's leader."""
    outputs: list[Any] = [None] * len(devices)
    for x, members in zip(tensors, hosts):
        leader = devices[members[0]]
        for p in members:
            outputs[p] = send(x, leader, devices[p])
    return outputs


def _concat(xs: Sequence[Any], axis: int, device: str) -> Any:
    """Returns tensors concatenated along an axis; a single tensor is not copied."""
    if len(xs) == 1:
        return xs[0]
    return tensor_ops.concat(xs, axis, device)
