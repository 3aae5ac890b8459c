"""The collectives of a program as XLA scheduled it, read from its text.

    for collective in collectives_of_hlo(compiled.as_text()):
        collective.kind, collective.received, collective.times, collective.overlapped

Kinds are called as in plans: "all_reduce" and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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
_CALLED = re.compile(r"\b(?:to_apply|calls)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_OPERAND = re.compile(r"%([\w.-]+)")
_GROUP = re.compile(r"replica_groups=\{\{([\d,]*)\}")
_GROUPS_BY_SHAPE = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
# Instructions that take long, so that a collective can hide behind them. Matrix products
# are also in fusions, and in calls of the libraries that these names are of.
_LONG = ("dot", "convolution", "while")
_LIBRARY = re.compile(r"gemm|matmul|conv|cublas|cudnn|triton")


class HloCollective(NamedTuple):
    """A collective of a compiled program.

    Attributes:
      kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or
        "collective_permute".
      received: the bytes that a device receives each time, as of a ring.
      times: how often it runs in a step: the iterations of all enclosing loops.
      overlapped: whether a matrix product or a loop runs between its start and its end.
    """

    kind: str
    received: float
    times: int
    overlapped: bool


class _Instruction(NamedTuple):
    """A line of a computation.

    Attributes:
      name: the name of the result.
      result: the type of the result.
      opcode: such as "all-gather-start".
      rest: operands and attributes.
    """

    name: str
    result: str
    opcode: str
    rest: str


def collectives_of_hlo(text: str) -> list[HloCollective]:
    """Returns all collectives of a scheduled program, those of loops once, with how often
    they run.
    """
    computations, entry = _computations(text)
    collectives: list[HloCollective] = []
    _collect(entry, 1, computations, collectives)
    return collectives


def _computations(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    """Returns the instructions of each computation by its name, and the name of the one
    that a step runs.
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


def _collect(
    name: str,
    times: int,
    computations: Mapping[str, Sequence[_Instruction]],
    collectives: list[HloCollective],
) -> None:
    """Adds the collectives of a computation, which runs some times, and of all that it
    calls.
    """
    instructions = computations.get(name, ())
    starts = {x.name: index for index, x in enumerate(instructions)}
    for index, instruction in enumerate(instructions):
        kind = instruction.opcode.removesuffix("-done")
        if kind in _KINDS:
            start = index
            if kind != instruction.opcode:
                operand = _OPERAND.search(instruction.rest)
                start = starts[operand[1]] if operand is not None else index
            between = instructions[start + 1 : index]
            collectives.append(
                HloCollective(
                    kind=kind.replace("-", "_"),
                    received=_received(
                        kind, instruction.result, instructions[start].rest
                    ),
                    times=times,
                    overlapped=any(_is_long(x, computations) for x in between),
                )
            )
        elif instruction.opcode == "while":
            body = _BODY.search(instruction.rest)
            trips = _TRIP_COUNT.search(instruction.rest)
            if body is not None:
                count = int(trips[1]) if trips is not None else 1
                _collect(body[1], times * count, computations, collectives)
        elif instruction.opcode == "conditional":
            branches = _BRANCHES.search(instruction.rest)
            for branch in _OPERAND.findall(branches[1]) if branches is not None else ():
                _collect(branch, times, computations, collectives)
        elif instruction.opcode in ("call", "async-start"):
            called = _CALLED.search(instruction.rest)
            if called is not None:
                _collect(called[1], times, computations, collectives)


def _is_long(
    instruction: _Instruction, computations: Mapping[str, Sequence[_Instruction]]
) -> bool:
    """Returns whether an instruction is a loop or has a matrix product."""
    if instruction.opcode == "custom-call":
        return _LIBRARY.search(instruction.rest) is not None
    if instruction.opcode == "fusion":
        called = _CALLED.search(instruction.rest)
        body = computations.get(called[1], ()) if called is not None else ()
        return any(x.opcode in _LONG for x in body)
    return instruction.opcode in _LONG


def _received(kind: str, result: str, rest: str) -> float:
    """Returns the bytes that a device receives, of a collective with this result."""
    size = _bytes(result)
    group = _group_size(rest)
    share = (group - 1) / group
    if kind == "all-reduce":
        return 2 * share * size
    if kind == "reduce-scatter":
        return (group - 1) * size
    if kind == "collective-permute":
        return size
    return share * size


def _group_size(rest: str) -> int:
    """Returns how many devices take part in a collective together."""
    by_shape = _GROUPS_BY_SHAPE.search(rest)
    if by_shape is not None:
        return int(by_shape[1])
    group = _GROUP.search(rest)
    return group[1].count(",") + 1 if group is not None else 1


def _bytes(result: str) -> float:
    """Returns the bytes of the arrays in a type."""
    total = 0.0
    for dtype, sizes in _ARRAY.findall(result):
        count = 1
        for size in filter(None, sizes.split(",")):
            count *= int(size)
        total += count * _bits(dtype) / 8
    return total


def _bits(dtype: str) -> int:
    """Returns the bits of an element, of a type such as "bf16", "pred" or "f8e4m3fn"."""
    if dtype == "pred":
        return 8
    digits = re.match(r"[a-z]+(\d+)", dtype)
    assert digits is not None
    return int(digits[1])
