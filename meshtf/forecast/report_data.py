"""What is known of a program before it runs: plain data, as it is printed, drawn and
saved.

All counts are for one position of the mesh (one device, where each has its own) and one
call: flops in floating-point operations, sizes in bytes. Stages of a pipeline differ:
what is computed and received is the mean over them, memory is that of the fullest one,
and `stages` has each. A state is a word: "whole", the name of the dimension that is
cut, "sum", "max", "min" for a partial result still to be reduced, or "at 2" for what
lies at one stage.

    facts.memory.parameters, facts.bytes_moved(kind="all_reduce", axis="data")
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from meshtf.names.arguments import as_choice, as_text

Phase = Literal["forward", "backward", "update"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "update")
FREE = ("slice", "drop")  # moves in which nobody receives anything


@dataclasses.dataclass(frozen=True)
class PlacedTensor:
    """A tensor, and what one position holds of it."""

    shape: tuple[tuple[str, int], ...]  # of the whole: (("batch", 8), ("d_model", 16))
    dtype: str
    states: tuple[str, ...]  # one for each axis of the mesh
    local: tuple[int, ...]  # sizes of one slice
    bytes: float  # of one slice


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective, made for one op."""

    kind: (
        str  # "all_reduce", ..., "window" (neighbour exchange), "tell" (share's gather)
    )
    axis: str  # "data"; "data+model" for a tell along two axes
    tensor: PlacedTensor  # as it was before
    after: PlacedTensor
    bytes: float  # received by one position, each time; 0 for a slice
    phase: Phase
    times: int = 1  # how often: the turns of the loops around it

    @property
    def total(self) -> float:
        """Bytes received by one position in all turns."""
        return self.bytes * self.times


@dataclasses.dataclass(frozen=True)
class Computation:
    """One op of the program."""

    number: int
    title: str  # "einsum"
    function: str  # what was called: "einsum", "+" is "add"
    file: str  # the user's line
    line: int
    phase: Phase
    outputs: tuple[PlacedTensor, ...]
    moves: tuple[Collective, ...]  # of its inputs, before it runs
    flops: float  # each time
    repeated: int  # how many positions do the very same work; 1: none
    times: int = 1  # how often: the turns of the loops around it

    @property
    def total(self) -> float:
        """Floating-point operations in all turns."""
        return self.flops * self.times


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A variable."""

    name: str
    tensor: PlacedTensor
    role: Literal["parameter", "optimizer state", "other"]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one position."""

    parameters: float  # trainable variables
    optimizer_state: float  # what updates keep beside them
    other_variables: float
    arguments: float  # inputs of the call
    gradients: float  # of all parameters together, as the updates take them
    activations: (
        float  # the most that is alive at once of all that is computed but these
    )
    peak: float  # the most of everything that is alive at once, variables included


@dataclasses.dataclass(frozen=True)
class Stage:
    """What one position at a stage of a pipeline computes and holds."""

    flops: float
    parameters: float
    activations: float
    peak: float


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a program will do on a mesh, and what it will cost."""

    name: str  # of the function
    axes: tuple[tuple[str, int], ...]  # of the mesh: (("data", 4), ("model", 2))
    layout: str
    variable_layout: str
    optimizer_layout: str
    ops: tuple[Computation, ...]
    results: tuple[Collective, ...]  # what is moved to finish the results
    variables: tuple[StoredTensor, ...]
    memory: Memory
    notes: tuple[str, ...] = ()  # what is legal but worth knowing
    error: str | None = None  # why the plan ends here
    stages: tuple[Stage, ...] = ()  # of a pipeline

    @property
    def positions(self) -> int:
        """The size of the mesh."""
        size = 1
        for _, n in self.axes:
            size *= n
        return size

    @property
    def moves(self) -> tuple[Collective, ...]:
        """All communication of one call, in order; those that are free left out."""
        every = (*(m for op in self.ops for m in op.moves), *self.results)
        return tuple(m for m in every if m.kind not in FREE)

    def bytes_moved(
        self,
        kind: str | None = None,
        axis: str | None = None,
        phase: Phase | None = None,
    ) -> float:
        """Returns the bytes that one position receives, of some moves or of all."""
        for name, text in (("kind", kind), ("axis", axis)):
            if text is not None:
                as_text(name, text)
        _check_phase(phase)
        return sum(
            m.total
            for m in self.moves
            if kind in (None, m.kind)
            and axis in (None, m.axis)
            and phase in (None, m.phase)
        )

    def flops(self, phase: Phase | None = None) -> float:
        """Returns the floating-point operations of one position."""
        _check_phase(phase)
        return sum(op.total for op in self.ops if phase in (None, op.phase))

    def repeated_flops(self, phase: Phase | None = None) -> float:
        """Returns those of them that another position does as well: 3/4 of what four do
        alike.
        """
        _check_phase(phase)
        return sum(
            op.total * (1 - 1 / op.repeated)
            for op in self.ops
            if phase in (None, op.phase)
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as plain data, as it is saved."""
        return dataclasses.asdict(self)


def _check_phase(phase: object) -> None:
    if phase is not None:
        as_choice("phase", phase, PHASES)
