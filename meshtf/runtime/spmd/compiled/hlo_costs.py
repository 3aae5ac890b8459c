"""Modelled seconds of the instructions of a compiled program, from a profile of hardware.

    costs = HloCosts(program, as_hardware("h100"))
    costs.seconds(instruction, computation), costs.transfer_seconds(transfer)

A matrix product takes the larger of FLOPs / rate and bytes / memory bandwidth, any other
instruction its bytes / memory bandwidth, and each the time to start it. A collective takes the
bytes that a device receives / the bandwidth of the slowest link it crosses, and latencies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from meshtf.hardware import CollectiveTimes, Hardware, MatmulTimes
from meshtf.runtime.spmd.compiled.hlo_collectives import Transfer
from meshtf.runtime.spmd.compiled.hlo_products import is_product, product_shape
from meshtf.runtime.spmd.compiled.hlo_text import (
    HloComputation,
    HloInstruction,
    HloProgram,
)
from meshtf.runtime.spmd.compiled.hlo_traffic import memory_bytes

# They make no kernel: names for values, and what is known before the program runs.
_FREE = frozenset(
    (
        "add-dependency",
        "after-all",
        "bitcast",
        "constant",
        "domain",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    )
)
# Custom calls of TPUs that only name a buffer.
_NO_KERNEL = re.compile(r'custom_call_target="(AllocateBuffer|ConcatBitcast)"')
_GROUP = "group"  # the only axis of the mesh that a collective's devices are


class HloCosts:
    """Predicts the seconds of instructions.

    Args:
      program: the program that they are in.
      hardware: the profile of the devices.
    """

    def __init__(self, program: HloProgram, hardware: Hardware) -> None:
        self._program = program
        self._hardware = hardware
        self._matmuls = MatmulTimes(hardware)
        efficiency = hardware.memory_efficiency
        self._bandwidth = hardware.memory_bandwidth * efficiency

    def has_product(self, instruction: HloInstruction) -> bool:
        """Returns whether an instruction computes a matrix product or a convolution, alone or
        beside other things.
        """
        return any(map(is_product, self._with_called(instruction)))

    def seconds(
        self, instruction: HloInstruction, computation: HloComputation
    ) -> float:
        """Returns the seconds of one kernel, or of one copy.

        Args:
          instruction: any but loops, conditionals and calls.
          computation: the computation that it is in.
        """
        is_free = instruction.opcode in _FREE
        if is_free or _NO_KERNEL.search(instruction.attributes):
            return 0.0
        num_bytes = memory_bytes(instruction, computation, self._program)
        seconds = max(
            num_bytes / self._bandwidth, self._product_seconds(instruction, computation)
        )
        return seconds + self._hardware.op_seconds

    def transfer_seconds(self, transfer: Transfer) -> float:
        """Returns the seconds of one run of a collective."""
        devices = transfer.devices
        times = CollectiveTimes(
            self._hardware,
            {_GROUP: len(devices)},
            strides={_GROUP: self._stride(transfer)},
        )
        return float(times.seconds(transfer.kind, (_GROUP,), transfer.received))

    def _stride(self, transfer: Transfer) -> int:
        """Returns how many devices are nearer to each other than those of a collective."""
        devices = sorted(transfer.devices)
        if transfer.kind != "collective_permute":
            distances = [b - a for a, b in zip(devices, devices[1:])]
            return min(distances, default=1)
        # The ends of a ring may be far from each other, but still in one host.
        joined = [link.devices or 1 for link in self._hardware.links[:-1]]
        first, last = devices[0], devices[-1]
        crossed = [size for size in joined if first // size != last // size]
        return max(crossed, default=1)

    def _product_seconds(
        self, instruction: HloInstruction, computation: HloComputation
    ) -> float:
        """Returns the seconds of the matrix products of a kernel, without reads and writes."""
        shapes = [product_shape(instruction, computation)]
        shapes += [product_shape(x, inner) for x, inner in self._fused(instruction)]
        return sum(
            float(self._matmuls.seconds(shape, num_bytes=0))
            for shape in shapes
            if shape is not None
        )

    def _fused(
        self, instruction: HloInstruction
    ) -> Iterator[tuple[HloInstruction, HloComputation]]:
        """Yields (instruction, its computation) of all that a fusion computes."""
        for computation in self._program.called(instruction):
            for inner in computation.instructions:
                yield inner, computation
                yield from self._fused(inner)

    def _with_called(self, instruction: HloInstruction) -> Iterator[HloInstruction]:
        """Yields an instruction, and all that it runs."""
        yield instruction
        yield from self._program.all_called(instruction)
