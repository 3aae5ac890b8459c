"""What is known of a program before it runs: plain data, to be printed, drawn and saved.

All counts are for one device (one position of the mesh) and one call: FLOPs in
floating-point operations, sizes in bytes. Stages of a pipeline differ: FLOPs and received
bytes are the mean over the stages, memory is that of the stage with the highest peak, and
`stages` lists each. The state of a tensor along a mesh axis is a string: "replicated", the
name of the sharded dimension, "sum", "max" or "min" for a partial result that is not yet
reduced, or "stage 2" for a tensor that lies on one stage.

    facts.memory.parameters, facts.bytes_moved(kind="all_reduce", axis="data")
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Literal

from meshtf.names.arguments import as_choice, as_text

Phase = Literal["forward", "backward", "update"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "update")
FREE = ("slice", "drop")  # kinds of reshards that communicate nothing


_INDEX = re.compile(r"_\d+(?=/|$)")  # of a block, in a module path


def without_indices(path: str) -> str:
    """Returns a module path with "*" for the indices of blocks.

    >>> without_indices("stack/block_12/norm_1")
    'stack/block_*/norm_*'
    """
    return _INDEX.sub("_*", path)


@dataclasses.dataclass(frozen=True)
class PlacedTensor:
    """A tensor, and the shard of it that one device holds."""

    shape: tuple[tuple[str, int], ...]  # global: (("batch", 8), ("d_model", 16))
    dtype: str
    states: tuple[str, ...]  # one for each axis of the mesh
    local: tuple[int, ...]  # sizes of one shard
    bytes: float  # of one shard


@dataclasses.dataclass(frozen=True)
class Collective:
    """One reshard of a tensor, for one op."""

    # "all_reduce", ...; "window": elements of neighbours, "gather_statistics": those that
    # an op exchanges while it runs
    kind: str
    axis: str  # "data"; "data+model" for statistics gathered along two axes
    tensor: PlacedTensor  # before
    after: PlacedTensor
    bytes: float  # received by one device, each time; 0 for a slice
    phase: Phase
    times: int = 1  # the iterations of all enclosing loops
    # The module whose partial sum it reduces, else the module that needs it; "_*" stands
    # for indices.
    path: str = ""

    @property
    def total(self) -> float:
        """Bytes received by one device in all iterations."""
        return self.bytes * self.times


@dataclasses.dataclass(frozen=True)
class Computation:
    """One op of the program."""

    index: int
    title: str  # "einsum"
    function: str  # the function that the user called: "einsum"; "add" for "+"
    file: str  # the user's line
    line: int
    phase: Phase
    outputs: tuple[PlacedTensor, ...]
    collectives: tuple[Collective, ...]  # of its inputs, before it runs
    flops: float  # each time
    repeated: int  # how many devices compute the same; 1: no redundant FLOPs
    times: int = 1  # the iterations of all enclosing loops
    path: str = ""  # the enclosing modules: "stack/block_3/feed_forward"

    @property
    def total(self) -> float:
        """Floating-point operations in all iterations."""
        return self.flops * self.times


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A variable."""

    name: str
    tensor: PlacedTensor
    role: Literal["parameter", "optimizer state", "other"]


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    parameters: float  # trainable variables
    optimizer_state: float  # slots of optimizers
    other_variables: float
    arguments: float  # inputs of the call
    gradients: float  # the sum over all parameters, with the placements of the updates
    activations: float  # peak of all computed values except gradients
    peak: float  # peak of everything, variables included


LiveKind = Literal[
    "parameter",
    "optimizer state",
    "other variable",
    "argument",
    "gradient",
    "activation",
    "temporary",
]


@dataclasses.dataclass(frozen=True)
class LiveTensors:
    """Equal tensors of one device that are live at the peak of memory."""

    # "activation": kept from the forward for the backward pass. "gradient": of a
    # parameter. "temporary": any other computed tensor, or a buffer of one op.
    kind: LiveKind
    title: str  # the op that computes them, "all_gather data", or "variable"
    path: str  # the module, or the name of a variable; "_*" stands for indices
    tensor: PlacedTensor
    function: str  # the user's line, which calls this function
    file: str
    line: int
    count: int = 1

    @property
    def total(self) -> float:
        """The bytes of all of them on one device."""
        return self.tensor.bytes * self.count


@dataclasses.dataclass(frozen=True)
class Stage:
    """FLOPs and bytes of one device at one pipeline stage."""

    flops: float
    parameters: float
    activations: float
    peak: float


@dataclasses.dataclass(frozen=True)
class Facts:
    """What a program computes, communicates and stores on a mesh."""

    name: str  # of the function
    axes: tuple[tuple[str, int], ...]  # of the mesh: (("data", 4), ("model", 2))
    layout: str
    variable_layout: str
    optimizer_layout: str
    ops: tuple[Computation, ...]
    results: tuple[Collective, ...]  # reshards of the results
    variables: tuple[StoredTensor, ...]
    memory: Memory
    notes: tuple[str, ...] = ()  # legal, but probably not intended
    error: str | None = None  # why the program was refused after the last op
    stages: tuple[Stage, ...] = ()  # of a pipeline
    live: tuple[LiveTensors, ...] = ()  # at the peak of memory; the largest first
    device_memory: float | None = None  # bytes of one device, where they are known

    @property
    def fits(self) -> bool | None:
        """Whether the peak of memory fits on a device; None: its memory is not known."""
        if self.device_memory is None:
            return None
        return self.memory.peak <= self.device_memory

    @property
    def positions(self) -> int:
        """The size of the mesh."""
        return math.prod(size for _, size in self.axes)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All communication of one call, in order; without reshards that are free."""
        of_ops = [collective for op in self.ops for collective in op.collectives]
        collectives = [*of_ops, *self.results]
        return tuple(
            collective for collective in collectives if collective.kind not in FREE
        )

    def bytes_moved(
        self,
        kind: str | None = None,
        axis: str | None = None,
        phase: Phase | None = None,
    ) -> float:
        """Returns the bytes received per device, of all collectives or of those with this
        kind, axis and phase.
        """
        for name, text in (("kind", kind), ("axis", axis)):
            if text is not None:
                as_text(name, text)
        _check_phase(phase)
        return sum(
            collective.total
            for collective in self.collectives
            if kind in (None, collective.kind)
            and axis in (None, collective.axis)
            and phase in (None, collective.phase)
        )

    def flops(self, phase: Phase | None = None) -> float:
        """Returns the floating-point operations of one device."""
        _check_phase(phase)
        return sum(op.total for op in self.ops if phase in (None, op.phase))

    def repeated_flops(self, phase: Phase | None = None) -> float:
        """Returns the redundant FLOPs of one device: those of ops that are identical on
        n devices, times (n - 1) / n.
        """
        _check_phase(phase)
        return sum(
            op.total * (1 - 1 / op.repeated)
            for op in self.ops
            if phase in (None, op.phase)
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as plain data, as they are saved."""
        return dataclasses.asdict(self)


def _check_phase(phase: object) -> None:
    if phase is not None:
        as_choice("phase", phase, PHASES)
