"""Tensors with named dimensions, and the nodes whose outputs they are.

A recorded tensor is symbolic. An eager one also has a value on each mesh position
(`sharded_value`):

    x = mtf.asarray(mesh, array, "batch;d_model")
    y = mtf.relu(x) * 2 + x
    y.numpy()                     # the global array, gathered from all shards
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from meshtf.display import html_placement, html_text
from meshtf.errors import ArgumentError, NoValueError, explain_error
from meshtf.graph.context import Context, GradientRule, current
from meshtf.graph.op import Op, Spec
from meshtf.graph.operators import OPERATORS, Operand, Operators, check_scalar
from meshtf.mesh import Layout, Mesh, Placement
from meshtf.names import Shape, Source

_serial = itertools.count()


def next_serial() -> int:
    """Returns a serial number, which is larger than those of all earlier nodes."""
    return next(_serial)


class Node:
    """One application of an op. A node never changes; `Graph.replace` makes a new one.

    Attributes:
      op: the op that is applied.
      inputs: the tensors that the op is applied to.
      outputs: the tensors that the op computes.
      region: the layout changes of the enclosing `with mtf.layout(...)` blocks.
      source: the user's line that applied the op.
      primals: in a gradient rule, the tensors whose placements the outputs take; empty in
        the forward pass.
      recompute_group: the nodes of a call of `mtf.recompute`, which the backward pass
        recomputes; None outside of such a call.
      wait_for: a control dependency: the node does not run before this tensor exists.
      stage: the pipeline stage; None: the stage of the inputs.
      owner: the executor that recorded or ran the node.
      serial: a number that increases from node to node.
      gradient_rule: the custom gradient rule of the function whose result the node
        computes; None: the op's own rule. All results of a function share one rule.
      result_index: the index of the output among the results of that function.
      path: the names of the enclosing modules.
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
    gradient_rule: GradientRule | None
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
        context: Context,
        owner: object,
        serial: int | None = None,
    ) -> None:
        primals = context.primals
        gradient_rule, result_index = context.gradient_rule or (None, 0)
        self._set(
            op=op,
            inputs=inputs,
            _mesh=mesh,
            region=context.region,
            source=source,
            primals=primals,
            recompute_group=context.recompute_group,
            wait_for=context.wait_for,
            stage=context.stage,
            owner=owner,
            serial=next(_serial) if serial is None else serial,
            gradient_rule=gradient_rule,
            result_index=result_index,
            path=primals[-1].node.path if primals else context.path,
            outputs=tuple(Tensor(self, i, spec) for i, spec in enumerate(specs)),
        )

    def _set(self, **attributes: Any) -> None:
        """Sets attributes in spite of `__setattr__`, for constructors."""
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"a node's {name} does not change.")

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"a node's {name} does not change.")

    def copy_with(self, **changes: Any) -> Node:
        """Returns a copy with other values of attributes, and the same serial number."""
        node = object.__new__(Node)
        node._set(**{name: getattr(self, name) for name in Node.__slots__} | changes)
        return node

    def with_inputs(self, inputs: Sequence[Tensor], specs: Sequence[Spec] = ()) -> Node:
        """Returns a copy with new outputs, which is applied to other tensors; `specs`: those of
        the outputs, if they differ.
        """
        node = self.copy_with(inputs=tuple(inputs))
        specs = specs or [y.spec for y in self.outputs]
        node._set(outputs=tuple(Tensor(node, i, spec) for i, spec in enumerate(specs)))
        return node

    def with_extra_outputs(self, op: Op, specs: Sequence[Spec]) -> Node:
        """Returns a copy with another op, which has additional outputs.

        Args:
          op: computes the outputs of this node, followed by the additional outputs.
          specs: the specs of the additional outputs.
        """
        node = self.copy_with(op=op)
        start = len(self.outputs)
        extra = [Tensor(node, start + i, spec) for i, spec in enumerate(specs)]
        node._set(outputs=(*self.outputs, *extra))
        return node

    @property
    def mesh(self) -> Mesh | None:
        """The mesh of the outputs. If it was unknown when the node was recorded: the mesh of
        the recorded function, which is None until it is known.
        """
        if self._mesh is None and self.owner:
            mesh: Mesh | None = self.owner.mesh
            return mesh
        return self._mesh

    @property
    def layout(self) -> Layout:
        """The layout of the outputs."""
        assert self.mesh is not None
        return self.mesh.layout_in(self.region)


class ShardedValue(NamedTuple):
    """The value of an eager tensor.

    Attributes:
      placement: the axes that shard each dimension, those of partial results, and the stage.
      values: the shard of each mesh position, as a TensorFlow tensor; empty on an abstract
        mesh.
    """

    placement: Placement
    values: Sequence[Any]

    @property
    def is_whole(self) -> bool:
        """Whether each device that has a shard has all of the tensor."""
        return not self.placement.shards and not self.placement.partial


class Tensor(Operators["Tensor"]):
    """A tensor with named dimensions on a mesh.

    Besides arithmetic and comparisons it has NumPy's usual methods, by name:

        x["length", 0:8]                   # a slice: see `Operators.__getitem__`
        x.sum("length;d_model")            # also mean, max, min
        x.astype("bfloat16"), x.ndim, x.shape["length"]
        x.numpy(), float(loss), f"{loss:.3f}", x.placement       # of an eager tensor

    It is output `index` of `node`. An eager tensor has a value, `sharded_value`, as well.
    """

    __slots__ = ("node", "index", "_spec", "sharded_value", "__weakref__")
    __array_priority__ = 100  # numpy leaves `array * tensor` to the tensor

    def __init__(self, node: Node, index: int, spec: Spec) -> None:
        self.node = node
        self.index = index
        self._spec = spec
        self.sharded_value: ShardedValue | None = None

    @property
    def spec(self) -> Spec:
        """The shape and the data type."""
        substitutes = current().substitutes
        if substitutes is None:
            return self._spec
        # In a stage of a pipeline, a microbatch stands for a tensor from outside.
        substitute: Tensor = substitutes.get(self, self)
        return substitute._spec

    @property
    def shape(self) -> Shape:
        """The named shape."""
        return self.spec.shape

    @property
    def dtype(self) -> str:
        """The name of the data type, such as "float32"."""
        return self._spec.dtype

    @property
    def mesh(self) -> Mesh | None:
        """The mesh; None while a function is recorded whose mesh no tensor or variable has
        determined yet.
        """
        return self.node.mesh

    @property
    def placement(self) -> Placement:
        """How the tensor lies on the mesh. Raises NoValueError for a recorded tensor: its
        placement is unknown until the function is planned.
        """
        if self.sharded_value is None:
            raise NoValueError(
                explain_error(
                    "a recorded tensor has no placement yet.",
                    tensor=repr(self),
                    **{"made by": self.node.source},
                    way_out="mtf.explain(function, *args) shows the placements of a "
                    "function.",
                )
            )
        return self.sharded_value.placement

    def numpy(self) -> Any:
        """Returns the global array. Raises NoValueError for a recorded tensor."""
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

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: Any) -> Tensor:
        """Returns the tensor itself, as its value never changes."""
        return self

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> Any:
        """Raises TypeError: TensorFlow would drop the names, as in `tf_array * tensor`."""
        raise TypeError(
            f"{self.dtype} {self.shape!r} has named dimensions, which TensorFlow's ops do not "
            'know: write the function of mtf, such as mtf.reduce_sum(x, "d"); or '
            "mtf.slicewise for a TensorFlow function; or pass x.numpy()."
        )

    def __bool__(self) -> bool:
        if self.sharded_value is None:
            raise NoValueError(
                explain_error(
                    "Python needs the boolean value of a recorded tensor, which has no value "
                    "yet.",
                    tensor=repr(self),
                    **{"made by": self.node.source},
                    way_out="Use mtf.where to choose between tensors, mtf.cond between "
                    "computations, mtf.while_loop to go on while it holds; or decide "
                    "outside of the function.",
                )
            )
        check_scalar(self, "bool(x)", "Write (x > 0).numpy().all(), or .any()")
        return bool(self.numpy())

    def __iter__(self) -> Any:
        raise TypeError(
            "a tensor with named dimensions is not iterated: use mtf.unstack(x, dim)."
        )

    def __len__(self) -> int:
        """Returns the size of the only dimension. Raises ArgumentError if there are several."""
        if self.ndim != 1:
            raise ArgumentError(
                explain_error(
                    "len(x) does not say which dimension it counts.",
                    tensor=repr(self.shape),
                    source=Source.of_caller(),
                    way_out='Write x.shape["batch"], or x.shape.size for all elements.',
                )
            )
        return self.shape.size

    def __format__(self, spec: str) -> str:
        """Returns a scalar with a format, such as f"{loss:.3f}"."""
        if not spec:
            return str(self)
        if self.ndim:
            raise ArgumentError(
                explain_error(
                    f"the format {spec!r} is for a scalar.",
                    tensor=repr(self.shape),
                    source=Source.of_caller(),
                    way_out="Reduce it first, as in x.mean(), or print x.numpy().",
                )
            )
        return format(self.numpy().item(), spec)

    def __eq__(self, other: Operand) -> Tensor:  # type: ignore[override]
        equal: Tensor = OPERATORS["equal"](self, other)
        return equal

    def __ne__(self, other: Operand) -> Tensor:  # type: ignore[override]
        not_equal: Tensor = OPERATORS["not_equal"](self, other)
        return not_equal

    def __repr__(self) -> str:
        spec = f"{self.dtype} {self.shape!r}"
        if self.sharded_value is None:
            return f"<mtf.Tensor {spec}>"
        placement = self.sharded_value.placement
        if not self.sharded_value.values:  # on an abstract mesh
            return f"<mtf.Tensor {spec} {placement}>"
        return f"<mtf.Tensor {spec} {placement}\n{self.numpy()}>"

    def _repr_html_(self) -> str:
        """Returns a drawing of the mesh, in which a colour is a shard, and the values."""
        if self.sharded_value is None or self.mesh is None:
            return html_text(repr(self))
        title = f"{self.dtype} {self.shape!r}"
        states = self.mesh.states(self.sharded_value.placement)
        sizes = dict(zip(self.shape.names, self.shape.sizes))
        drawing = html_placement(title, self.mesh.axes, states=states, sizes=sizes)
        return drawing + html_text(repr(self))

    __hash__ = object.__hash__


def tensor_of_value(
    spec: Spec,
    sharded_value: ShardedValue,
    mesh: Mesh,
    gradient_rule: tuple[GradientRule, int] | None = None,
    owner: object = None,
) -> Tensor:
    """Returns an eager tensor with a value, such as an argument or a result of a function.

    Args:
      spec: the shape and dtype of the tensor.
      sharded_value: the value of the tensor.
      mesh: the mesh of the tensor.
      gradient_rule: (custom gradient rule, index): the tensor is result `index` of the
        rule's function; None: the tensor has no gradients.
      owner: the executor whose gradients flow through the tensor.
    """
    node = Node(
        Op(),  # a placeholder, which never runs
        inputs=(),
        # No outputs: the node does not refer to the tensor, which is freed once unused.
        specs=(),
        mesh=mesh,
        source=Source(function="function", file="", line=0),
        context=Context(gradient_rule=gradient_rule),
        owner=owner,
    )
    tensor = Tensor(node, index=0, spec=spec)
    tensor.sharded_value = sharded_value
    return tensor
