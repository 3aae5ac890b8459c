"""The data of a forecast: dataclasses of numbers and strings, to be printed and saved.

    forecast.memory.parameters
    forecast.bytes_moved(kind="all_reduce", axis="data")

All counts are for one device (one position of the mesh) and one call of the function. FLOPs
count floating-point operations; sizes are in bytes. The stages of a pipeline may differ:
FLOPs and received bytes are the mean over the stages, `memory` describes the stage with the
highest peak, and `stages` has the values of each stage.

The state of a tensor along a mesh axis is "replicated", the name of the sharded dimension, "sum",
"max" or "min" for a partial result, or "stage 2" for a tensor that only this pipeline stage has.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Iterable
from typing import Any, Literal

from meshtf.names import Source
from meshtf.names.arguments import as_choice, as_text
from meshtf.partition.cost import FREE_RESHARDS

Phase = Literal["forward", "backward", "update"]
PHASES: tuple[Phase, ...] = ("forward", "backward", "update")

_BLOCK_INDEX = re.compile(r"_\d+(?=/|$)")  # in a module path: "block_12/norm_1"


@functools.lru_cache(maxsize=10_000)  # a module has many ops
def without_indices(path: str) -> str:
    """Returns a module path with "*" in place of the indices of blocks.

    >>> without_indices("stack/block_12/norm_1")
    'stack/block_*/norm_*'
    """
    return _BLOCK_INDEX.sub("_*", path)


def function_of(source: Source) -> str:
    """Returns what reports call an op by: the function that the user's line calls, or the layer
    of an imported model, the same for all equal layers.
    """
    return source.function if source.file else without_indices(source.function)


@dataclasses.dataclass(frozen=True)
class PlacedTensor:
    """A tensor on a mesh: global shape, state along each axis, and the shard of a device."""

    shape: tuple[tuple[str, int], ...]  # global: (("batch", 8), ("d_model", 16))
    dtype: str
    states: tuple[str, ...]  # the state along each mesh axis: ("batch", "replicated")
    local: tuple[int, ...]  # the sizes of one shard: (2, 16)
    bytes: float  # the bytes of one shard
    # For each axis: of axes that shard one dimension, those of a lower order are more
    # significant. (): they are in the order of the mesh.
    orders: tuple[int, ...] = ()

    def axes_of(self, dim: str, axes: Iterable[str]) -> tuple[str, ...]:
        """Returns the axes that shard a dimension, the major one first.

        Args:
          dim: the name of the dimension.
          axes: the axes of the mesh, in its order.
        """
        orders = self.orders or (0,) * len(self.states)
        sharding = [
            (order, axis)
            for axis, state, order in zip(axes, self.states, orders)
            if state == dim
        ]
        sharding.sort(key=lambda order_and_axis: order_and_axis[0])
        return tuple(axis for _order, axis in sharding)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One reshard of a tensor, for one op."""

    # "all_reduce" and so on; "window": the elements of neighbours that an op such as a
    # convolution reads; "gather_statistics": an all_gather within an op, such as of the
    # maxima of a softmax.
    kind: str
    axis: str  # "data"; "data+model" for statistics gathered along two axes
    tensor: PlacedTensor  # the tensor before the reshard
    after: PlacedTensor  # the tensor after the reshard
    bytes: float  # the bytes that one device receives, each time; 0 for a slice
    phase: Phase
    times: int = 1  # the iterations of all enclosing loops, multiplied
    # The module that computed the partial sum, if the collective reduces one; otherwise
    # the module that needs the result. Indices of blocks are written as "_*".
    path: str = ""
    seconds: float = 0.0  # of one run; 0 without a profile of hardware

    @property
    def total(self) -> float:
        """Bytes received by one device in all iterations."""
        return self.bytes * self.times


@dataclasses.dataclass(frozen=True)
class Computation:
    """One op of the program."""

    index: int
    title: str  # the name of the op: "einsum"
    # The function that the user called: "einsum"; "add" for "+"; a layer of an imported model.
    function: str
    file: str  # the user's file that calls the function; "": a layer
    line: int
    phase: Phase
    outputs: tuple[PlacedTensor, ...]
    collectives: tuple[Collective, ...]  # reshards of the inputs, before the op runs
    flops: float  # the FLOPs of one device, each time
    repeated: int  # how many devices compute the same; 1: no redundant FLOPs
    times: int = 1  # the iterations of all enclosing loops, multiplied
    path: str = ""  # the enclosing modules: "stack/block_3/feed_forward"
    # Of one run, without its collectives; 0 without a profile of hardware. A loop has no
    # time of its own: the ops of its body have.
    seconds: float = 0.0

    @property
    def total(self) -> float:
        """Floating-point operations in all iterations."""
        return self.flops * self.times


VariableRole = Literal["parameter", "optimizer state", "other"]


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A variable."""

    name: str
    tensor: PlacedTensor
    role: VariableRole


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device."""

    parameters: float  # trainable variables
    optimizer_state: float  # variables of optimizers, such as moving averages
    other_variables: float
    arguments: float  # inputs of the call
    gradients: float  # the gradients of all parameters, placed as the updates read them
    activations: float  # the peak of all computed values except gradients
    peak: float  # the peak of all live bytes, variables and arguments included


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

    # "activation": computed in the forward pass, and read in the backward pass.
    # "gradient": the gradient of a parameter. "temporary": any other computed tensor, or
    # a buffer that exists while one op runs.
    kind: LiveKind
    # "einsum", the op that computes the tensors; "all_gather data"; "variable".
    title: str
    path: str  # the module, or the name of a variable; indices are written as "_*"
    tensor: PlacedTensor
    function: str = ""  # that the user called; "": a variable or an argument
    file: str = ""  # the user's file that calls the function
    line: int = 0
    count: int = 1  # how many equal tensors there are

    @property
    def total(self) -> float:
        """The bytes of all these tensors on one device."""
        return self.tensor.bytes * self.count


@dataclasses.dataclass(frozen=True)
class Stage:
    """FLOPs and bytes of one device at one pipeline stage; see `Memory`."""

    flops: float
    parameters: float
    activations: float
    peak: float


# The error of a step's time, as a fraction, if no matmul of similar sizes was measured: a study
# of 784 published steps (`benchmarks.regret --published`) found 13 to 22 % without any fit.
_UNMEASURED_ERROR = 0.3


@dataclasses.dataclass(frozen=True)
class StepTime:
    """The predicted time of a step, in seconds of one device.

    Attributes:
      hardware: the name of the profile.
      source: where its rates of matmuls are from.
      seconds: the time of the step.
      matmuls: the time in which a device computes matmuls.
      other_ops: the time in which it computes all other ops.
      collectives: pairs (axes, time of collectives along them), hidden or not.
      exposed: the time in which a device waits for collectives.
      bubble: the fraction of the step in which stages of a pipeline are idle, waiting for
        each other; 0 without a pipeline.
      matmul_flops: the FLOPs of matmuls of one device.
      peak_share: these, divided by what the device could compute in the step at its peak.
      measured_share: the fraction of these FLOPs in matmuls of which similar ones were
        measured.
      work: pairs (kind, time), the longest first: matmuls, ops by name, updates of
        variables, collectives by kind.
      mfu: as `peak_share`, for the FLOPs that the model needs, as a mean over the devices:
        without what is recomputed, and what other devices compute as well.
    """

    hardware: str
    source: str
    seconds: float
    matmuls: float
    other_ops: float
    collectives: tuple[tuple[str, float], ...]
    exposed: float
    bubble: float
    matmul_flops: float
    peak_share: float
    measured_share: float
    work: tuple[tuple[str, float], ...] = ()
    mfu: float = 0.0

    @property
    def uncertainty(self) -> float:
        """The expected error, as a fraction of the time, where it is known to be large: 0.3
        if no matmul of similar sizes was measured, 0 if all were.
        """
        return _UNMEASURED_ERROR * (1 - self.measured_share)


@dataclasses.dataclass(frozen=True)
class TimelineSpan:
    """What a pipeline stage does from `start` to `end`, in seconds from the start of the step."""

    stage: int  # 0 without a pipeline
    kind: str  # "matmul", "op", "update", "collective" or "loop"
    title: str  # the op, or the kind and axes of the collective
    path: str  # the module
    line: str  # the user's line, as "file:line"
    start: float
    end: float
    runs: int = 1  # of a loop: its iterations


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A scan over a sharded dimension: stages compute microbatches in ticks."""

    dim: str  # the dimension that is scanned: "layers"
    axes: tuple[str, ...]  # the axes that shard it
    stages: int
    repeats: int  # the groups of layers of a stage
    layers: int  # of one group
    microbatches: int
    ticks: int  # of the forward pass; the backward pass has as many
    function: str  # what the user's line calls
    file: str
    line: int

    @property
    def bubble(self) -> float:
        """The fraction of ticks in which a stage computes nothing that counts."""
        return 1 - self.repeats * self.microbatches / self.ticks

    def __str__(self) -> str:
        """Returns a line for each stage: "#", or the number of the repeat, where it is busy."""
        period = -(-self.microbatches // self.stages) * self.stages
        marks = "#" if self.repeats == 1 else "123456789"
        busy = ""
        for mark in itertools.islice(itertools.cycle(marks), self.repeats):
            busy += (mark * self.microbatches).ljust(period, ".")
        row = "." * self.stages + busy + "." * self.stages
        rows = [row[self.stages - i :][: self.ticks] for i in range(self.stages)]
        return "\n".join(f"stage {i:<3} {row}" for i, row in enumerate(rows))


@dataclasses.dataclass(frozen=True)
class ForecastData:
    """What a program computes, communicates and stores on a mesh."""

    name: str  # the name of the function
    axes: tuple[tuple[str, int], ...]  # the mesh: (("data", 4), ("model", 2))
    layout: str  # the rules of the layout: "batch:data;d_ff:model"
    variable_layout: str  # the rules for variables
    optimizer_layout: str  # the rules for the state of optimizers
    ops: tuple[Computation, ...]  # in the order in which they run
    results: tuple[Collective, ...]  # the reshards of the function's results
    variables: tuple[StoredTensor, ...]  # those that the program reads or writes
    memory: Memory
    notes: tuple[str, ...] = ()  # what is legal, but probably not intended
    error: str | None = None  # the error that ended the recording after the last op
    stages: tuple[Stage, ...] = ()  # the stages of a pipeline; empty without one
    pipelines: tuple[Pipeline, ...] = ()  # the scans that are pipelines
    live: tuple[LiveTensors, ...] = ()  # what is live at the peak; the largest first
    device_memory: float | None = None  # the bytes of one device; None: unknown
    time: StepTime | None = None  # None: no profile of hardware was given
    timeline: tuple[TimelineSpan, ...] = ()  # empty without a profile of hardware
    runtime: str = "placed"  # whose memory it is: "placed", or "spmd" with XLA
    kernels: tuple[str, ...] = ()  # what computes attention, by the user's line
    overlap: tuple[str, ...] = ()  # which communication runs beside computations

    @property
    def fits(self) -> bool | None:
        """Whether the peak of memory fits on a device; None: `device_memory` is unknown."""
        if self.device_memory is None:
            return None
        return self.memory.peak <= self.device_memory

    @property
    def positions(self) -> int:
        """The number of positions of the mesh, each of which is one device."""
        return math.prod(size for _, size in self.axes)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """The collectives of one call, in order, without reshards that communicate
        nothing.
        """
        reshards = [reshard for op in self.ops for reshard in op.collectives]
        reshards.extend(self.results)
        return tuple(
            reshard for reshard in reshards if reshard.kind not in FREE_RESHARDS
        )

    def bytes_moved(
        self,
        kind: str | None = None,
        axis: str | None = None,
        phase: Phase | None = None,
    ) -> float:
        """Returns the bytes received per device in one call.

        Args:
          kind: counts only this kind of collective, such as "all_reduce"; None: all.
          axis: counts only collectives along this mesh axis; None: all.
          phase: counts only collectives of this phase; None: all.
        """
        if kind is not None:
            kind = as_text("kind", kind)
        if axis is not None:
            axis = as_text("axis", axis)
        _check_phase(phase)
        return sum(
            collective.total
            for collective in self.collectives
            if kind in (None, collective.kind)
            and axis in (None, collective.axis)
            and phase in (None, collective.phase)
        )

    def flops(self, phase: Phase | None = None) -> float:
        """Returns the floating-point operations of one device, in one phase or in all."""
        _check_phase(phase)
        return sum(op.total for op in self.ops if phase in (None, op.phase))

    def repeated_flops(self, phase: Phase | None = None) -> float:
        """Returns the redundant FLOPs of one device: of an op that n devices compute
        identically, (n - 1) / n of its FLOPs.
        """
        _check_phase(phase)
        return sum(
            op.total * (1 - 1 / op.repeated)
            for op in self.ops
            if phase in (None, op.phase)
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns all fields as plain data, as they are saved; the timeline is a file of its
        own.
        """
        return dataclasses.asdict(dataclasses.replace(self, timeline=()))


def _check_phase(phase: object) -> None:
    """Raises ArgumentError unless an argument is a phase or None."""
    if phase is not None:
        as_choice("phase", phase, PHASES)
