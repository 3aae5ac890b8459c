"""The kinds of ops: base classes with members beyond the core of the op contract.

    isinstance(node.op, ReadOp)             # the node reads node.op.store
    isinstance(node.op, WriteOp)            # the node writes node.op.variables

Most ops derive from `Op` itself: each device computes its shard of the outputs from its
shards of the inputs. All other ops derive from one of the classes in this file, which add
one to four members each. No op needs two of these classes.

A *factor* of an op is a dimension of its outputs, or a dimension of its inputs that it sums
over or consumes; see `op.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from meshtf.graph.op import LocalContext, LocalTensors, Op, Role, Spec, Specs
from meshtf.mesh import Mesh, Placement


class Store(Protocol):
    """The storage that an op reads or writes: a variable, or an argument of a function.

    Attributes:
      name: the name of the variable or argument.
      spec: the global shape and the dtype.
      placement: the axes that shard each dimension, those of partial results, and the stage.
      mesh: the mesh; None: it is not known yet.
    """

    @property
    def name(self) -> str: ...

    @property
    def spec(self) -> Spec: ...

    @property
    def placement(self) -> Placement: ...

    @property
    def kind(self) -> Literal["parameter", "state", "argument", "number"]:
        """The kind of storage. "parameter": a variable that optimizers update. "state": any
        other variable. "argument": an argument of a function. "number": a Python number
        that is an input of the program, not a constant.
        """

    mesh: Mesh | None

    def read(self) -> list[Any]:
        """Returns the shard of each mesh position as a TensorFlow tensor; positions with
        equal shards may share an object.
        """

    def slots(self) -> Sequence[Any]:
        """Returns for each mesh position the slot, the storage that contains its shard of a
        variable; positions that share a shard have the same object.
        """


def is_variable(store: Store) -> bool:
    """Returns whether a store is a variable, which keeps its value between calls."""
    return store.kind in ("parameter", "state")


class EffectOp(Op):
    """Base of ops with side effects, and of ops whose outputs depend on more than their inputs.
    Their order matters, so bodies of loops and branches must not contain them.
    """


class ReadOp(EffectOp):
    """An op whose only output is the value of a store at the time when the op runs."""

    store: Store


class WriteOp(EffectOp):
    """An op that writes new values of variables, each shard once.

    A `WriteOp` may also have outputs. Then its last inputs are the initial values of the
    outputs, one for each. For example, an optimizer's moments may be sharded differently from
    their variable: then the op takes the variable's value, and returns its next value.
    """

    @property
    def variables(self) -> tuple[Store, ...]:
        """The variables that the op writes; all of them have the same placement."""
        raise NotImplementedError

    def new_values(self, *inputs_and_values: Any) -> LocalTensors:
        """Returns the next values of one device's shards, without writing anything.

        Args:
          *inputs_and_values: the shard of each input, then that of each variable's value.

        Returns:
          The outputs, if any, followed by the next value of each variable.
        """
        raise NotImplementedError

    def write_in_place(self, handles: Sequence[Any], *inputs: Any) -> bool:
        """Writes one device's shards by a fused TensorFlow op, if there is one: faster than
        assigning the results of `new_values`.

        Args:
          handles: those of the outputs, with their initial values, then of the variables.
          *inputs: the shard of each input, without the initial values of outputs.

        Returns:
          Whether it did. If not, the caller assigns the results of `new_values`.
        """
        return False


class RowsWriteOp(WriteOp):
    """A `WriteOp` that touches only some entries of the first dimension of its variables.

    Its last input is added by the runtime: the index of the first entry of the local shard, a
    scalar int64. XLA always runs `new_values`, which it makes an update in place.
    """

    def num_touched(self, *xs: Spec) -> int:
        """Returns how many entries the op touches at most, given the specs of its inputs."""
        raise NotImplementedError


class HostOp(EffectOp):
    """An op without outputs that runs once, on the host, for all devices, in the order of the
    code: it prints, or writes a summary.

    Attributes:
      asserts: whether it raises an error for some inputs.
    """

    asserts: ClassVar[bool] = False

    def run_on_host(self, *xs: Any) -> None:
        """Runs the op on the CPU of the process that drives the program.

        Args:
          *xs: the global inputs.
        """
        raise NotImplementedError


class ControlFlowOp(Op):
    """An op that runs recorded bodies. The planner plans the bodies; it has no `local`."""

    @property
    def bodies(self) -> tuple[Any, ...]:
        """The `graph.Body` objects that the op may run."""
        raise NotImplementedError


class ReshardOp(Op):
    """An op whose inputs and outputs are resharded to the placement of the layout there."""


class ConstantOp(Op):
    """An op without inputs, whose outputs have one value in all elements."""

    @property
    def is_zero(self) -> bool:
        """Whether the value is zero: without communication, a partial sum as well."""
        raise NotImplementedError


class ElementwiseOp(Op):
    """An op each of whose output elements depends on one element of each input. It costs no more
    than reading its outputs, so the backward pass of a loop computes it again where that stores
    less.
    """


class ConversionOp(Op):
    """Converts its input to another data type, which costs no more than reading the result."""


class EntryOp(Op):
    """An op whose output may be zero but for one entry of a dimension. A loop that sums such
    outputs adds only the entry, in place: see `partition.steps.sums_in_place`.
    """

    @property
    def entry_dim(self) -> str | None:
        """The dimension of the output; None: more than one entry is not zero."""
        raise NotImplementedError

    def entry(self, context: LocalContext, *xs: Any) -> tuple[Any, Any]:
        """Returns what one device adds to its shard of a sum.

        Args:
          context: the sizes and offsets of the device's shards.
          *xs: the device's shard of each input.

        Returns:
          (the entry, with the dimensions of the output without `entry_dim`, in order; its
          index in the shard, an integer scalar). If the entry is not in the shard, it is
          zeros, at any index of the shard.
        """
        raise NotImplementedError


class LookupOp(Op):
    """An op that reads no more elements of its first input, a table, than its output has."""


class GradientBarrier(Op):
    """An op that stops gradients: its inputs get no cotangents."""


class Kernel(NamedTuple):
    """What computes an op that multiplies matrices several times.

    Attributes:
      work: what it computes, such as "attention".
      name: what it is, such as "cuDNN" or "blocks of 256 queries".
      refusal: why it is no kernel of the device's vendor, so that all products are written and
        read; "": it is one, without memory for products.
    """

    work: str
    name: str
    refusal: str


class FusedMatmulsOp(Op):
    """An op that multiplies matrices several times, and stores none of the products but the last:
    each is as large as that of its first two inputs.

    Attributes:
      num_products: the number of products.
      num_repeated_products: how many of these another op has computed as well, and not stored.
    """

    num_products: ClassVar[int]
    num_repeated_products: ClassVar[int] = 0

    def contracted(self) -> tuple[str, ...]:
        """Returns the factors that the product of the first two inputs sums over."""
        raise NotImplementedError

    def kernel(self, platform: str, sharded: Collection[str], *xs: Spec) -> Kernel:
        """Returns what computes it on a device.

        Args:
          platform: what XLA compiles it for, "cpu", "cuda" or "tpu"; "": any devices, or not XLA.
          sharded: the factors that are sharded.
          *xs: the specs of the inputs, with local shapes.
        """
        raise NotImplementedError


class RenamingOp(Op):
    """An op whose output is its first input, perhaps under other names or in another shape: the
    same elements in the same order.
    """

    def factor(self, dim: str) -> str:
        """Returns the factor that a dimension of the inputs belongs to; by default its name.

        If a reshape merges [heads, d] into one dimension `d`, the factor of the dimension `d`
        that it consumes is called ".d", by convention.
        """
        return dim


def factor_of(op: Op, dim: str) -> str:
    """Returns the factor of a dimension of an op's inputs: by default its name."""
    if isinstance(op, RenamingOp):
        return op.factor(dim)
    return dim


def contracted_factors(op: Op, inputs: Sequence[Spec]) -> list[str]:
    """Returns the factors that an op sums over and both of its inputs have. An op that has some
    multiplies matrices.

    Args:
      op: the op.
      inputs: the specs of its inputs. Integers are no matrix, but indices: those of a gather.
    """
    if isinstance(op, FusedMatmulsOp):
        return list(op.contracted())
    if len(inputs) != 2:
        return []
    if any("int" in x.dtype for x in inputs):
        return []
    left, right = inputs
    factors = [factor_of(op, name) for name in left.shape.names]
    of_right = {factor_of(op, name) for name in right.shape.names}
    shared = [factor for factor in factors if factor in of_right]
    return [factor for factor in shared if op.role(factor) is Role.SUM]


class Window(NamedTuple):
    """The elements of an input that elements of the output depend on, along one dimension:
    for halos, shifts, crops, padding and strides.

    Output elements [a, b) depend on input elements [low(a), high(b)).

    Attributes:
      low: maps the index of the first output element to that of the first input element.
      high: maps the index after the last output element to that after the last input element.
      wrap: whether indices beyond one end continue at the other end; otherwise the elements
        there are `fill`.
      fill: the value of elements beyond the ends.
    """

    low: Callable[[int], int]
    high: Callable[[int], int]
    wrap: bool = False
    fill: float = 0.0


class WindowedOp(Op):
    """An op whose shards read elements of inputs that neighbouring shards hold, such as a
    convolution.

    `local` gets these elements by `context.window(input_index, dim, x)`. The size of a
    factor is the size of the dimension in the output, or, if no output has the dimension, in
    the first input.
    """

    def window(self, input_index: int, dim: str) -> Window | None:
        """Returns what a shard reads of an input along a dimension; None: only its own shard."""
        raise NotImplementedError


def window_of(op: Op, input_index: int, dim: str) -> Window | None:
    """Returns what a shard of an op reads of an input: see `WindowedOp.window`."""
    if isinstance(op, WindowedOp):
        return op.window(input_index, dim)
    return None


class Statistics(NamedTuple):
    """What a shard computes from its inputs before the exchange with other shards.

    Attributes:
      exchanged: small tensors, which the all_gather sends to all shards.
      residuals: tensors that stay on the device, for `local_sharded`.
    """

    exchanged: LocalTensors
    residuals: LocalTensors = ()


class OpWithStatistics(Op):
    """An op along dimensions whose shards exchange small statistics.

    If none of these dimensions is sharded, only `local` runs. Otherwise `statistics` runs on
    each shard, then one all_gather, then `local_sharded`:

        exchanged, residuals = op.statistics(context, x)      # of one shard
        op.local_sharded(context, gathered, residuals, x)     # gathered: [shards, ...]
    """

    def statistics_dims(self) -> tuple[str, ...]:
        """Returns the factors whose shards exchange statistics."""
        raise NotImplementedError

    def statistics(self, context: LocalContext, *xs: Any) -> Statistics:
        """Returns the statistics of one shard, and its residuals.

        Args:
          context: the sizes and offsets of the device's shards.
          *xs: the device's shard of each input.
        """
        raise NotImplementedError

    def statistics_specs(self, *xs: Spec) -> Specs:
        """Returns the specs of the exchanged statistics of one shard, for forecasts of the
        bytes. Dimensions of size 1 may be left out.

        Args:
          *xs: the specs of the inputs, with local shapes.
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
          context: the sizes and offsets of the device's shards.
          gathered: the exchanged statistics of all shards, each stacked to
            `[shards, ...]`.
          residuals: the residuals of this shard.
          *xs: the device's shard of each input.
        """
        raise NotImplementedError
