"""What of a compiled program's communication is exposed: modelled, from the order in which XLA
scheduled its instructions.

    schedule = schedule_of_hlo(compiled.as_text(), as_hardware("h100"))
    schedule.seconds, schedule.exposed_seconds
    for collective in schedule.collectives:
        collective.kind, collective.origin, collective.exposed_bytes, collective.exposed_seconds

Two queues run at the same time: kernels in the order of the program, and collectives in the order
of their starts. A kernel that ends a collective waits for it, and what it waits is exposed. Copies
of TPUs between memories are a third queue, which delays kernels, but no collective.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from meshtf.hardware import Hardware
from meshtf.runtime.spmd.compiled.hlo_collectives import (
    Transfer,
    is_synchronous,
    start_of,
    starts,
    transfers,
)
from meshtf.runtime.spmd.compiled.hlo_costs import HloCosts
from meshtf.runtime.spmd.compiled.hlo_origins import origin
from meshtf.runtime.spmd.compiled.hlo_text import (
    HloComputation,
    HloInstruction,
    HloProgram,
    parse_hlo,
)


class HloCollective(NamedTuple):
    """A collective of a compiled program. Bytes and seconds are those of one run.

    Attributes:
      kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or
        "collective_permute".
      origin: the module path that it comes from, such as "gradients/decoder/block".
      received: the bytes that a device receives, by a ring algorithm.
      times: the number of runs in a step: the iterations of all enclosing loops.
      overlapped: whether a matrix product runs between its start and its end.
      seconds: the modelled time from its start on the links to its end.
      exposed_seconds: the modelled time in which kernels wait for it.
    """

    kind: str
    origin: str
    received: float
    times: int
    overlapped: bool
    seconds: float
    exposed_seconds: float

    @property
    def total_bytes(self) -> float:
        """The bytes that a device receives in a step."""
        return self.received * self.times

    @property
    def exposed_bytes(self) -> float:
        """Those that it receives while no matrix product runs."""
        return 0.0 if self.overlapped else self.total_bytes


@dataclasses.dataclass(frozen=True)
class HloSchedule:
    """A modelled step of a compiled program on one device.

    Attributes:
      collectives: the collectives; one in a loop is listed once.
      seconds: the time of the step.
    """

    collectives: tuple[HloCollective, ...]
    seconds: float

    @property
    def communication_seconds(self) -> float:
        """The time of all collectives, one after the other."""
        return sum(x.seconds * x.times for x in self.collectives)

    @property
    def exposed_seconds(self) -> float:
        """The part of it in which kernels wait."""
        return sum(x.exposed_seconds * x.times for x in self.collectives)


def schedule_of_hlo(text: str, hardware: Hardware) -> HloSchedule:
    """Returns the modelled step of a scheduled program.

    Args:
      text: the program as text.
      hardware: the profile of the devices.

    Raises:
      PlanError: the devices of a collective, or the collective of a chain, are not written as
        this reader knows it.
    """
    program = parse_hlo(text)
    simulation = _Simulation(program, HloCosts(program, hardware))
    queues = simulation.run(program.entry, times=1)
    return HloSchedule(tuple(simulation.collectives), queues.compute)


class _Started(NamedTuple):
    """A collective or a copy that is on its way.

    Attributes:
      end: when it has ended.
      products: the matrix products that ran before its start.
      sent: what it sends, with the seconds of each; [] for a copy.
    """

    end: float
    products: int
    sent: list[tuple[Transfer, float]]


@dataclasses.dataclass
class _Queues:
    """When each queue has run what is in it so far, in seconds after the first instruction.

    Attributes:
      compute: the kernels.
      communication: the collectives.
      copies: the asynchronous copies.
      products: the number of matrix products that have run.
      started: what no instruction has waited for yet, by the name of its start.
    """

    compute: float = 0.0
    communication: float = 0.0
    copies: float = 0.0
    products: int = 0
    started: dict[str, _Started] = dataclasses.field(default_factory=dict)


class _Simulation:
    """Runs computations on the queues, and collects their collectives.

    Args:
      program: the program.
      costs: the seconds of its instructions.

    Attributes:
      collectives: those of the computations that ran.
    """

    def __init__(self, program: HloProgram, costs: HloCosts) -> None:
        self._program = program
        self._costs = costs
        self.collectives: list[HloCollective] = []

    def run(self, computation: HloComputation, times: int) -> _Queues:
        """Returns the queues at the end of a computation that begins with idle ones.

        Args:
          computation: the computation.
          times: the number of its runs in a step.
        """
        queues = _Queues()
        # The bytes of a collective are known by the result of the instruction that ends it.
        ends = {start_of(x, computation): x for x in computation.instructions}
        for instruction in computation.instructions:
            end = ends.get(instruction.name)
            if instruction.opcode in ("while", "call", "conditional"):
                self._run_called(instruction, queues, times)
            elif end is not None and starts(instruction, self._program):
                sent = self._sent(instruction, end, computation)
                self._start(instruction.name, sent, queues)
            elif end is not None:
                self._start_copy(instruction, computation, queues)
            elif start_of(instruction, computation) in queues.started:
                self._wait(start_of(instruction, computation), queues, times)
            elif is_synchronous(instruction):
                sent = self._sent(instruction, instruction, computation)
                self._start(instruction.name, sent, queues)
                self._wait(instruction.name, queues, times)
            else:
                queues.compute += self._costs.seconds(instruction, computation)
                queues.products += self._costs.has_product(instruction)
        return queues

    def _run_called(
        self, instruction: HloInstruction, queues: _Queues, times: int
    ) -> None:
        """Runs the computations of a loop, a call or a conditional, of which all branches
        count. Each iteration of a loop begins with idle queues.
        """
        runs = 1
        if instruction.opcode == "while":
            runs = self._program.trip_count(instruction)
        for computation in self._program.called(instruction):
            inner = self.run(computation, times * runs)
            queues.compute += runs * inner.compute
            queues.products += inner.products

    def _sent(
        self, start: HloInstruction, done: HloInstruction, computation: HloComputation
    ) -> list[tuple[Transfer, float]]:
        """Returns what a collective sends, and the seconds of each.

        Args:
          start: its first instruction.
          done: its last one.
          computation: the computation that they are in.
        """
        return [
            (transfer, self._costs.transfer_seconds(transfer))
            for transfer in transfers(start, done, computation, self._program)
        ]

    def _start(
        self, name: str, sent: list[tuple[Transfer, float]], queues: _Queues
    ) -> None:
        """Puts a collective into its queue, behind what kernels it may need."""
        begin = max(queues.compute, queues.communication)
        end = begin + sum(seconds for _, seconds in sent)
        queues.communication = end
        queues.started[name] = _Started(end, queues.products, sent)

    def _start_copy(
        self, copy: HloInstruction, computation: HloComputation, queues: _Queues
    ) -> None:
        """Puts an asynchronous copy into its queue."""
        begin = max(queues.compute, queues.copies)
        queues.copies = begin + self._costs.seconds(copy, computation)
        queues.started[copy.name] = _Started(queues.copies, queues.products, [])

    def _wait(self, name: str, queues: _Queues, times: int) -> None:
        """Lets kernels wait for a collective or a copy, and lists the collective.

        Args:
          name: the name of its start.
          queues: the queues.
          times: the number of runs of the computation in a step.
        """
        started = queues.started.pop(name)
        waited = max(started.end - queues.compute, 0.0)
        queues.compute += waited
        total = sum(seconds for _, seconds in started.sent)
        for transfer, seconds in started.sent:
            share = seconds / total if total else 0.0
            self.collectives.append(
                HloCollective(
                    kind=transfer.kind,
                    origin=origin(transfer.op_names, transfer.num_tensors),
                    received=transfer.received,
                    times=times,
                    overlapped=queues.products > started.products,
                    seconds=seconds,
                    exposed_seconds=waited * share,
                )
            )
