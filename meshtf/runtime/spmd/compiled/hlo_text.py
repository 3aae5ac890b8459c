"""A compiled program, parsed from its HLO text, which lists the instructions of a computation in
the order in which XLA scheduled them.

    program = parse_hlo(compiled.as_text())
    for instruction in program.entry.instructions:
        instruction.opcode, instruction.operands, instruction.result_bytes

An instruction looks like this: result, type of the result, opcode, operands, attributes.

    %y = f32[4,8]{1,0} all-gather-start(%x), replica_groups={{0,1},{2,3}}, dimensions={0}
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_COMPUTATION = re.compile(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%([\w.-]+) = (.*?) ([a-z][\w-]*)\((.*)")
_NUM_PARTITIONS = re.compile(r"\bnum_partitions=(\d+)")
_OPERAND = re.compile(r"%([\w.-]+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
# bf16[4,8]{1,0:T(8,128)(2,1)S(1)}: sizes, the order of dimensions, tiles, a memory space.
_ARRAY = re.compile(
    r"\b(pred|bf16|[a-z]\d+(?:e\dm\d\w*)?)\[([\d,]*)\](?:\{([^{}]*)\})?"
)
_CALLED = re.compile(r"\b(?:to_apply|calls)=%?([\w.-]+)")
_BODY = re.compile(r"\bbody=%?([\w.-]+)")
_CONDITION = re.compile(r"\bcondition=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TWO_BRANCHES = re.compile(r"\b(?:true|false)_computation=%?([\w.-]+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')


@dataclasses.dataclass(frozen=True)
class HloArray:
    """The type of an array.

    Attributes:
      dtype: XLA's name of the type of an element, such as "bf16".
      sizes: the size of each dimension.
      on_chip: whether it is in a memory of a TPU's core, and not in the device's memory.
    """

    dtype: str
    sizes: tuple[int, ...]
    on_chip: bool = False

    @property
    def num_elements(self) -> int:
        """The number of elements."""
        return math.prod(self.sizes)

    @property
    def element_bytes(self) -> float:
        """The bytes of an element, such as 0.5 of "s4"."""
        if self.dtype == "pred":
            return 1.0
        digits = re.match(r"[a-z]+(\d+)", self.dtype)
        assert digits is not None
        return int(digits[1]) / 8

    @property
    def num_bytes(self) -> float:
        """The bytes of all elements."""
        return self.num_elements * self.element_bytes


@dataclasses.dataclass(frozen=True)
class HloInstruction:
    """One line of a computation.

    Attributes:
      name: the name of the result.
      result_type: the type of the result as text, such as "f32[4,8]{1,0}".
      opcode: the kind of instruction, such as "all-gather-start".
      arguments: the text between the parentheses after the opcode: operands, or the index
        of a parameter, or the value of a constant.
      attributes: the text behind them.
      is_root: whether its result is that of the computation.
    """

    name: str
    result_type: str
    opcode: str
    arguments: str
    attributes: str
    is_root: bool = False

    @functools.cached_property
    def operands(self) -> list[str]:
        """The names of the operands."""
        return _OPERAND.findall(self.arguments)

    @functools.cached_property
    def results(self) -> list[HloArray]:
        """The types of all arrays of the result, which may be a tuple."""
        return [
            HloArray(
                dtype,
                tuple(int(size) for size in sizes.split(",") if size),
                # Tiles, T(...), and a memory space, S(...), are those of TPUs. Space 5 is
                # the memory of the host.
                on_chip="T(" in layout and "S(" in layout and "S(5)" not in layout,
            )
            for dtype, sizes, layout in _ARRAY.findall(self.result_type)
        ]

    @property
    def result_bytes(self) -> float:
        """The bytes of all arrays of the result."""
        return sum(array.num_bytes for array in self.results)

    @property
    def op_name(self) -> str:
        """The name of the op that it was made of; "" if XLA does not say it."""
        match = _OP_NAME.search(self.attributes)
        return match[1] if match is not None else ""

    @property
    def trip_count(self) -> int | None:
        """The iterations of a loop, as XLA writes them beside it; None: it does not."""
        match = _TRIP_COUNT.search(self.attributes)
        return int(match[1]) if match is not None else None

    def called(self) -> list[str]:
        """Returns the names of the computations that it runs: the body of a loop, all branches
        of a conditional, or that of a fusion, a call or an asynchronous instruction.
        """
        if self.opcode == "while":
            return _BODY.findall(self.attributes)
        if self.opcode == "conditional":
            branches = _BRANCHES.search(self.attributes)
            if branches is not None:
                return _OPERAND.findall(branches[1])
            return _TWO_BRANCHES.findall(self.attributes)
        if self.opcode in ("fusion", "call", "async-start"):
            return _CALLED.findall(self.attributes)
        return []

    def condition(self) -> str:
        """Returns the name of the computation that tests whether a loop goes on; "": none."""
        match = _CONDITION.search(self.attributes)
        return match[1] if match is not None else ""


@dataclasses.dataclass(frozen=True)
class HloComputation:
    """A list of instructions, in the order in which they run.

    Attributes:
      instructions: the instructions.
    """

    instructions: list[HloInstruction] = dataclasses.field(default_factory=list)

    @functools.cached_property
    def by_name(self) -> Mapping[str, HloInstruction]:
        """The instructions by the names of their results."""
        return {instruction.name: instruction for instruction in self.instructions}

    @functools.cached_property
    def users(self) -> Mapping[str, list[HloInstruction]]:
        """The instructions that read a result, by its name."""
        users: dict[str, list[HloInstruction]] = {}
        for instruction in self.instructions:
            for operand in dict.fromkeys(instruction.operands):
                users.setdefault(operand, []).append(instruction)
        return users

    @property
    def root(self) -> HloInstruction | None:
        """The instruction whose result is that of the computation."""
        roots = (x for x in self.instructions if x.is_root)
        return next(roots, None)

    def operands(self, instruction: HloInstruction) -> list[HloInstruction]:
        """Returns the instructions that make the operands of an instruction."""
        names = instruction.operands
        return [self.by_name[name] for name in names if name in self.by_name]


@dataclasses.dataclass(frozen=True)
class HloProgram:
    """A parsed program.

    Attributes:
      computations: each computation, by its name.
      entry: the computation that the program starts with.
      partitions: the number of devices.
    """

    computations: Mapping[str, HloComputation]
    entry: HloComputation
    partitions: int

    def called(self, instruction: HloInstruction) -> list[HloComputation]:
        """Returns the computations that an instruction runs."""
        names = instruction.called()
        return [self.computations[name] for name in names if name in self.computations]

    def all_called(self, instruction: HloInstruction) -> Iterator[HloInstruction]:
        """Yields the instructions that an instruction runs, and those that they run."""
        for computation in self.called(instruction):
            for inner in computation.instructions:
                yield inner
                yield from self.all_called(inner)

    def trip_count(self, loop: HloInstruction) -> int:
        """Returns the number of iterations of a loop; 1 if it is unknown.

        XLA writes it beside the loop, but not for TPUs. There the condition compares the index
        of the iteration, which starts at 0, with it.
        """
        if loop.trip_count is not None:
            return loop.trip_count
        condition = self.computations.get(loop.condition(), HloComputation())
        tests = condition.instructions
        constants = [x.arguments for x in tests if x.opcode == "constant"]
        is_less = [
            x for x in tests if x.opcode == "compare" and "direction=LT" in x.attributes
        ]
        if len(constants) == len(is_less) == 1 and constants[0].isdecimal():
            return int(constants[0])
        return 1


def parse_hlo(text: str) -> HloProgram:
    """Returns the program that HLO text describes."""
    computations: dict[str, HloComputation] = {}
    entry = computation = HloComputation()
    for line in text.splitlines():
        start = _COMPUTATION.match(line)
        if start is not None:
            computation = HloComputation()
            computations[start[1]] = computation
            if line.startswith("ENTRY"):
                entry = computation
            continue
        match = _INSTRUCTION.match(line)
        if match is not None:
            computation.instructions.append(_instruction(match))
    partitions = _NUM_PARTITIONS.search(text)
    return HloProgram(
        computations, entry, partitions=int(partitions[1]) if partitions else 1
    )


def _instruction(match: re.Match[str]) -> HloInstruction:
    """Returns the instruction of a line that `_INSTRUCTION` matches."""
    is_root, name, result_type, opcode, text = match.groups()
    depth = 1
    end = len(text)
    for parenthesis in re.finditer(r"[()]", text):
        depth += 1 if parenthesis[0] == "(" else -1
        if depth == 0:
            end = parenthesis.start()
            break
    return HloInstruction(
        name,
        result_type,
        opcode,
        arguments=text[:end],
        attributes=text[end + 1 :],
        is_root=is_root is not None,
    )
