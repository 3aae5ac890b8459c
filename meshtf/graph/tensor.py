"""Tensors with named dimensions, and the nodes that make them.

A recorded tensor is a promise; an eager one also holds a value on each position
(`held`):

    x = mtf.import_tensor(mesh, array, "batch;d_model")
    y = mtf.relu(x) * 2 + x
    y.numpy()                     # the whole tensor, from wherever its slices are
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from meshtf.errors import NoValueError, explain_error
from meshtf.graph.context import Context
from meshtf.graph.op import Op, Spec
from meshtf.graph.operators import OPERATORS, Operators
from meshtf.mesh import Layout, Mesh, Placement
from meshtf.names import Shape, Source

_serial = itertools.count()


def next_serial() -> int:
    """Returns a number above those of all nodes so far, and below those of all
    to come.
    """
    return next(_serial)


class Node:
    """One application of an op."""

    __slots__ = (
        "op",
        "inputs",
        "outputs",
        "mesh",
        "region",
        "source",
        "primals",
        "group",
        "after",
        "stage",
        "owner",
        "serial",
        "rule",
        "path",
    )

    def __init__(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        mesh: Mesh | None,
        source: Source,
        around: Context,
        owner: object,
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.outputs: tuple[Tensor, ...] = ()
        self.mesh = mesh
        self.source = source
        self.region = around.region  # changes of the mesh's layout
        self.primals: tuple[Tensor, ...] = (
            around.primals
        )  # of a gradient rule: takes their states
        self.group = (
            around.group
        )  # nodes of one group are computed again for the backward pass
        self.after: Tensor | None = (
            around.after
        )  # does not run before this tensor is there
        self.stage = around.stage  # of a pipeline; None: where the inputs are
        self.owner = owner  # the executor that ran it
        self.path: tuple[str, ...] = (
            self.primals[-1].node.path
            if self.primals  # of modules
            else around.path
        )
        self.serial = next(_serial)
        self.rule: Any = None  # a gradient of a user's own, in place of the op's

    @property
    def layout(self) -> Layout:
        """The rules for what it makes."""
        assert self.mesh is not None
        return self.mesh.layout_in(self.region)


class Held(NamedTuple):
    """The value of an eager tensor: where it lies, and a TensorFlow tensor for each
    position.
    """

    placement: Placement
    values: list[Any]


class Tensor(Operators):
    """A tensor with named dimensions on a mesh."""

    __slots__ = ("node", "index", "spec", "held", "__weakref__")
    __array_priority__ = 100  # numpy leaves `array * tensor` to the tensor

    def __init__(self, node: Node, index: int, spec: Spec) -> None:
        self.node = node
        self.index = index
        self.spec = spec
        self.held: Held | None = None

    @property
    def shape(self) -> Shape:
        """The named shape."""
        return self.spec.shape

    @property
    def dtype(self) -> str:
        """The name of the data type, such as "float32"."""
        return self.spec.dtype

    @property
    def mesh(self) -> Mesh | None:
        """The mesh; None while the function being traced has met no tensor that knows
        it.
        """
        return self.node.mesh

    def numpy(self) -> Any:
        """Returns the whole tensor as a numpy array (eager only)."""
        if self.held is None:
            raise NoValueError(
                explain_error(
                    "a recorded tensor has no value yet.",
                    tensor=repr(self),
                    **{"made by": self.node.source},
                    way_out="Return it from the mtf.function, or run the code outside "
                    "of it to see values.",
                )
            )
        return OPERATORS["export"](self).numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """Keeps TensorFlow from dropping the names: `tf_array * tensor` ends in an
        error of meshtf.
        """
        raise TypeError(
            f"{self.dtype} {self.shape!r} has named dimensions: TensorFlow ops take "
            "x.numpy(); or write mtf.slicewise."
        )

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __bool__(self) -> bool:
        if self.held is None:
            raise NoValueError(
                explain_error(
                    "Python needs the truth of a recorded tensor, which has no value "
                    "yet.",
                    tensor=repr(self),
                    **{"made by": self.node.source},
                    way_out="Use mtf.where to choose between tensors, mtf.cond between "
                    "computations, mtf.while_loop to go on while it holds; or decide "
                    "outside of the function.",
                )
            )
        return bool(self.numpy())

    def __iter__(self) -> Any:
        raise TypeError(
            "a tensor with named dimensions is not iterated: use mtf.unstack(x, dim)."
        )

    def __eq__(self, other: Any) -> Any:
        return OPERATORS["equal"](self, other)

    def __ne__(self, other: Any) -> Any:
        return OPERATORS["not_equal"](self, other)

    def __repr__(self) -> str:
        what = f"{self.dtype} {self.shape!r}"
        if self.held is None:
            return f"<mtf.Tensor {what}>"
        value = (
            f"\n{self.numpy()}" if self.held.values else ""
        )  # none on an abstract mesh
        return f"<mtf.Tensor {what} {self.held.placement}{value}>"

    __hash__ = object.__hash__


def tensor_of_value(spec: Spec, held: Held, mesh: Mesh) -> Tensor:
    """Returns an eager tensor that no op made: the result of a function, or its
    argument.
    """
    node = Node(Op(), (), mesh, Source("function", "", 0), Context(), None)
    # The node does not refer to the tensor, which goes when it is unused.
    tensor = Tensor(node, 0, spec)
    tensor.held = held
    return tensor
