"""Tensors with named dimensions, and the nodes that make them.

A recorded tensor is a promise; an eager one also holds a value on each position
(`sharded_value`):

    x = mtf.import_tensor(mesh, array, "batch;d_model")
    y = mtf.relu(x) * 2 + x
    y.numpy()                     # the whole tensor, from wherever its slices are
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
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
    """One application of an op. It never changes: see `recorder.replace`.

    Attributes:
      op: what is applied.
      inputs: the tensors that it is applied to.
      outputs: the tensors that it makes.
      region: changes of the mesh's layout.
      source: the user's line.
      primals: inside of a gradient rule, the tensors whose states it takes.
      recompute_group: nodes of one group are computed again for the backward pass.
      wait_for: it does not run before this tensor is there.
      stage: of a pipeline; None: where the inputs are.
      owner: the executor that recorded or ran it.
      serial: a number above those of all nodes before.
      gradient_rule: a gradient of a user's own, in place of the op's; it is that of several
        nodes, one for each result.
      result_index: which of the rule's results this is.
      path: the names of the modules around.
    """

    __slots__ = (
        "op",
        "inputs",
        "outputs",
        "_mesh",
        "region",
        "source",
        "primals",
        "recompute_group",
        "wait_for",
        "stage",
        "owner",
        "serial",
        "gradient_rule",
        "result_index",
        "path",
    )

    op: Op
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    region: Layout
    source: Source
    primals: tuple[Tensor, ...]
    recompute_group: Any
    wait_for: Tensor | None
    stage: int | None
    owner: Any
    serial: int
    gradient_rule: Any
    result_index: int
    path: tuple[str, ...]
    _mesh: Mesh | None

    def __init__(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        specs: Sequence[Spec],
        mesh: Mesh | None,
        source: Source,
        around: Context,
        owner: object,
        serial: int | None = None,
    ) -> None:
        primals = around.primals
        gradient_rule, result_index = around.gradient_rule or (None, 0)
        self._set(
            op=op,
            inputs=inputs,
            _mesh=mesh,
            region=around.region,
            source=source,
            primals=primals,
            recompute_group=around.recompute_group,
            wait_for=around.wait_for,
            stage=around.stage,
            owner=owner,
            serial=next(_serial) if serial is None else serial,
            gradient_rule=gradient_rule,
            result_index=result_index,
            path=primals[-1].node.path if primals else around.path,
        )
        self._set(outputs=tuple(Tensor(self, i, spec) for i, spec in enumerate(specs)))

    def _set(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"a node's {name} does not change.")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"a node's {name} does not change.")

    def changed(self, **changes: Any) -> Node:
        """Returns a node that differs in some attributes, with the same number."""
        node = object.__new__(Node)
        node._set(**{name: getattr(self, name) for name in Node.__slots__} | changes)
        return node

    def without_inputs(self) -> Node:
        """Returns a node with new outputs that does not hold the inputs."""
        node = self.changed(inputs=())
        node._set(outputs=tuple(Tensor(node, y.index, y.spec) for y in self.outputs))
        return node

    def extended(self, op: Op, specs: Sequence[Spec]) -> Node:
        """Returns a node with another op, which makes more: its outputs are those of
        this node, and new ones.
        """
        node = self.changed(op=op)
        extra = enumerate(specs, start=len(self.outputs))
        node._set(outputs=(*self.outputs, *(Tensor(node, i, s) for i, s in extra)))
        return node

    @property
    def mesh(self) -> Mesh | None:
        """Its mesh: where none was known, that of the function around, once it is."""
        return self.owner.mesh if self._mesh is None and self.owner else self._mesh

    @property
    def layout(self) -> Layout:
        """The rules for what it makes."""
        assert self.mesh is not None
        return self.mesh.layout_in(self.region)


class ShardedValue(NamedTuple):
    """The value of an eager tensor: where it lies, and a TensorFlow tensor for each
    position.
    """

    placement: Placement
    values: list[Any]


class Tensor(Operators):
    """A tensor with named dimensions on a mesh."""

    __slots__ = ("node", "index", "spec", "sharded_value", "__weakref__")
    __array_priority__ = 100  # numpy leaves `array * tensor` to the tensor

    def __init__(self, node: Node, index: int, spec: Spec) -> None:
        self.node = node
        self.index = index
        self.spec = spec
        self.sharded_value: ShardedValue | None = None

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
        if self.sharded_value is None:
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
        if self.sharded_value is None:
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
        if self.sharded_value is None:
            return f"<mtf.Tensor {what}>"
        value = (
            f"\n{self.numpy()}" if self.sharded_value.values else ""
        )  # none on an abstract mesh
        return f"<mtf.Tensor {what} {self.sharded_value.placement}{value}>"

    __hash__ = object.__hash__


def tensor_of_value(
    spec: Spec,
    held: ShardedValue,
    mesh: Mesh,
    gradient_rule: tuple[Any, int] | None = None,
    owner: object = None,
) -> Tensor:
    """Returns an eager tensor that no op made: the result of a function, or its
    argument.

    Args:
      spec: its shape and data type.
      held: its value.
      mesh: where that lies.
      gradient_rule: what its gradients are by, and which of the rule's results it is.
      owner: the executor in whose gradients it takes part.
    """
    around = Context(gradient_rule=gradient_rule)
    node = Node(Op(), (), (), mesh, Source("function", "", 0), around, owner)
    # The node does not refer to the tensor, which goes when it is unused.
    tensor = Tensor(node, 0, spec)
    tensor.sharded_value = held
    return tensor
