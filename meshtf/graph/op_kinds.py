"""The kinds of ops: base classes with members beyond the core of the op contract.

    isinstance(node.op, ReadOp)             # the node reads node.op.store
    isinstance(node.op, WriteOp)            # it writes node.op.variables

Most ops derive from `Op` itself: they compute a shard of their outputs from the shards of
their inputs on the same device. All other ops derive from one of these classes, which add
one to four members each. No op needs two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from meshtf.graph.op import LocalContext, LocalTensors, Op, Spec, Specs
from meshtf.mesh import Mesh, Placement


class Store(Protocol):
    """The storage that an op reads or writes: a variable, or an argument of a function."""

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> Spec: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def kind(self) -> Literal["parameter", "state", "argument", "number"]:
        """What it stores; "state" is a variable that is not trained."""

    mesh: Mesh | None

    def read(self) -> list[Any]:
        """Returns the shard of each mesh position as a TensorFlow tensor. Positions with
        equal shards may have the same object.
        """

    def slots(self) -> Sequence[Any]:
        """Returns the slot of each mesh position, which stores its shard of a variable.
        Positions that share a shard have the same object.
        """


class EffectOp(Op):
    """Base of ops with side effects, or whose outputs depend on more than their inputs.

    Their order matters, so bodies of loops and branches must not have them.
    """


class ReadOp(EffectOp):
    """An op with one output: the value of a store when the op runs."""

    store: Store


class WriteOp(EffectOp):
    """An op that writes new values of variables, each shard once.

    An op may also have outputs. Then its last inputs, one for each output, are the
    initial values of these. So the update of optimizer slots that are sharded differently
    from their variable takes the variable's value and returns the next one.
    """

    @property
    def variables(self) -> tuple[Store, ...]:
        """The variables that it writes, all of one placement."""
        raise NotImplementedError

    def new_values(self, *inputs_and_values: Any) -> LocalTensors:
        """Returns the next values, without writing anything.

        Args:
          *inputs_and_values: one device's shard of each input, and then of the current
            value of each variable.

        Returns:
          The outputs, if any, and the next value of each variable.
        """
        raise NotImplementedError

    def write_in_place(self, handles: Sequence[Any], *inputs: Any) -> bool:
        """Writes by a fused TensorFlow op, if there is one: faster than `new_values`.

        Args:
          handles: resource handles of one device's shards: of the outputs, whose values
            are the last inputs, and then of the variables.
          *inputs: one device's shard of each input, without those last ones.

        Returns:
          Whether it wrote. If not, the results of `new_values` are assigned.
        """
        return False


class HostOp(EffectOp):
    """An op that runs on the host, once for all devices, in the order of the code: it
    prints, or writes a summary. It has no outputs.
    """

    def run_on_host(self, *xs: Any) -> None:
        """Runs with global inputs, on the CPU of the process that runs the program."""
        raise NotImplementedError


class ControlFlowOp(Op):
    """An op that runs recorded bodies. The planner plans the bodies; it has no `local`."""

    @property
    def bodies(self) -> tuple[Any, ...]:
        """The `graph.Body`s that it may run."""
        raise NotImplementedError


class ReshardOp(Op):
    """An op whose inputs and outputs are resharded at once to the placement of the
    layout, and not when another op needs it.
    """


class ConstantOp(Op):
    """An op without inputs, whose outputs have one value in all elements."""

    @property
    def is_zero(self) -> bool:
        """Whether that value is zero: then the outputs are partial sums as well."""
        raise NotImplementedError


class GradientBarrier(Op):
    """An op through which no gradient flows: its inputs have no gradients."""


class RenamingOp(Op):
    """An op with inputs whose dimensions have other names in the outputs."""

    def factor(self, dim: str) -> str:
        """Returns the factor of an input's dimension.

        A dimension that is used up, and whose name a dimension of an output may have,
        has a factor of another name, by convention "." + dim.
        """
        raise NotImplementedError


def factor_of(op: Op, dim: str) -> str:
    """Returns the factor of a dimension of an op's inputs: by default its name."""
    if isinstance(op, RenamingOp):
        return op.factor(dim)
    return dim


class Window(NamedTuple):
    """Factor elements [a, b) read elements [low(a), high(b)) of an input: halo, shift,
    crop, pad, stride.

    Attributes:
      low: maps the start of the factor's elements to the start of those that are read.
      high: maps the end of the factor's elements to the end of those that are read.
      wrap: whether elements beyond one end are those of the other end, and not `fill`.
      fill: the value of elements beyond the ends.
    """

    low: Callable[[int], int]
    high: Callable[[int], int]
    wrap: bool = False
    fill: float = 0.0


class WindowedOp(Op):
    """An op whose shards read elements of inputs that other shards hold.

    `local` gets them by `context.window(input_index, dim, x)`. The size of a factor is
    that of the output's dimension, or, where no output has it, of the first input's.
    """

    def window(self, input_index: int, dim: str) -> Window | None:
        """Returns the elements of an input's dimension that a shard reads; None: those of
        the local shard.
        """
        raise NotImplementedError


def window_of(op: Op, input_index: int, dim: str) -> Window | None:
    """Returns the elements of an input that a shard of an op reads; None: those of the
    local shard.
    """
    if isinstance(op, WindowedOp):
        return op.window(input_index, dim)
    return None


class Statistics(NamedTuple):
    """What a shard computes from its inputs before the exchange with other shards.

    Attributes:
      exchanged: small tensors, which all shards get.
      residuals: tensors of this shard for `local_sharded`, which would otherwise be
        computed again.
    """

    exchanged: LocalTensors
    residuals: LocalTensors = ()


class OpWithStatistics(Op):
    """An op along dimensions whose shards exchange small statistics.

    If none of these dimensions is sharded, only `local` runs: one fused kernel. Otherwise
    `statistics` runs on each shard, then one all_gather, then `local_sharded`:

        exchanged, residuals = op.statistics(context, x)      # of one shard
        op.local_sharded(context, gathered, residuals, x)     # gathered: [shards, ...]
    """

    def statistics_dims(self) -> tuple[str, ...]:
        """Returns the factors whose shards exchange statistics."""
        raise NotImplementedError

    def statistics(self, context: LocalContext, *xs: Any) -> Statistics:
        """Returns the statistics that one shard sends to the others, and its residuals."""
        raise NotImplementedError

    def statistics_specs(self, *xs: Spec) -> Specs:
        """Returns the specs of exchanged statistics, for inputs of these local shapes;
        dimensions of size 1 may be left out. Forecasts count bytes by it.
        """
        raise NotImplementedError

    def local_sharded(
        self,
        context: LocalContext,
        gathered: LocalTensors,
        residuals: LocalTensors,
        *xs: Any,
    ) -> LocalTensors:
        """Returns one device's shards of the outputs.

        Args:
          context: sizes and offsets of its shards.
          gathered: the exchanged statistics of all shards, each stacked to
            `[shards, ...]`.
          residuals: those of this shard.
          *xs: its shards of the inputs.
        """
        raise NotImplementedError
