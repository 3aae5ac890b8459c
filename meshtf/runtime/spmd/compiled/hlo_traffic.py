"""The bytes that an instruction of a compiled program reads from memory and writes to it.

Of an operand from which only slices are taken, such as the layer of a stack, the slices count,
and of a stack in which a slice is replaced, that slice. What a fusion passes on unchanged, and
what is in the memory of a TPU's core, does not count.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshtf.runtime.spmd.compiled.hlo_collectives import KINDS
from meshtf.runtime.spmd.compiled.hlo_text import (
    HloComputation,
    HloInstruction,
    HloProgram,
)

_SLICES = ("dynamic-slice", "slice", "gather")
# Their first operand is overwritten in place: -> the operand with the new values.
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
# Read in parts where only parts of them are read.
_LOOKED_THROUGH = ("bitcast", "convert", "copy", "reshape", "transpose")
_Callers = tuple[tuple[HloInstruction, HloComputation], ...]
_TPU_CHAIN = (
    "AsyncCollective"  # custom calls that say what a chain of fusions passes on
)


def memory_bytes(
    instruction: HloInstruction, computation: HloComputation, program: HloProgram
) -> float:
    """Returns the bytes that an instruction reads and writes.

    Args:
      instruction: any but loops, conditionals and calls.
      computation: the computation that it is in, which has its operands.
      program: the program.
    """
    if instruction.opcode in ("fusion", "async-start"):
        return sum(map(_Fusion(program).num_bytes, program.called(instruction)))
    operands = computation.operands(instruction)
    if instruction.opcode in _SLICES:
        return 2 * _device_bytes(instruction)
    if instruction.opcode in _UPDATES:
        updates = operands[_UPDATES[instruction.opcode] :]
        return 2 * sum(map(_device_bytes, updates[:1]))
    if instruction.opcode == "copy-start":
        # The result is (destination, source, context).
        arrays = instruction.results[:2]
        return sum(array.num_bytes for array in arrays if not array.on_chip)
    return _device_bytes(instruction) + sum(map(_device_bytes, operands))


def _device_bytes(instruction: HloInstruction) -> float:
    """Returns the bytes of a result that are in the memory of the device."""
    return sum(array.num_bytes for array in instruction.results if not array.on_chip)


class _Fusion:
    """Counts what one kernel reads and writes.

    Args:
      program: the program.
    """

    def __init__(self, program: HloProgram) -> None:
        self._program = program

    def num_bytes(self, computation: HloComputation) -> float:
        """Returns the bytes of a fused computation."""
        parameters = [x for x in computation.instructions if x.opcode == "parameter"]
        read = sum(self._read(parameter, computation) for parameter in parameters)
        root = computation.root
        return read + (self._written(root, computation) if root is not None else 0.0)

    def _read(self, parameter: HloInstruction, computation: HloComputation) -> float:
        """Returns the bytes that are read of a parameter."""
        if not parameter.results or parameter.results[0].on_chip:
            return 0.0
        array = parameter.results[0]
        elements = self._elements_read(parameter, computation, callers=())
        return min(elements, array.num_elements) * array.element_bytes

    def _elements_read(
        self, value: HloInstruction, computation: HloComputation, callers: _Callers
    ) -> float:
        """Returns how many elements of a value are read.

        Args:
          value: the value.
          computation: the computation that it is in.
          callers: the fusions that the computation is within, the outermost first.
        """
        users = computation.users.get(value.name, [])
        elements = sum(
            self._elements_read_by(user, value, computation, callers) for user in users
        )
        if value.is_root and callers:
            *outer, (fusion, calling_computation) = callers
            elements += self._elements_read(fusion, calling_computation, tuple(outer))
        return elements

    def _elements_read_by(
        self,
        user: HloInstruction,
        value: HloInstruction,
        computation: HloComputation,
        callers: _Callers,
    ) -> float:
        """Returns how many elements of a value one instruction reads."""
        is_first = user.operands[0] == value.name
        if user.opcode in _SLICES and is_first:
            return user.results[0].num_elements
        if user.opcode in _UPDATES and user.operands.count(value.name) == is_first:
            return 0.0
        is_passed_on = user.opcode in (*KINDS, "tuple")
        if is_passed_on or _TPU_CHAIN in user.attributes:
            return 0.0
        if user.opcode in _LOOKED_THROUGH and (callers or not user.is_root):
            return self._elements_read(user, computation, callers)
        if user.opcode == "fusion":
            return sum(
                self._elements_read(parameter, inner, (*callers, (user, computation)))
                for parameter, inner in self._parameters(value, user)
            )
        return value.results[0].num_elements

    def _parameters(
        self, value: HloInstruction, fusion: HloInstruction
    ) -> Iterator[tuple[HloInstruction, HloComputation]]:
        """Yields (parameter, its computation) of what a fusion within a fusion reads of a
        value.
        """
        for computation in self._program.called(fusion):
            for x in computation.instructions:
                if x.opcode == "parameter" and x.arguments.isdecimal():
                    if fusion.operands[int(x.arguments)] == value.name:
                        yield x, computation

    def _written(self, result: HloInstruction, computation: HloComputation) -> float:
        """Returns the bytes of a result of a fusion that are written."""
        operands = computation.operands(result)
        if result.opcode == "tuple":
            return sum(self._written(x, computation) for x in operands)
        if result.opcode in _UPDATES:
            updates = operands[_UPDATES[result.opcode] :]
            return sum(map(_device_bytes, updates[:1]))
        if result.opcode == "bitcast" and operands:
            return self._written(operands[0], computation)
        if result.opcode == "fusion":
            return sum(
                self._written(inner.root, inner)
                for inner in self._program.called(result)
                if inner.root is not None
            )
        is_passed_on = result.opcode in (*KINDS, "parameter")
        if is_passed_on or _TPU_CHAIN in result.attributes:
            return 0.0
        return _device_bytes(result)
