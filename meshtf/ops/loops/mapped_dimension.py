"""Whether recorded ops map along a dimension: whether each entry of their results depends on one
entry of what they take, so that a batch may be computed in parts.

    mapped = MappedDimension(Dimension("batch", 8), arguments=stores)
    mapped.follow(nodes)                   # PlanError: an op does not map along it
    mapped.name_in(result)                 # the dimension in a result, "batch"; None: it lacks it

The op contract says so: the role of the dimension is MAP in each op on the way, and no op has it
among its windows, its statistics or its attributes. A softmax along features passes; batch
normalization in training does not. With `reduces=True`, results may also be sums or means over
the dimension, and what is linear in them: those of the batch are sums or means of those of its
parts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NoReturn

from meshtf.errors import PlanError, explain_error
from meshtf.graph import (
    ConstantOp,
    Node,
    Op,
    OpWithStatistics,
    ReadOp,
    Role,
    Store,
    Tensor,
)
from meshtf.graph.control_flow.body import Body
from meshtf.graph.control_flow.branch import Branch
from meshtf.graph.control_flow.call import Call
from meshtf.graph.control_flow.loop import Loop
from meshtf.graph.op_kinds import ControlFlowOp, factor_of, window_of
from meshtf.graph.recorder import latest_version
from meshtf.names import Dimension
from meshtf.ops.elementwise.binary_op import Binary
from meshtf.ops.loops.batch_weights import degree_after, reduction_of_degree
from meshtf.ops.random.mask_words import MaskWords
from meshtf.ops.random.random_ops import Random
from meshtf.ops.reductions.broadcast import Broadcast
from meshtf.ops.reductions.reduce import Reduce
from meshtf.ops.shapes.reshape import Reshape


class MappedDimension:
    """The name that a dimension has in each tensor of a function that maps along it.

    Args:
      dim: the dimension of the arguments.
      arguments: the stores of the arguments.
      way_out: what errors say of an op that does not map; "": that of an export.
      draws: whether each part has random numbers of its own; if not, they are refused.
      reduces: whether sums and means over the dimension are followed; if not, they are refused.
    """

    def __init__(
        self,
        dim: Dimension,
        arguments: Iterable[Store],
        way_out: str = "",
        draws: bool = False,
        reduces: bool = False,
    ) -> None:
        self.dim = dim
        self._sources: tuple[type[Op], ...] = (ConstantOp, Broadcast)
        if draws:
            self._sources += (Random, MaskWords)
        self._way_out = way_out
        self._reduces = reduces
        self.arguments = set(arguments)
        # {(node, index of the output): the name}, for the tensors that have the dimension
        self._names: dict[tuple[Node, int], str] = {}
        # The same key: "sum" or "mean", for what is reduced over the dimension.
        self._reductions: dict[tuple[Node, int], str] = {}
        # The same key: the power of the weight of the batch, if it is not 0.
        self._degrees: dict[tuple[Node, int], int] = {}

    def follow(self, nodes: Iterable[Node]) -> None:
        """Finds the dimension in the outputs of nodes.

        Args:
          nodes: recorded ops, in order.

        Raises:
          PlanError: an op does not map along the dimension. The error has its line.
        """
        for node in nodes:
            self._follow_node(node)
            if any(self.degree_in(x) for x in node.inputs):
                self._follow_degrees(node)

    def _follow_node(self, node: Node) -> None:
        """Finds the dimension, and what is reduced over it, in the outputs of a node."""
        if isinstance(node.op, ControlFlowOp):
            self._follow_bodies(node)
        elif node.inputs and _keeps(node.op, self.name_in(node.inputs[0])):
            self._set(node.outputs[0], self.name_in(node.inputs[0]))
        elif any(self.reduction_in(x) for x in node.inputs):
            self._follow_reduced(node)
        elif any(self.name_in(x) for x in node.inputs):
            self._follow_op(node)
        else:
            self._follow_source(node)

    def _follow_degrees(self, node: Node) -> None:
        """Finds the power of the weight of the batch in the outputs of a node."""
        if isinstance(node.op, ControlFlowOp):
            return  # found in its body
        degree = degree_after(node.op, [self.degree_in(x) for x in node.inputs])
        if degree is None:
            self._refuse(node)
        for y in node.outputs:
            kind = self.reduction_in(y)
            if kind is None:
                self._degrees[_key(y)] = degree
                continue
            reduction = reduction_of_degree(kind, degree)
            if reduction is None:
                self._refuse(node)
            self._reductions[_key(y)] = reduction

    def begin(self, x: Tensor, name: str) -> None:
        """Says that a tensor has the dimension under a name: an argument or a capture."""
        self._set(x, name)

    def begin_sum(self, x: Tensor) -> None:
        """Says that a tensor is a sum over the dimension: a cotangent, to which each part adds."""
        self._reductions[_key(x)] = "sum"

    def begin_weight(self, x: Tensor) -> None:
        """Says that a tensor is the mean weight of the parts of the batch."""
        self._degrees[_key(x)] = 1

    def degree_in(self, x: Tensor) -> int:
        """Returns the power of the weight of the batch in a tensor: see `batch_weights`."""
        return self._degrees.get(_key(x), 0)

    def name_in(self, x: Tensor) -> str | None:
        """Returns the name of the dimension in a tensor; None: the tensor lacks it."""
        return self._names.get(_key(x))

    def reduction_in(self, x: Tensor) -> str | None:
        """Returns "sum" or "mean" if a tensor is one over the dimension; None: it is none."""
        return self._reductions.get(_key(x))

    def _follow_op(self, node: Node) -> None:
        """Finds the dimension in the outputs of an op whose inputs have it."""
        op = node.op
        factors = set()
        for i, x in enumerate(node.inputs):
            name = self.name_in(x)
            if name is not None:
                factors.add(factor_of(op, name))
                if window_of(op, i, name) is not None or _has_attribute(op, name):
                    self._refuse(node)
        factor, *other_factors = factors
        statistics_dims: tuple[str, ...] = ()
        if isinstance(op, OpWithStatistics):
            statistics_dims = op.statistics_dims()
        role = op.role(factor)
        follows = role is Role.MAP or (self._reduces and role is Role.SUM)
        if factor in statistics_dims or _has_attribute(op, factor):
            follows = False
        if other_factors or not follows:
            self._refuse(node)
        for x in node.inputs:
            has_other = any(factor_of(op, name) == factor for name in x.shape.names)
            if self.name_in(x) is None and has_other:
                self._refuse(node)
        for y in node.outputs:
            if Dimension(factor, self.dim.size) in tuple(y.shape):
                self._set(y, factor)
            elif role is Role.SUM:
                is_mean = isinstance(op, Reduce) and op.kind == "mean"
                self._reductions[_key(y)] = "mean" if is_mean else "sum"
            else:
                self._refuse(node)

    def _follow_reduced(self, node: Node) -> None:
        """Finds sums and means in the outputs of an op of such: the op must be linear in them."""
        kinds = [self.reduction_in(x) for x in node.inputs]
        has_batch = any(self.name_in(x) for x in node.inputs)
        reductions = [kind for kind in kinds if kind is not None]
        # The mean of (mean + constant) over the parts is that of the batch, but not of sums.
        jointly = set(kinds) <= {"sum"} or set(kinds) <= {"mean", None}
        linearity = node.op.linearity
        is_linear = linearity == "joint" and jointly
        if isinstance(node.op, Binary) and node.op.fn in ("divide", "divide_no_nan"):
            is_linear = kinds[1] is None  # it is linear in what is divided
        elif linearity in ("each", "first", "sparse"):
            indices = [i for i, kind in enumerate(kinds) if kind is not None]
            is_linear = len(indices) == 1 if linearity == "each" else indices == [0]
        if has_batch or not is_linear:
            self._refuse(node)
        for y in node.outputs:
            self._reductions[_key(y)] = reductions[0]

    def _follow_source(self, node: Node) -> None:
        """Finds the dimension in outputs that have it although no input has: a constant does,
        but not random numbers, the index in the batch, or a variable.
        """
        for y in node.outputs:
            if self.dim.name in y.shape.names:
                op = node.op
                is_argument = isinstance(op, ReadOp) and op.store in self.arguments
                if not is_argument and not isinstance(op, self._sources):
                    self._refuse(node)
                self._set(y, self.dim.name)

    def _follow_bodies(self, node: Node) -> None:
        """Finds the dimension in the bodies of a loop, branch or call, and in its outputs."""
        op = node.op
        results: Sequence[Tensor]
        if isinstance(op, Call):
            results = self._follow_body(op.body, op.body.arguments, node.inputs)
        elif isinstance(op, Branch):
            captures = op.captures(node.inputs)
            for body, values in zip(op.bodies, captures):
                results = self._follow_body(body, (), values)
            both = zip(op.then.results, op.otherwise.results)
            if any(self._roles(x) != self._roles(y) for x, y in both):
                self._refuse(node)
        else:
            assert isinstance(op, Loop)
            results = self._follow_loop(node, op)
        for y, result in zip(node.outputs, results):
            self._copy(result, to=y)

    def _follow_loop(self, node: Node, op: Loop) -> Sequence[Tensor]:
        """Finds the dimension in the bodies of a loop; returns the results of an iteration."""
        carries, scanned, captures = op.split_inputs(node.inputs)
        _index, *arguments = op.body.arguments
        scanned_names = {self.name_in(x) for x in scanned}
        if op.dim is not None and op.dim.name in scanned_names:
            self._refuse(node)
        num_captures = len(op.body.captures)
        values = (*carries, *scanned, *captures[:num_captures])
        results = self._follow_body(op.body, arguments, values)
        for argument, result in zip(arguments[: op.num_carries], results):
            if self._roles(argument) != self._roles(result):
                self._refuse(node)
        if op.condition is not None and not op.may_run_on:
            _index, *carried = op.condition.arguments
            values = (*carries, *captures[num_captures:])
            for result in self._follow_body(op.condition, carried, values):
                if any(self._roles(result)):
                    self._refuse(node)
        return results

    def _follow_body(
        self, body: Body, arguments: Sequence[Tensor], values: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Finds the dimension in a body, given the values of its arguments and captures;
        returns its results.
        """
        for x, value in zip((*arguments, *body.captures), values):
            self._copy(value, to=x)
        self.follow(body.nodes)
        return body.results

    def _roles(self, x: Tensor) -> tuple[str | None, str | None]:
        """Returns the name of the dimension in a tensor, and which reduction it is."""
        return (self.name_in(x), self.reduction_in(x))

    def _copy(self, x: Tensor, to: Tensor) -> None:
        """Says of a tensor what is known of x, whose value it has."""
        self._set(to, self.name_in(x))
        reduction = self.reduction_in(x)
        if reduction is not None:
            self._reductions[_key(to)] = reduction
        if self.degree_in(x):
            self._degrees[_key(to)] = self.degree_in(x)

    def _set(self, x: Tensor, name: str | None) -> None:
        """Sets the name of the dimension in a tensor."""
        if name is not None:
            self._names[_key(x)] = name

    def _refuse(self, node: Node) -> NoReturn:
        """Raises PlanError: a node does not map along the dimension."""
        raise PlanError(
            explain_error(
                f"{node.op.display_name} does not map along {self.dim.name!r}, so the batch "
                "cannot be computed in parts.",
                inputs=", ".join(repr(x.shape) for x in node.inputs) or "none",
                outputs=", ".join(repr(y.shape) for y in node.outputs),
                source=node.source,
                way_out=self._way_out
                or f"Leave any_size={self.dim.name!r} out, and export a signature for "
                "each size; or let each entry of the result depend on one entry.",
            )
        )


def _key(x: Tensor) -> tuple[Node, int]:
    """Returns what a tensor is found by, also after its node was replaced."""
    return (latest_version(x.node), x.index)


def _keeps(op: Op, dim: str | None) -> bool:
    """Returns whether an op is a reshape in which a dimension stays where it is: as many elements
    are before it. One with one element has no role in the op, since no axis shards it.
    """
    if dim is None or not isinstance(op, Reshape):
        return False
    if dim not in op.old or dim not in op.new:
        return False
    before = [
        math.prod(shape.sizes[: shape.names.index(dim)]) for shape in (op.old, op.new)
    ]
    return op.old[dim] == op.new[dim] and before[0] == before[1]


def _has_attribute(op: Op, dim: str) -> bool:
    """Returns whether a dimension is an attribute of an op: the op works along it, such as a
    slice or the index of an entry.
    """
    values = vars(op).values()
    names = [x.name if isinstance(x, Dimension) else x for x in values]
    return dim in [name for name in names if isinstance(name, str)]
