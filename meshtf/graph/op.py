"""The op contract: an op says what sharding a dimension does, and never mentions mesh axes.

The class of an op becomes a frozen dataclass; its fields are the op's attributes. The
*factors* of an op are the dimensions of its iteration space: the dimensions of its outputs,
and the dimensions of its inputs that it sums over or uses up. Layouts, communication, both
runtimes and the conformance suite work with any op, so a new op changes one file. A complete
op:

    class Lookup(Op):
      \"\"\"Entries of a table[size, d] by index: ids[batch] -> [batch, d].\"\"\"
      size: str
      conformance_samples = (Sample(("size",), ("size:8;d:4", "int batch:4")),)

      def output_specs(self, table, ids):
        return (Spec(ids.shape + table.shape.without(self.size), table.dtype),)

      def role(self, factor):           # a shard of the table gives zeros for other ids
        return Role.SUM if factor == self.size else Role.MAP

      def local(self, context, table, ids):  # the TensorFlow ops of ONE device
        local_ids = ids - context.shard_offset(self.size)
        in_shard = (local_ids >= 0) & (local_ids < context.local_size(self.size))
        entries = tf.gather(table, tf.where(in_shard, local_ids, 0))
        return (tf.where(in_shard[:, None], entries, 0),)

      def gradient(self, dy, y, table, ids):
        return [segment_sum(dy, ids, table.shape.dim(self.size)), None]
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from meshtf.graph.op_dataclass import Frozen
from meshtf.names import Shape


class Role(enum.Enum):
    """What sharding a factor does."""

    MAP = "map"  # sharded inputs give sharded outputs
    # Sharded inputs give partial sums, maxima or minima; outputs that have the dimension,
    # beside others that lack it, are sharded.
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    SAME = "same"  # shards exchange statistics, and each computes the complete result
    UNSHARDED = "unsharded"  # the factor must not be sharded


class Spec(NamedTuple):
    """The shape and the dtype of a tensor."""

    shape: Shape
    dtype: str


Specs = tuple[Spec, ...]  # the specs of an op's inputs or outputs
LocalTensors = tuple[Any, ...]  # TensorFlow tensors of one device
Cotangents = list[Any]  # for each input of an op, the cotangent or None


class Sample(NamedTuple):
    """A small input for the conformance suite.

    Attributes:
      attributes: the arguments of the op's class.
      inputs: the shape of each input, after a word for its values: "b:4" has normally
        distributed floats, "half b:4" the same in bfloat16, "int b:4" integers from 0 to
        `below` - 1, "natural b:4" the same from 1 on, "bool b:4" booleans, "ties b:4" floats
        that repeat, "nan b:4" such floats with NaN and infinities, "whole b:4" floats
        without fractions, "positive b:4" floats above zero, "unit b:4" floats between -1
        and 1, "complex b:4" complex numbers.
      below: the exclusive bound of integers.
      gradient: whether to compare gradients; False if the op has none.
    """

    attributes: tuple[Any, ...] = ()
    inputs: tuple[str, ...] = ()
    below: int = 7
    gradient: bool = True


class MatmulKernels(NamedTuple):
    """TensorFlow's kernels for matmuls on CPUs.

    Attributes:
      threads: the number of threads that compute one matmul.
      onednn: oneDNN's kernel as a function of (a, b, transpose_a, transpose_b); None if
        it cannot be called by name.
      all_onednn: whether TensorFlow uses oneDNN for all matmuls.
    """

    threads: int
    onednn: Callable[[Any, Any, bool, bool], Any] | None = None
    all_onednn: bool = False


# record_check(is_valid, ids, interval) adds a check of indices to a program of XLA, whose ops
# cannot raise errors: `is_valid` is a boolean tensor, false for those of `ids` that are errors;
# `interval` describes the indices in range, such as '[0, 8) of "vocab"'.
RecordCheck: TypeAlias = Callable[[Any, Any, str], None]


# What `Op.padding_value` returns.
PaddingValue: TypeAlias = float | Literal["first", "gather"] | None


class KernelCall(NamedTuple):
    """A kernel that XLA knows by name: a custom call.

    Attributes:
      name: the name.
      configuration: what XLA passes to it.
      results: the sizes and the TensorFlow data type of each result, in the usual order in memory,
        as operands are.
    """

    name: str
    configuration: str
    results: list[tuple[Any, Any]]


class LocalContext(Protocol):
    """The sizes and offsets of one device's shards, passed to `Op.local`.

    Sizes are Python ints. Offsets are scalar int32 tensors, since one traced program serves
    all devices: Python's `if` cannot test them.

    Attributes:
      inputs: the local shapes of the op's inputs.
      outputs: the local shapes of the op's outputs.
      compiled: whether XLA compiles the TensorFlow ops.
    """

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    compiled: bool

    @property
    def matmul_kernels(self) -> MatmulKernels | None:
        """The kernels of matmuls; None: the device has none that
        `ops/linear/matmul_kernels.py` knows.
        """

    @property
    def kernels_refuse(self) -> bool:
        """Whether TensorFlow's kernels raise errors for indices out of range: on CPUs, unless
        XLA compiles the ops.
        """

    def local_size(self, factor: str) -> int:
        """Returns the size of this device's shard along a factor, in elements, with padding."""

    def is_padded(self, factor: str) -> bool:
        """Returns whether a shard of a factor ends with padding; see `Op.padding_value`."""

    def num_elements(self, factor: str) -> Any:
        """Returns the size of this device's shard along a factor, without padding; a Python
        int if no shard has any.
        """

    def elements_of_shards(self, factor: str) -> tuple[int, ...]:
        """Returns the size of each shard along a factor, without padding, in the order of
        `shard_index`. The last shards may have none.
        """

    def global_size(self, factor: str) -> int:
        """Returns the size of a factor over all shards, in elements."""

    def num_shards(self, factor: str) -> int:
        """Returns the number of shards of a factor; 1 if it is not sharded."""

    def shard_index(self, factor: str) -> Any:
        """Returns the index of this device's shard of a factor; the Python int 0 if the
        factor is not sharded.
        """

    def shard_offset(self, factor: str) -> Any:
        """Returns the global index of the first element of this device's shard; the Python
        int 0 if the factor is not sharded.
        """

    def axis(self, i: int, dim: str) -> int:
        """Returns the index of dimension `dim` in the shape of input i."""

    def window(self, i: int, dim: str, x: Any) -> Any:
        """Returns x, the shard of input i, extended along `dim` by the elements that other
        shards send: a halo exchange. For ops that derive from `WindowedOp`.
        """

    @property
    def record_check(self) -> RecordCheck | None:
        """A function that has the host raise an error after the run if an index is out of
        range; None: the host does not look at such checks.
        """

    @property
    def platform(self) -> str:
        """What XLA compiles the ops for: "cpu", "cuda", "tpu"; "": any devices, or not XLA."""

    def call_kernel(self, call: KernelCall, xs: list[Any]) -> list[Any]:
        """Returns the results of a kernel for operands xs; only where XLA compiles for a platform
        that has it.
        """

    def optimization_barrier(self, x: Any) -> Any:
        """Returns x, and keeps XLA from fusing the ops before with the ops after."""

    def stored(self, x: Any) -> Any:
        """Returns x, and has XLA on CPUs compute it once and write it to memory. There XLA
        drops optimization barriers before it fuses: it would compute x anew within each op
        that reads it.
        """

    def computed_once(self, x: Any) -> Any:
        """Returns x, and has XLA compute it once on any devices, so that all ops that read
        the result read the same numbers.
        """


class Op(Frozen):
    """Base class of every op.

    An op derives from this class, or from one of the base classes in `op_kinds.py`, which
    have further members. The class of an op becomes a frozen dataclass, and has no
    subclasses.

    Attributes:
      conformance_samples: inputs for the conformance suite.
      linearity: whether the op maps partial sums to partial sums. "each": if one input is a
        partial sum and the others are not; "first": if the first is; "sparse": as "first", also
        where the output is larger, of which all but one entry is zero; "joint": if all inputs
        are partial sums; None: never. A property, if it depends on attributes of the op.
      share_trace: whether equal nodes of a program share one trace of `local`, that is one
        `tf.function`; for ops that consist of many TensorFlow ops.
    """

    conformance_samples: ClassVar[tuple[Sample, ...]] = ()
    linearity: ClassVar[Literal["each", "first", "sparse", "joint"] | None] = None
    share_trace: ClassVar[bool] = False

    def output_specs(self, *xs: Spec) -> Specs:
        """Returns the shape and dtype of each output.

        Args:
          *xs: the specs of the inputs, with global shapes.

        Raises:
          ShapeError, DTypeError: the op does not take these inputs.
        """
        raise _missing_method(self, "output_specs")

    def role(self, factor: str) -> Role:
        """Returns what sharding a factor does."""
        return Role.MAP

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        """Returns one device's shards of the outputs, computed by TensorFlow ops.

        Args:
          context: the sizes and offsets of the device's shards.
          *xs: the device's shard of each input.
        """
        raise _missing_method(self, "local")

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        """Returns the cotangent of each input, computed by named ops; None for an input
        without gradient.

        Args:
          dy: the cotangent of the output. For several outputs a tuple, with None for an
            output without cotangent.
          y: the output, or a tuple of outputs.
          *xs: the inputs.
        """
        raise _missing_method(self, "gradient")

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        """Returns the value that the padding of an input gets, along a factor, before `local`
        runs. Padding are the elements at the end of a shard, of undefined value, where the
        mesh does not divide the dimension. None: any value will do, as where elements do not
        meet (`Role.MAP`). "first": copies of the first element of the shard, for a function
        that refuses some values, such as the inverse of a matrix; if a shard has no elements,
        the dimension is gathered first. "gather": the op does not take padding along this
        factor, so that the dimension is gathered first; the default for other roles.
        """
        return None if self.role(factor) is Role.MAP else "gather"

    def workspace_specs(self, *xs: Spec) -> Specs:
        """Returns the specs of temporary tensors of `local`, which need memory in addition
        to inputs and outputs.

        Args:
          *xs: the specs of the inputs, with local shapes.
        """
        return ()

    def flops(self, *xs: Spec) -> int:
        """Returns the floating-point operations of the op on all devices; by default one
        for each element of the outputs.

        Args:
          *xs: the specs of the inputs, with global shapes.
        """
        return sum(spec.shape.size for spec in self.output_specs(*xs))

    @property
    def display_name(self) -> str:
        """The name of the op in plans and errors."""
        return type(self).__name__.lower()


def _missing_method(op: Op, method: str) -> NotImplementedError:
    """Returns the error for a method that the class of an op should define."""
    return NotImplementedError(
        f"{type(op).__name__}: an op must define `{method}`; docs/learn/own_op.md has an "
        "example."
    )
