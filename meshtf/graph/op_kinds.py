"""The kinds of ops: what an op can say beyond the core of the contract, asked by class.

    isinstance(node.op, ReadOp)             # the node reads node.op.store
    isinstance(node.op, WriteOp)            # it writes node.op.variables

Most ops derive from `Op` itself: they compute their outputs from the elements that
their shard holds. An op that does more derives from one of the classes here, which add
one to four members each. No op needs two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from meshtf.graph.op import LocalContext, Op, Spec
from meshtf.mesh import Mesh, Placement


class Store(Protocol):
    """What an op reads or writes besides tensors: a variable's slices, an argument of a
    function.
    """

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> Spec: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def kind(self) -> Literal["parameter", "state", "argument", "number"]:
        """What it is; "state" is a variable that is not trained."""

    mesh: Mesh | None

    def read(self) -> list[Any]:
        """Returns one TensorFlow tensor for each position; equal slices may be one
        object.
        """

    def slots(self) -> Sequence[Any]:
        """Returns the slot that holds each position's shard of a variable, one object
        where they share it.
        """


class EffectOp(Op):
    """Base of ops that depend on more than their inputs, or do more than give outputs.

    Their order matters, so none of them runs inside of a loop's or branch's body.
    """


class ReadOp(EffectOp):
    """An op whose one output is what a store holds when the op runs."""

    store: Store


class WriteOp(EffectOp):
    """An op that gives variables new values, each shard once.

    An op may also have outputs. Then its last inputs, one for each output, hold the
    values that these start from: an optimizer's update of slots that are sharded
    otherwise than their variable takes the variable's value and returns the next one.
    """

    @property
    def variables(self) -> tuple[Store, ...]:
        """The variables that it writes, all of one placement."""
        raise NotImplementedError

    def new_values(self, *inputs_and_values: Any) -> tuple[Any, ...]:
        """Returns the next values, without writing anything.

        Args:
          *inputs_and_values: one device's shard of each input, and then the present
            value of each variable.

        Returns:
          The outputs, if there are any, and the next value of each variable.
        """
        raise NotImplementedError

    def write_in_place(self, handles: Sequence[Any], *inputs: Any) -> bool:
        """Writes by a fused TensorFlow op, if there is one: faster than `new_values`.

        Args:
          handles: resource handles of one device's shards: of the outputs, which hold
            the last inputs, and then of the variables.
          *inputs: one device's shard of each input but those last ones.

        Returns:
          Whether it wrote. If not, what `new_values` returns is assigned.
        """
        return False


class HostOp(EffectOp):
    """An op that tells the world outside, once for all devices, in the order of the
    code: it prints, or writes a summary. It has no outputs.
    """

    def run_on_host(self, *xs: Any) -> None:
        """Runs with whole inputs, on the CPU of the process that runs the program."""
        raise NotImplementedError


class ControlFlowOp(Op):
    """An op that runs recorded bodies: it is planned by these alone, and has no
    `local`.
    """

    @property
    def bodies(self) -> tuple[Any, ...]:
        """The `graph.Body`s that it may run."""
        raise NotImplementedError


class ReshardOp(Op):
    """An op whose inputs and outputs are brought at once to where the layout says, and
    not when something needs them there.
    """


class ConstantOp(Op):
    """An op of no inputs, whose outputs are one number everywhere."""

    @property
    def is_zero(self) -> bool:
        """Whether that number is zero: then the outputs are partial sums as well."""
        raise NotImplementedError


class GradientBarrier(Op):
    """An op through which no gradient flows, so that nothing before it needs one."""


class RenamingOp(Op):
    """An op with inputs whose dimensions have other names in the outputs."""

    def factor(self, dim: str) -> str:
        """Returns the factor of an input's dimension.

        A dimension that is used up, and whose name another one of an output may have,
        gets a fresh one, by convention "." + dim.
        """
        raise NotImplementedError


def factor_of(op: Op, dim: str) -> str:
    """Returns the factor of a dimension of an op's inputs: by default its name."""
    return op.factor(dim) if isinstance(op, RenamingOp) else dim


class Window(NamedTuple):
    """Factor elements [a, b) read elements [low(a), high(b)) of an input: halo, shift,
    crop, pad, stride.

    Attributes:
      low: the first element that is read, by the first element of the factor.
      high: the end of what is read, by the end of the factor's elements.
      wrap: whether beyond one end the elements of the other end follow, not `fill`.
      fill: what stands beyond the ends.
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
        """Returns which elements of an input's dimension a shard reads; None: those of
        its own shard.
        """
        raise NotImplementedError


def window_of(op: Op, input_index: int, dim: str) -> Window | None:
    """Returns which elements of an input a shard of an op reads; None: its own."""
    return op.window(input_index, dim) if isinstance(op, WindowedOp) else None


class Statistics(NamedTuple):
    """What a shard computes of its inputs before it knows of the others.

    Attributes:
      exchanged: a few numbers for all shards, small tensors.
      residuals: what this shard keeps for `local_sharded`, so as not to compute it
        again.
    """

    exchanged: tuple[Any, ...]
    residuals: tuple[Any, ...] = ()


class OpWithStatistics(Op):
    """An op along dimensions, whose shards exchange a few numbers and then finish
    alone.

    Where none of these dimensions is sharded, `local` runs by itself: one fused kernel.
    Else `statistics` runs on each shard, one all_gather follows, and then
    `local_sharded`:

        exchanged, residuals = op.statistics(context, x)      # of one shard
        op.local_sharded(context, gathered, residuals, x)     # gathered: [shards, ...]
    """

    def statistics_dims(self) -> tuple[str, ...]:
        """Returns the factors whose shards exchange statistics."""
        raise NotImplementedError

    def statistics(self, context: LocalContext, *xs: Any) -> Statistics:
        """Returns what one shard tells the others, and what it keeps."""
        raise NotImplementedError

    def statistics_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        """Returns what `statistics` exchanges, for inputs of these local shapes;
        dimensions of 1 may be left out. A forecast counts bytes by it, without running
        anything.
        """
        raise NotImplementedError

    def local_sharded(
        self,
        context: LocalContext,
        gathered: tuple[Any, ...],
        residuals: tuple[Any, ...],
        *xs: Any,
    ) -> tuple[Any, ...]:
        """Returns one device's shards of the outputs.

        Args:
          context: where it runs.
          gathered: what all shards exchanged, each stacked in their order:
            [shards, ...].
          residuals: what this shard kept.
          *xs: its shards of the inputs.
        """
        raise NotImplementedError
