"""The collectives of a compiled program, parsed from its HLO text, which lists instructions in
the order in which XLA scheduled them.

    for collective in collectives_of_hlo(compiled.as_text()):
        collective.kind, collective.received, collective.times, collective.overlapped

Kinds have the names of the planner: "all_reduce" and so on. An instruction looks like this:

    %y = f32[4,8]{1,0} all-gather-start(%x), replica_groups={{0,1},{2,3}}, dimensions={0}

On TPUs an asynchronous collective is a chain of fusions, the first of which is named
`async-collective-start.3` and the last one `async-collective-done.3`: fusions between them
compute something else beside it. Each of them contains the collective.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from meshtf.errors import PlanError

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)")
_ARRAY = re.compile(r"\b(pred|bf16|[a-z]\d+(?:e\dm\d\w*)?)\[([\d,]*)\]")
_BODY = re.compile(r"\bbody=%?([\w.-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
_CALLED = re.compile(r"\b(?:to_apply|calls)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OPERAND = re.compile(r"%([\w.-]+)")
# Groups are a list, {{0,1},{2,3}}; the shape of an iota: [2,2]<=[4] has groups of 2; or axes of
# a mesh: mesh['a'=2,'b'=4] {'b'} has groups of 4, and {'b':(1)2} those of a part of an axis.
_GROUP = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_GROUPS_BY_SHAPE = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
_GROUPS_BY_MESH = re.compile(r"replica_groups=@?mesh\[([^\]]*)\][^{]*\{([^}]*)\}")
_MESH_AXIS = re.compile(r"'?([\w.-]+)'?=(\d+)")
_GROUPED_AXIS = re.compile(r"'?([\w.-]+)'?(?::\(\d+\)(\d+))?(?:,\s*|$)")
_NUM_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
# Instructions that take long enough to hide a collective. Matmuls are also in fusions, and in
# custom calls of libraries, which these words recognize.
_LONG = ("dot", "convolution", "while")
_TPU_START = "async-collective-start"
_TPU_DONE = "async-collective-done"
_LIBRARY = re.compile(r"gemm|matmul|conv|cublas|cudnn|triton")


class HloCollective(NamedTuple):
    """A collective of a compiled program.

    Attributes:
      kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or
        "collective_permute".
      received: the bytes that a device receives in one run of it, by a ring algorithm.
      times: the number of runs in a step: the iterations of all enclosing loops.
      overlapped: whether a matmul or a loop runs between its start and its end.
    """

    kind: str
    received: float
    times: int
    overlapped: bool


class _Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
      name: the name of the result.
      result_type: the type of the result, such as "f32[4,8]{1,0}".
      opcode: the kind of instruction, such as "all-gather-start".
      operands: the text after the opcode: operands and attributes.
    """

    name: str
    result_type: str
    opcode: str
    operands: str


def collectives_of_hlo(text: str) -> list[HloCollective]:
    """Returns all collectives of a scheduled program. A collective in a loop is listed once;
    `times` is the number of its runs.

    Raises:
      PlanError: the devices of a collective, or the collective of a chain, are not written as
        this reader knows it.
    """
    computations, entry = _computations(text)
    partitions = _NUM_PARTITIONS.search(text)
    program = _Program(computations, int(partitions[1]) if partitions else 1)
    collectives: list[HloCollective] = []
    _append_collectives(entry, times=1, program=program, collectives=collectives)
    return collectives


class _Program(NamedTuple):
    """A parsed program.

    Attributes:
      computations: the instructions of each computation.
      partitions: the number of devices.
    """

    computations: Mapping[str, Sequence[_Instruction]]
    partitions: int


def _computations(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Returns ({name of a computation: its instructions}, the name of the entry computation,
    which the program starts with).
    """
    computations: dict[str, list[_Instruction]] = {}
    entry = ""
    instructions: list[_Instruction] = []
    for line in text.splitlines():
        start = _COMPUTATION.match(line)
        if start is not None:
            instructions = []
            computations[start[1]] = instructions
            if line.startswith("ENTRY"):
                entry = start[1]
            continue
        match = _INSTRUCTION.match(line)
        if match is not None:
            instructions.append(_Instruction(*match.groups()))
    return computations, entry


def _append_collectives(
    name: str,
    times: int,
    program: _Program,
    collectives: list[HloCollective],
) -> None:
    """Appends the collectives of a computation, and of all computations that it calls.

    Args:
      name: the name of the computation.
      times: the number of its runs in a step.
      program: the program.
      collectives: the list that is appended to.
    """
    computations = program.computations
    instructions = computations.get(name, ())
    indices = {instruction.name: i for i, instruction in enumerate(instructions)}
    for index, instruction in enumerate(instructions):
        if instruction.name.startswith(_TPU_DONE):
            start_name = instruction.name.replace(_TPU_DONE, _TPU_START)
            between = instructions[indices.get(start_name, index) + 1 : index]
            collectives += _fused_collectives(instruction, between, times, program)
            continue
        kind = instruction.opcode.removesuffix("-done")
        if kind in _KINDS:
            # An asynchronous collective is two instructions: all-gather-start, and
            # all-gather-done, whose operand is the start.
            start = index
            if kind != instruction.opcode:
                operand = _OPERAND.search(instruction.operands)
                start = indices[operand[1]] if operand is not None else index
            between = instructions[start + 1 : index]
            collectives.append(
                HloCollective(
                    kind=kind.replace("-", "_"),
                    received=_bytes_received(
                        kind,
                        result_type=instruction.result_type,
                        group_size=_group_size(instructions[start], program),
                    ),
                    times=times,
                    overlapped=any(_is_long(x, computations) for x in between),
                )
            )
            continue
        for called_name, runs in _called_computations(instruction, computations):
            _append_collectives(called_name, times * runs, program, collectives)


def _fused_collectives(
    done: _Instruction,
    between: Sequence[_Instruction],
    times: int,
    program: _Program,
) -> list[HloCollective]:
    """Returns the asynchronous collectives of TPUs that one chain of fusions runs.

    Args:
      done: the last fusion of the chain.
      between: the instructions after the first fusion, up to the last.
      times: the number of its runs in a step.
      program: the program.
    """
    collectives = [
        x for x in _all_fused(done, program.computations) if x.opcode in _KINDS
    ]
    if not collectives:
        raise PlanError(
            f"the last fusion {done.name!r} of an asynchronous collective has no collective: "
            "this version of XLA writes programs in another way."
        )
    overlapped = any(_is_long(x, program.computations) for x in between)
    return [
        HloCollective(
            kind=collective.opcode.replace("-", "_"),
            received=_bytes_received(
                collective.opcode,
                result_type=collective.result_type,
                group_size=_group_size(collective, program),
            ),
            times=times,
            overlapped=overlapped,
        )
        for collective in collectives
    ]


def _all_fused(
    fusion: _Instruction, computations: Mapping[str, Sequence[_Instruction]]
) -> Iterator[_Instruction]:
    """Yields the instructions of a fusion, and of fusions within it."""
    for instruction in _fused_instructions(fusion, computations):
        yield instruction
        if instruction.opcode == "fusion":
            yield from _all_fused(instruction, computations)


def _fused_instructions(
    fusion: _Instruction, computations: Mapping[str, Sequence[_Instruction]]
) -> Sequence[_Instruction]:
    """Returns the instructions of a fusion."""
    called = _CALLED.search(fusion.operands)
    return computations.get(called[1], ()) if called is not None else ()


def _called_computations(
    instruction: _Instruction, computations: Mapping[str, Sequence[_Instruction]]
) -> list[tuple[str, int]]:
    """Returns (name, number of runs) of each computation that an instruction calls. All
    branches of a conditional count, and a loop of unknown length counts as one iteration.
    """
    if instruction.opcode == "while":
        body = _BODY.search(instruction.operands)
        runs = _trip_count(instruction, computations)
        return [(body[1], runs)] if body is not None else []
    if instruction.opcode == "conditional":
        branches = _BRANCHES.search(instruction.operands)
        if branches is None:
            return []
        return [(branch, 1) for branch in _OPERAND.findall(branches[1])]
    if instruction.opcode in ("call", "async-start"):
        called = _CALLED.search(instruction.operands)
        return [(called[1], 1)] if called is not None else []
    return []


def _trip_count(
    loop: _Instruction, computations: Mapping[str, Sequence[_Instruction]]
) -> int:
    """Returns the number of iterations of a loop; 1 if it is unknown.

    XLA writes it beside the loop, but not for TPUs. There the condition compares the index of
    the iteration, which starts at 0, with it.
    """
    known = _TRIP_COUNT.search(loop.operands)
    if known is not None:
        return int(known[1])
    condition = _CONDITION.search(loop.operands)
    tests = computations.get(condition[1], ()) if condition is not None else ()
    constants = [x.operands for x in tests if x.opcode == "constant"]
    is_less = [
        x for x in tests if x.opcode == "compare" and "direction=LT" in x.operands
    ]
    if len(constants) == len(is_less) == 1:
        count = re.match(r"\d+", constants[0])
        return int(count[0]) if count is not None else 1
    return 1


def _is_long(
    instruction: _Instruction, computations: Mapping[str, Sequence[_Instruction]]
) -> bool:
    """Returns whether an instruction is a loop or contains a matmul or a convolution."""
    if instruction.opcode == "custom-call":
        return _LIBRARY.search(instruction.operands) is not None
    if instruction.opcode == "fusion":
        body = _fused_instructions(instruction, computations)
        return any(_is_long(x, computations) for x in body)
    return instruction.opcode in _LONG


def _bytes_received(kind: str, result_type: str, group_size: int) -> float:
    """Returns the bytes that a device receives in a collective, by a ring algorithm.

    Args:
      kind: the kind, such as "all-reduce".
      result_type: the type of the result on one device.
      group_size: the number of devices that take part.
    """
    result_bytes = _bytes(result_type)
    remote_fraction = (group_size - 1) / group_size
    if kind == "all-reduce":  # a reduce-scatter and an all-gather
        return 2 * remote_fraction * result_bytes
    if kind == "reduce-scatter":  # the result is one shard
        return (group_size - 1) * result_bytes
    if kind == "collective-permute":
        return result_bytes
    return remote_fraction * result_bytes


def _group_size(collective: _Instruction, program: _Program) -> int:
    """Returns the number of devices that take part in a collective together.

    Raises:
      PlanError: it is not written in a known form.
    """
    operands = collective.operands
    if collective.opcode.startswith("collective-permute"):
        return 1  # it has pairs, not groups
    by_shape = _GROUPS_BY_SHAPE.search(operands)
    if by_shape is not None:
        return int(by_shape[1])
    by_mesh = _GROUPS_BY_MESH.search(operands)
    if by_mesh is not None:
        sizes = dict(_MESH_AXIS.findall(by_mesh[1]))
        axes = _GROUPED_AXIS.findall(by_mesh[2])
        if all(size or axis in sizes for axis, size in axes):
            return math.prod(int(size or sizes[axis]) for axis, size in axes)
    group = _GROUP.search(operands)
    if group is not None:
        return group[1].count(",") + 1
    if "replica_groups={}" in operands:
        return program.partitions  # all devices
    raise PlanError(
        f"the devices of the collective {collective.name!r} are not written as expected: "
        "this version of XLA writes programs in another way.\n  "
        f"{operands[:200]}"
    )


def _bytes(result_type: str) -> float:
    """Returns the bytes of all arrays in a type, which may be a tuple."""
    total = 0.0
    for dtype, sizes in _ARRAY.findall(result_type):
        num_elements = 1
        for size in filter(None, sizes.split(",")):  # a scalar has no sizes: ""
            num_elements *= int(size)
        total += num_elements * _bits(dtype) / 8
    return total


def _bits(dtype: str) -> int:
    """Returns the bits of an element of a type such as "bf16", "pred" or "f8e4m3fn"."""
    if dtype == "pred":
        return 8
    digits = re.match(r"[a-z]+(\d+)", dtype)
    assert digits is not None
    return int(digits[1])
