"""Collectives of groups on several hosts: first within each host, then between hosts.

The first device of each host is its leader. Each leader reduces or gathers the tensors of
its host, the leaders form a ring, and each leader sends the results to the devices of its
host. So the traffic between hosts is the same as in a ring with one device on each host. In
an all_to_all, each shard is sent directly to its target, as in `ring.py`.

    all_reduce([x0, x1, x2, x3], devices, "sum")     # devices 0, 1 on one host; 2, 3 on another

In all functions, `xs` are the tensors of a group of devices, in the order of `devices`, and
`kind` is the reduction: "sum", "max" or "min".
The *members* of a host are the indices of its devices in the group.
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
    members_of_hosts = _members_of_hosts(devices)
    host_totals = []
    for members in members_of_hosts:
        host_totals.append(_reduce_on_leader(xs, devices, members, kind))
    leaders = _leaders(members_of_hosts, devices)
    totals = ring.all_reduce(host_totals, leaders, kind)
    return _send_to_members(totals, members_of_hosts, devices)


def reduce_scatter(
    xs: Sequence[Any],
    devices: Sequence[str],
    kind: str,
    axis: int,
) -> list[Any]:
    """Returns shard j of the reduced tensor on device j."""
    members_of_hosts = _members_of_hosts(devices)
    leaders = _leaders(members_of_hosts, devices)
    chunks = []  # chunks[host index][index of the host to which the chunk is sent]
    for members, leader in zip(members_of_hosts, leaders):
        host_total = _reduce_on_leader(xs, devices, members, kind)
        shards = split(host_total, len(devices), axis, leader)
        # Each chunk has the shards of all members of one host.
        host_chunks = []
        for target_members in members_of_hosts:
            target_shards = [shards[member] for member in target_members]
            host_chunks.append(_concat(target_shards, axis, leader))
        chunks.append(host_chunks)
    reduced_chunks = ring.reduce_chunks(chunks, leaders, kind)
    outputs: list[Any] = [None] * len(devices)
    for members, leader, chunk in zip(members_of_hosts, leaders, reduced_chunks):
        shards = split(chunk, len(members), axis, leader)
        for member, x in zip(members, shards):
            outputs[member] = send(x, leader, devices[member])
    return outputs


def all_gather(xs: Sequence[Any], devices: Sequence[str], axis: int) -> list[Any]:
    """Returns all tensors concatenated along an axis, on each device."""
    members_of_hosts = _members_of_hosts(devices)
    leaders = _leaders(members_of_hosts, devices)
    chunks = []
    for members, leader in zip(members_of_hosts, leaders):
        received_tensors = [
            send(xs[member], devices[member], leader) for member in members
        ]
        chunks.append(_concat(received_tensors, axis, leader))
    # The order of the shards in the concatenation of all chunks: host by host.
    order = [member for members in members_of_hosts for member in members]
    gathered_tensors = []
    for all_chunks, leader in zip(ring.gather_chunks(chunks, leaders), leaders):
        if order == sorted(order):
            gathered_tensors.append(_concat(all_chunks, axis, leader))
            continue
        # The members of a host are not adjacent: split the chunks and reorder the shards.
        shards: list[Any] = []
        for members, chunk in zip(members_of_hosts, all_chunks):
            shards += split(chunk, len(members), axis, leader)
        shards_in_order = [shards[order.index(j)] for j in range(len(devices))]
        gathered_tensors.append(_concat(shards_in_order, axis, leader))
    return _send_to_members(gathered_tensors, members_of_hosts, devices)


def stack(xs: Sequence[Any], devices: Sequence[str]) -> list[Any]:
    """Returns all tensors stacked along a new first axis, on each device."""
    expanded_tensors = []
    for x, device in zip(xs, devices):
        expanded_tensors.append(tensor_ops.stack([x], device))
    return all_gather(expanded_tensors, devices, axis=0)


def _members_of_hosts(devices: Sequence[str]) -> list[list[int]]:
    """Returns, for each host, the indices of its devices in the group."""
    members: dict[str, list[int]] = {}
    for index, device in enumerate(devices):
        members.setdefault(host_of(device), []).append(index)
    return list(members.values())


def _leaders(
    members_of_hosts: Sequence[Sequence[int]], devices: Sequence[str]
) -> list[str]:
    """Returns the first device of each host."""
    return [devices[members[0]] for members in members_of_hosts]


def _reduce_on_leader(
    xs: Sequence[Any],
    devices: Sequence[str],
    members: Sequence[int],
    kind: str,
) -> Any:
    """Returns the reduction of the tensors of a host, on its leader."""
    leader = devices[members[0]]
    received_tensors = [send(xs[member], devices[member], leader) for member in members]
    return combine_all(kind, received_tensors, leader)


def _send_to_members(
    tensors: Sequence[Any],
    members_of_hosts: Sequence[Sequence[int]],
    devices: Sequence[str],
) -> list[Any]:
    """Returns, on each device, the tensor of its host's leader."""
    outputs: list[Any] = [None] * len(devices)
    for x, members in zip(tensors, members_of_hosts):
        leader = devices[members[0]]
        for member in members:
            outputs[member] = send(x, leader, devices[member])
    return outputs


def _concat(xs: Sequence[Any], axis: int, device: str) -> Any:
    """Returns tensors concatenated along an axis; a single tensor is not copied."""
    if len(xs) == 1:
        return xs[0]
    return tensor_ops.concat(xs, axis, device)
