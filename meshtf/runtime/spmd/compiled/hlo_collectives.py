"""The collectives among the instructions of a compiled program: their kinds, the bytes that a
device receives, and the devices that take part.

Kinds have the names of the planner: "all_reduce" and so on. An asynchronous collective is two
instructions: all-gather-start, and all-gather-done, whose operand is the start. It may also be
an async-start, whose computation has the collective.

On TPUs it is a chain of fusions, the first of which is named `async-collective-start.3` and the
last one `async-collective-done.3`: fusions between them compute something else beside it. Each of
them contains the collective.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from meshtf.errors import PlanError
from meshtf.runtime.spmd.compiled.hlo_text import (
    HloComputation,
    HloInstruction,
    HloProgram,
)

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
# Groups are a list, {{0,1},{2,3}}; the shape of an iota: [2,2]<=[4] has groups of 2, and
# [2,2]<=[2,2]T(1,0) those of the transposed iota; or axes of a mesh: mesh['a'=2,'b'=4] {'b'} has
# groups of 4, and {'b':(1)2} those of a part of an axis.
_GROUP = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_PAIRS = re.compile(r"source_target_pairs=\{\{([\d,{}]*)\}\}")
_IOTA_GROUPS = re.compile(
    r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]*)\](?:T\(([\d,]*)\))?"
)
_MESH_GROUPS = re.compile(
    r"replica_groups=@?mesh\[([^\]]*)\]"
    r"(?:, device_ids=\(\[([\d,]*)\](?:T\(([\d,]*)\))?\))?[^{]*\{([^}]*)\}"
)
_MESH_AXIS = re.compile(r"'?([\w.-]+)'?=(\d+)")
_GROUPED_AXIS = re.compile(r"'?([\w.-]+)'?(?::\((\d+)\)(\d+))?(?:,\s*|$)")
_COLLECTIVE_NAME = re.compile(rf"/({'|'.join(KINDS)})\.\d+")
_NAMED_USERS = 3  # an element, a slice of it, the slice in another shape
_TPU_START = "async-collective-start"
_TPU_DONE = "async-collective-done"


class Transfer(NamedTuple):
    """What one collective sends, once.

    Attributes:
      kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or
        "collective_permute".
      received: the bytes that a device receives, by a ring algorithm.
      devices: the devices of the first group that takes part; of a collective_permute the
        pair that is furthest from each other.
      op_names: the names that XLA keeps of the ops that it was made of.
      num_tensors: the number of tensors, of which XLA may have merged several.
    """

    kind: str
    received: float
    devices: tuple[int, ...]
    op_names: tuple[str, ...]
    num_tensors: int


def kind_of(instruction: HloInstruction) -> str:
    """Returns the opcode of the collective that an instruction starts, ends, or is, without
    "-start" and "-done"; "" if it is no collective.
    """
    kind = instruction.opcode.removesuffix("-start").removesuffix("-done")
    return kind if kind in KINDS else ""


def starts(instruction: HloInstruction, program: HloProgram) -> bool:
    """Returns whether an instruction starts an asynchronous collective."""
    if instruction.name.startswith(_TPU_START):
        return instruction.opcode == "fusion"
    if instruction.opcode == "async-start":
        return any(map(kind_of, program.all_called(instruction)))
    return instruction.opcode.endswith("-start") and bool(kind_of(instruction))


def start_of(done: HloInstruction, computation: HloComputation) -> str:
    """Returns the name of the instruction that starts what `done` waits for; "" if `done` waits
    for nothing, or for what another computation starts.
    """
    if done.opcode == "fusion" and done.name.startswith(_TPU_DONE):
        start = done.name.replace(_TPU_DONE, _TPU_START)
        return start if start in computation.by_name else ""
    if not done.opcode.endswith("-done") or not done.operands:
        return ""
    start = done.operands[0]
    while start in computation.by_name:
        instruction = computation.by_name[start]
        if instruction.opcode != "async-update":
            return start
        start = instruction.operands[0]
    return ""


def is_synchronous(instruction: HloInstruction) -> bool:
    """Returns whether an instruction is a collective that computes nothing else meanwhile."""
    if instruction.opcode == "fusion":
        return instruction.name.startswith(_TPU_DONE)
    return instruction.opcode in KINDS


def transfers(
    start: HloInstruction,
    done: HloInstruction,
    computation: HloComputation,
    program: HloProgram,
) -> list[Transfer]:
    """Returns what a collective sends; several transfers if XLA runs them together.

    Args:
      start: its first instruction.
      done: its last one, which has the result; `start` of a synchronous collective.
      computation: the computation that they are in.
      program: the program.

    Raises:
      PlanError: the devices of a collective, or the collective of a chain, are not written as
        this reader knows it.
    """
    if kind_of(start):
        sent = [(start, done.result_bytes)]
    else:
        # The collectives are in the computation of the fusion or of the async-start.
        fusion = start if start.opcode == "async-start" else done
        inner = program.all_called(fusion)
        sent = [(x, x.result_bytes) for x in inner if x.opcode in KINDS]
    if not sent:
        raise PlanError(
            f"the last fusion {done.name!r} of an asynchronous collective has no collective: "
            "this version of XLA writes programs in another way."
        )
    result = []
    for collective, result_bytes in sent:
        kind = kind_of(collective)
        devices = _devices(collective, program)
        received = _bytes_received(kind, result_bytes, len(devices))
        names: tuple[str, ...] = (collective.op_name,)
        if not collective.op_name:
            names = _names_of_users(done, computation, program)
        result.append(
            Transfer(
                kind.replace("-", "_"),
                received,
                devices,
                names,
                num_tensors=len(collective.operands),
            )
        )
    return result


def _names_of_users(
    done: HloInstruction, computation: HloComputation, program: HloProgram
) -> tuple[str, ...]:
    """Returns the names of collectives that XLA merged into one without a name: those of the
    elements and slices that are taken of its result.

    Args:
      done: the last instruction of the collective.
      computation: the computation that it is in.
      program: the program.
    """
    names: dict[str, None] = {}
    users = [done]
    for _ in range(_NAMED_USERS):
        users = [x for user in users for x in computation.users.get(user.name, [])]
        users = [user for user in users if not kind_of(user)]
        for user in users:
            for instruction in (user, *program.all_called(user)):
                if _COLLECTIVE_NAME.search(instruction.op_name):
                    names[instruction.op_name] = None
    return tuple(names)


def _bytes_received(kind: str, result_bytes: float, group_size: int) -> float:
    """Returns the bytes that a device receives in a collective, by a ring algorithm.

    Args:
      kind: the kind, such as "all-reduce".
      result_bytes: the bytes of the result on one device.
      group_size: the number of devices that take part.
    """
    remote_fraction = (group_size - 1) / group_size
    if kind == "all-reduce":  # a reduce-scatter and an all-gather
        return 2 * remote_fraction * result_bytes
    if kind == "reduce-scatter":  # the result is one shard
        return (group_size - 1) * result_bytes
    if kind == "collective-permute":
        return result_bytes
    return remote_fraction * result_bytes


def _devices(collective: HloInstruction, program: HloProgram) -> tuple[int, ...]:
    """Returns the devices of the first group of a collective.

    Raises:
      PlanError: they are not written in a known form.
    """
    attributes = collective.attributes
    pairs = _PAIRS.search(attributes)
    if pairs is not None:
        return _furthest_pair(pairs[1])
    iota = _IOTA_GROUPS.search(attributes)
    if iota is not None:
        groups = _iota(iota[3], iota[4]).reshape(int(iota[1]), int(iota[2]))
        return tuple(groups[0].tolist())
    mesh = _MESH_GROUPS.search(attributes)
    if mesh is not None:
        devices = _devices_of_axes(mesh)
        if devices:
            return devices
    group = _GROUP.search(attributes)
    if group is not None:
        return tuple(int(device) for device in group[1].split(","))
    if "replica_groups={}" in attributes:
        return tuple(range(program.partitions))
    raise PlanError(
        f"the devices of the collective {collective.name!r} are not written as expected: "
        "this version of XLA writes programs in another way.\n  "
        f"{attributes[:200]}"
    )


def _furthest_pair(text: str) -> tuple[int, ...]:
    """Returns the devices of the pair that is furthest from each other.

    Args:
      text: the pairs, such as "0,1},{1,2},{2,0".
    """
    pairs = []
    for pair in text.split("},{"):
        source, target = pair.split(",")
        pairs.append((int(source), int(target)))

    def distance(pair: tuple[int, int]) -> int:
        return abs(pair[0] - pair[1])

    return max(pairs, key=distance)


def _iota(sizes: str, permutation: str | None) -> Any:
    """Returns the devices 0, 1, 2... as an array of sizes such as "2,4", transposed by a
    permutation such as "1,0".
    """
    shape = [int(size) for size in sizes.split(",")]
    devices = np.arange(np.prod(shape)).reshape(shape)
    if permutation:
        devices = devices.transpose([int(axis) for axis in permutation.split(",")])
    return devices


def _devices_of_axes(mesh: re.Match[str]) -> tuple[int, ...]:
    """Returns the devices of the first group of a match of `_MESH_GROUPS`; () if an axis is
    unknown.
    """
    axes, ids_sizes, ids_permutation, grouped = mesh.groups()
    sizes = {axis: int(size) for axis, size in _MESH_AXIS.findall(axes)}
    shape = list(sizes.values())
    devices = np.arange(np.prod(shape))
    if ids_sizes:
        devices = _iota(ids_sizes, ids_permutation)
    # The positions of the group along each axis; one along those that are not grouped.
    positions = {axis: np.array([0]) for axis in sizes}
    for axis, before, size in _GROUPED_AXIS.findall(grouped):
        if axis not in sizes:
            return ()
        # b:(1)2 are two positions along b; the rest of b runs faster than they do.
        grouped_size = int(size or sizes[axis])
        stride = sizes[axis] // (int(before or 1) * grouped_size)
        steps = stride * np.arange(grouped_size)
        positions[axis] = (positions[axis][:, None] + steps).reshape(-1)
    group = devices.reshape(shape)[np.ix_(*positions.values())]
    return tuple(group.reshape(-1).tolist())
