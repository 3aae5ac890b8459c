"""The op contract: an op says what sharding each name does, and never mentions mesh axes.

The class of an op becomes a frozen dataclass; its fields are the op's attributes. An op's
*factors* are the names of its iteration space: the names of its outputs, and those of its
inputs that it sums over or uses up. All else in the library (layouts, communication, both
runtimes, the conformance suite) follows from the class, so a new op changes one file. A
complete op:

    class Lookup(Op):
      \"\"\"Entries of a table[size, d] by index: ids[batch] -> [batch, d].\"\"\"
      size: str
      samples = (Sample(("size",), ("size:8;d:4", "int batch:4")),)

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
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from meshtf.graph.op_dataclass import Frozen
from meshtf.graph.op_earlier_form import refuse_earlier_form
from meshtf.names import Shape


class Role(enum.Enum):
    """What sharding a factor does."""

    MAP = "map"  # sharded inputs give sharded outputs
    SUM = "sum"  # sharded inputs give partial sums
    MAX = "max"  # ... partial maxima
    MIN = "min"  # ... partial minima
    SAME = "same"  # every device computes the complete result, by exchanged statistics
    UNSHARDED = "unsharded"  # must not be sharded


class Spec(NamedTuple):
    """The named shape and the data type of a tensor."""

    shape: Shape
    dtype: str


Specs = tuple[Spec, ...]  # of the inputs or the outputs of an op
LocalTensors = tuple[Any, ...]  # TensorFlow tensors of one device
Cotangents = list[Any]  # for each input of an op a tensor, or None


class Sample(NamedTuple):
    """A small input for the conformance suite.

    Attributes:
      attributes: the arguments of the op's class.
      inputs: the shapes of inputs. "b:4" has normal floats, "half b:4" the same as
        bfloat16, "int b:4" integers below `below`, "bool b:4" booleans, "ties b:4" floats
        that repeat, "whole b:4" floats without fractions, "positive b:4" floats above
        zero, "unit b:4" floats between -1 and 1, "complex b:4" complex numbers.
      below: the bound of integers.
      gradient: whether to compare gradients; False if the op has none.
    """

    attributes: tuple[Any, ...] = ()
    inputs: tuple[str, ...] = ()
    below: int = 7
    gradient: bool = True


class MatmulKernels(NamedTuple):
    """The kernels of TensorFlow for matmuls on CPUs.

    Attributes:
      threads: the number of threads that compute one matmul.
      onednn: oneDNN's kernel as a function of (a, b, flip_a, flip_b); None where it
        cannot be called by name.
      all_onednn: whether TensorFlow uses oneDNN for all matmuls.
    """

    threads: int
    onednn: Callable[[Any, Any, bool, bool], Any] | None = None
    all_onednn: bool = False


class LocalContext(Protocol):
    """The shards of one device, as `local` sees them: their sizes and offsets.

    Sizes are Python ints. Offsets are scalar int32 tensors, since a segment is traced
    once for all devices: no Python `if` on them.

    Attributes:
      inputs: the local shapes of inputs.
      outputs: the local shapes of outputs.
      compiled: whether XLA compiles the ops.
    """

    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    compiled: bool

    @property
    def matmul_kernels(self) -> MatmulKernels | None:
        """The kernels of matmuls; None: none that `ops/linear/matmul_kernels.py` knows."""

    @property
    def kernels_refuse(self) -> bool:
        """Whether TensorFlow's kernels raise errors for indices that are too large, as on
        CPUs.
        """

    def local_size(self, factor: str) -> int:
        """Returns the size of this shard along a factor, in elements."""

    def global_size(self, factor: str) -> int:
        """Returns the size of all shards together along a factor, in elements."""

    def num_shards(self, factor: str) -> int:
        """Returns the number of shards: 1 where the factor is not sharded."""

    def shard_index(self, factor: str) -> Any:
        """Returns the index of this shard; the Python int 0 where the factor is not
        sharded.
        """

    def shard_offset(self, factor: str) -> Any:
        """Returns the global index of this shard's first element; the Python int 0
        where the factor is not sharded.
        """

    def axis(self, i: int, dim: str) -> int:
        """Returns the index of a name among the dimensions of input i."""

    def window(self, i: int, dim: str, x: Any) -> Any:
        """Returns x, which is input i, with the elements of `dim` in its window: its
        own, and those that neighbours send.
        """

    def optimization_barrier(self, x: Any) -> Any:
        """Returns x. XLA does not fuse ops across it."""


class Op(Frozen):
    """Base class of every op.

    An op derives from it, or from one of the kinds in `op_kinds`, which have further
    members. It becomes a frozen dataclass; no class derives from an op.

    Attributes:
      samples: inputs for the conformance suite.
      linearity: whether partial sums may flow through. "each": one input may be a partial
        sum, if the others are not; "joint": all inputs at once. A property where it
        depends on an attribute.
      share_trace: whether equal nodes of a program share one trace of `local`: for ops
        with many TensorFlow ops.
    """

    samples: ClassVar[tuple[Sample, ...]] = ()
    linearity: ClassVar[Literal["each", "joint"] | None] = None
    share_trace: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        inherited: set[str] = set()
        for base in cls.__mro__[1:]:
            inherited.update(vars(base))
        refuse_earlier_form(cls, inherited)

    def output_specs(self, *xs: Spec) -> Specs:
        """Returns shape and data type of each output. Raises ShapeError or
        DTypeError.
        """
        raise _missing_method(self, "output_specs")

    def role(self, factor: str) -> Role:
        """Returns what sharding `factor` does."""
        return Role.MAP

    def local(self, context: LocalContext, *xs: Any) -> LocalTensors:
        """Runs the TensorFlow ops of one device, as if there were no mesh."""
        raise _missing_method(self, "local")

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        """Returns the cotangent of each input, in named ops; None where there is none.

        With several outputs `dy` and `y` are tuples, and a missing cotangent is None.
        """
        raise _missing_method(self, "gradient")

    def workspace_specs(self, *xs: Spec) -> Specs:
        """Returns the temporary tensors of `local`, for inputs of these local shapes: they
        need memory in addition to inputs and outputs.
        """
        return ()

    def flops(self, *xs: Spec) -> int:
        """Returns the floating-point operations for inputs of these global shapes;
        default: one per output element.
        """
        return sum(o.shape.size for o in self.output_specs(*xs))

    @property
    def display_name(self) -> str:
        """The name of the op as plans and errors print it."""
        return type(self).__name__.lower()


def _missing_method(op: Op, method: str) -> NotImplementedError:
    """Returns the error for a method that a class of ops must define and does not."""
    return NotImplementedError(
        f"{type(op).__name__}: an op must define `{method}`; docs/learn/own_op.md has an "
        "example."
    )
