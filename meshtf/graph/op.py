"""The op contract: an op says what cutting each name does, and never which axis cuts
it.

The class of an op is a frozen dataclass by itself; its fields are the op's attributes.
An op's *factors* are the names of its iteration space: the names of its outputs, and
those of its inputs that are summed or used up.
Everything else in the library (layouts, communication, both runtimes, the conformance
suite) follows from what stands here, so adding an op touches one file. A whole op:

    class RowsOf(Op):
      \"\"\"Rows of a table[rows, d] by number: ids[batch] -> [batch, d].\"\"\"
      rows: str
      samples = (Sample(("rows",), ("rows:8;d:4", "int batch:4")),)

      def output_specs(self, table, ids):
        return (Spec(ids.shape + table.shape.without(self.rows), table.dtype),)

      def role(self, factor):           # a device that holds some rows gives zero for the others
        return Role.SUM if factor == self.rows else Role.MAP

      def local(self, context, table, ids):  # the TensorFlow ops of ONE device
        own = ids - context.shard_offset(self.rows)
        mine = (own >= 0) & (own < context.local_size(self.rows))
        rows = tf.gather(table, tf.where(mine, own, 0))
        return (tf.where(mine[:, None], rows, 0),)

      def gradient(self, dy, y, table, ids):
        return [segment_sum(dy, ids, table.shape.dim(self.rows)), None]
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from meshtf.graph.op_dataclass import Frozen
from meshtf.graph.op_earlier_form import refuse_earlier_form
from meshtf.names import Shape


class Role(enum.Enum):
    """What cutting a factor does."""

    MAP = "map"  # cut inputs give cut outputs
    SUM = "sum"  # cut inputs give results still to be summed
    MAX = "max"
    MIN = "min"
    SAME = "same"  # every device has the whole result: by statistics of all shards
    WHOLE = "whole"  # must not be cut


class Spec(NamedTuple):
    """The named shape and the data type of a tensor."""

    shape: Shape
    dtype: str


class Sample(NamedTuple):
    """A small input for the conformance suite.

    `inputs` are shapes; "int b:4" makes whole numbers below `below`, "bool b:4" truth
    values, "ties b:4" floats that repeat, "whole b:4" floats without fractions,
    "positive b:4" floats above zero, "unit b:4" floats between -1 and 1, "complex b:4"
    complex numbers, plain "b:4" normal floats, "half b:4" the same as bfloat16.
    """

    attributes: tuple[Any, ...] = ()
    inputs: tuple[str, ...] = ()
    below: int = 7
    gradient: bool = True  # whether to compare gradients: off where the op has none


class MatmulKernels(NamedTuple):
    """What TensorFlow multiplies matrices with on CPUs.

    Attributes:
      threads: the number of threads that share a product.
      onednn: oneDNN's kernel as a function of (a, b, flip_a, flip_b); None where it
        cannot be asked for by name.
      all_onednn: whether TensorFlow has oneDNN compute all products by itself.
    """

    threads: int
    onednn: Callable[[Any, Any, bool, bool], Any] | None = None
    all_onednn: bool = False


class LocalContext(Protocol):
    """Where `local` runs, as seen by one device: sizes and offsets of its shards.

    Sizes are Python ints. Offsets are scalar int32 tensors, since a segment is traced
    once for all devices: no Python `if` on them.
    """

    inputs: tuple[Shape, ...]  # local shapes, as this device sees them
    outputs: tuple[Shape, ...]
    compiled: bool  # whether XLA compiles it: rarely of interest

    @property
    def matmul_kernels(self) -> MatmulKernels | None:
        """What multiplies matrices here; None: nothing that
        `ops/linear/matmul_kernels.py` knows."""

    @property
    def kernels_refuse(self) -> bool:
        """Whether TensorFlow's kernels refuse numbers of elements that are too large:
        on CPUs.
        """

    def local_size(self, factor: str) -> int:
        """Returns the elements of this shard along a factor."""

    def global_size(self, factor: str) -> int:
        """Returns the elements of all shards together along a factor."""

    def num_shards(self, factor: str) -> int:
        """Returns the number of shards: 1 where the factor is not sharded."""

    def shard_index(self, factor: str) -> Any:
        """Returns which shard this is; the Python int 0 where the factor is not
        sharded.
        """

    def shard_offset(self, factor: str) -> Any:
        """Returns the global index of this shard's first element; the Python int 0
        where the factor is not sharded.
        """

    def axis(self, i: int, dim: str) -> int:
        """Returns the position of a name among the dimensions of input i."""

    def window(self, i: int, dim: str, x: Any) -> Any:
        """Returns input i with exactly its window's elements of `dim`, wherever they
        had to come from.
        """

    def optimization_barrier(self, x: Any) -> Any:
        """Returns x, which XLA does not merge with what is made of it."""


class Op(Frozen):
    """Base class of every op: what all ops say.

    An op derives from it, or from one of the kinds in `op_kinds`, which say more. It is
    a frozen dataclass, and no op derives from it in turn.
    """

    samples: ClassVar[tuple[Sample, ...]] = ()
    # May partial sums flow through? "each": one partial input at a time; "joint": all
    # at once. May be a property where it depends on an attribute.
    linearity: ClassVar[Literal["each", "joint"] | None] = None
    # Whether `local` makes many TensorFlow ops: it is traced once for all equal nodes
    # of a program.
    share_trace: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        refuse_earlier_form(cls, {n for base in cls.__mro__[1:] for n in vars(base)})

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        """Returns shape and data type of each output. Raises ShapeError or
        DTypeError.
        """
        raise NotImplementedError

    def role(self, factor: str) -> Role:
        """Returns what cutting `factor` does."""
        return Role.MAP

    def local(self, context: LocalContext, *xs: Any) -> tuple[Any, ...]:
        """Runs the TensorFlow ops of one device, as if there were no mesh."""
        raise NotImplementedError

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        """Returns the cotangent of each input, in named ops; None where there is none.

        With several outputs `dy` and `y` are tuples, and a missing cotangent is None.
        """
        raise NotImplementedError

    def workspace_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        """Returns what `local` holds for a while beside inputs and outputs of these
        local shapes.
        """
        return ()

    def flops(self, *xs: Spec) -> int:
        """Returns the floating-point operations on whole tensors; default: one per
        output element.
        """
        return sum(o.shape.size for o in self.output_specs(*xs))

    @property
    def display_name(self) -> str:
        """The name of the op as plans and errors print it."""
        return type(self).__name__.lower()
