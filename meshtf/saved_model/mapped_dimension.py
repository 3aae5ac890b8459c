"""Whether a recorded function maps along a dimension: whether each entry of its results depends
on one entry of its arguments, so that a batch may be computed in chunks.

    axes = batch_axes("batch", recording, ["x"], ["y"])    # PlanError: an op does not map

The op contract says so: the role of the dimension is MAP in each op on the way, and no op has it
among its windows, its statistics or its attributes. A softmax along features passes; the mean
of a batch, or batch normalization in training, does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.function.recording import Recording
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
from meshtf.ops.random.random_ops import Random
from meshtf.ops.reductions.broadcast import Broadcast
from meshtf.ops.shapes.reshape import Reshape
from meshtf.saved_model.sizes import BatchAxes


class MappedDimension:
    """The name that a dimension has in each tensor of a function that maps along it.

    Args:
      dim: the dimension of the arguments.
      arguments: the stores of the arguments.
      way_out: what errors say of an op that does not map; "": that of an export.
      draws: whether each chunk has random numbers of its own; if not, they are refused.
    """

    def __init__(
        self,
        dim: Dimension,
        arguments: Iterable[Store],
        way_out: str = "",
        draws: bool = False,
    ) -> None:
        self.dim = dim
        self._sources: tuple[type[Op], ...] = (ConstantOp, Broadcast)
        if draws:
            self._sources += (Random,)
        self._way_out = way_out
        self.arguments = set(arguments)
        # {(node, index of the output): the name}, for the tensors that have the dimension
        self._names: dict[tuple[Node, int], str] = {}

    def follow(self, nodes: Iterable[Node]) -> None:
        """Finds the dimension in the outputs of nodes.

        Args:
          nodes: recorded ops, in order.

        Raises:
          PlanError: an op does not map along the dimension. The error has its line.
        """
        for node in nodes:
            if isinstance(node.op, ControlFlowOp):
                self._follow_bodies(node)
            elif node.inputs and _keeps(node.op, self._name(node.inputs[0])):
                self._set(node.outputs[0], self._name(node.inputs[0]))
            elif any(self._name(x) for x in node.inputs):
                self._follow_op(node)
            else:
                self._follow_source(node)

    def axis_of(self, result: Tensor, name: str) -> int:
        """Returns the axis of the dimension in a result of the function, called `name`.

        Raises:
          PlanError: the result lacks it.
        """
        dim = self._name(result)
        if dim is None:
            raise PlanError(
                explain_error(
                    f"the result {name!r} has no {self.dim.name!r}, so it is not made of the "
                    "results of chunks.",
                    result=repr(result.shape),
                    source=result.node.source,
                    way_out=self._way_out or "Return it from another signature.",
                )
            )
        return result.shape.names.index(dim)

    def _follow_op(self, node: Node) -> None:
        """Finds the dimension in the outputs of an op whose inputs have it."""
        op = node.op
        factors = set()
        for i, x in enumerate(node.inputs):
            name = self._name(x)
            if name is not None:
                factors.add(factor_of(op, name))
                if window_of(op, i, name) is not None or _has_attribute(op, name):
                    self._refuse(node)
        factor, *other_factors = factors
        statistics_dims: tuple[str, ...] = ()
        if isinstance(op, OpWithStatistics):
            statistics_dims = op.statistics_dims()
        maps = op.role(factor) is Role.MAP and factor not in statistics_dims
        if other_factors or not maps or _has_attribute(op, factor):
            self._refuse(node)
        for x in node.inputs:
            has_other = any(factor_of(op, name) == factor for name in x.shape.names)
            if self._name(x) is None and has_other:
                self._refuse(node)
        for y in node.outputs:
            if Dimension(factor, self.dim.size) not in tuple(y.shape):
                self._refuse(node)
            self._set(y, factor)

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
            if any(self._name(x) != self._name(y) for x, y in both):
                self._refuse(node)
        else:
            assert isinstance(op, Loop)
            results = self._follow_loop(node, op)
        for y, result in zip(node.outputs, results):
            self._set(y, self._name(result))

    def _follow_loop(self, node: Node, op: Loop) -> Sequence[Tensor]:
        """Finds the dimension in the bodies of a loop; returns the results of an iteration."""
        carries, scanned, captures = op.split_inputs(node.inputs)
        _index, *arguments = op.body.arguments
        scanned_names = {self._name(x) for x in scanned}
        if op.dim is not None and op.dim.name in scanned_names:
            self._refuse(node)
        num_captures = len(op.body.captures)
        values = (*carries, *scanned, *captures[:num_captures])
        results = self._follow_body(op.body, arguments, values)
        for argument, result in zip(arguments[: op.num_carries], results):
            if self._name(argument) != self._name(result):
                self._refuse(node)
        if op.condition is not None and not op.may_run_on:
            _index, *carried = op.condition.arguments
            values = (*carries, *captures[num_captures:])
            for result in self._follow_body(op.condition, carried, values):
                if self._name(result) is not None:
                    self._refuse(node)
        return results

    def _follow_body(
        self, body: Body, arguments: Sequence[Tensor], values: Sequence[Tensor]
    ) -> Sequence[Tensor]:
        """Finds the dimension in a body, given the values of its arguments and captures;
        returns its results.
        """
        for x, value in zip((*arguments, *body.captures), values):
            self._set(x, self._name(value))
        self.follow(body.nodes)
        return body.results

    def _name(self, x: Tensor) -> str | None:
        """Returns the name of the dimension in a tensor; None: the tensor lacks it."""
        return self._names.get((latest_version(x.node), x.index))

    def _set(self, x: Tensor, name: str | None) -> None:
        """Sets the name of the dimension in a tensor."""
        if name is not None:
            self._names[latest_version(x.node), x.index] = name

    def _refuse(self, node: Node) -> None:
        """Raises PlanError: a node does not map along the dimension."""
        raise PlanError(
            explain_error(
                f"{node.op.display_name} does not map along {self.dim.name!r}, so the "
                "function cannot be computed in chunks of any size.",
                inputs=", ".join(repr(x.shape) for x in node.inputs) or "none",
                outputs=", ".join(repr(y.shape) for y in node.outputs),
                source=node.source,
                way_out=self._way_out
                or f"Leave any_size={self.dim.name!r} out, and export a signature for "
                "each size; or let each entry of the result depend on one entry.",
            )
        )


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


def batch_axes(
    dim_name: str,
    recording: Recording,
    input_names: Sequence[str],
    output_names: Sequence[str],
    way_out: str = "",
    draws: bool = False,
) -> BatchAxes:
    """Returns the axes of a dimension along which a function maps.

    Args:
      dim_name: the name of the dimension.
      recording: the recorded function.
      input_names: the name of each argument.
      output_names: the name of each result.
      way_out: what errors say of an op that does not map; "": that of an export.
      draws: whether each chunk has random numbers of its own; if not, they are refused.

    Raises:
      PlanError: an op does not map along the dimension, or a result lacks it.
      ShapeError: no argument has the dimension, or it has no entries.
    """
    recorded = recording.recorded
    shapes = [store.spec.shape for store in recording.arguments]
    sizes = {shape[dim_name] for shape in shapes if dim_name in shape.names}
    if not sizes or 0 in sizes:
        raise ShapeError(
            explain_error(
                f"no argument has entries along {dim_name!r}, which any_size names.",
                arguments=", ".join(map(repr, shapes)) or "none",
                way_out='Name a dimension of an argument: any_size="batch".',
            )
        )
    (size,) = sizes  # one function has one size of each name
    dim = Dimension(dim_name, size)
    mapped = MappedDimension(dim, recording.arguments, way_out, draws)
    mapped.follow(recorded.nodes)
    inputs = {}
    for name, shape in zip(input_names, shapes):
        if dim_name in shape.names:
            inputs[name] = shape.names.index(dim_name)
    outputs = {
        name: mapped.axis_of(y, name) for name, y in zip(output_names, recorded.results)
    }
    return BatchAxes(inputs, outputs, chunk=size)
