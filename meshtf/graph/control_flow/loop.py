"""Loops: a body that is recorded once and runs many times, on all devices together.

An iteration takes the *carries* of the one before and an entry of each *scanned input*.
Its results are new carries, terms of *sums*, and entries of *stacked outputs*, as those
of `jax.lax.scan`. The gradient of a loop is a loop in the other direction: it scans the
residuals that the forward loop stacks, carries the cotangents of carries, and sums those
of captures. So a weight that every iteration uses has one sum, which is reduced over
devices once, after the loop.

    layers = Dimension("layers", 12)
    loop = Loop(body, num_carries=1, num_scanned=1, dim=layers)
    apply_all(loop, h, weights, *body.captures)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph.apply import apply_all
from meshtf.graph.autodiff.gradients import gradients_within
from meshtf.graph.context import context
from meshtf.graph.control_flow.body import (
    Body,
    check_body_inputs,
    invariant_nodes,
    outputs_of_nodes,
    record_on_body,
    required_nodes,
    used_tensors,
)
from meshtf.graph.op import Cotangents, Spec, Specs
from meshtf.graph.op_kinds import ControlFlowOp
from meshtf.graph.operators import OPERATORS
from meshtf.graph.recorder import latest
from meshtf.graph.tensor import Node, Source, Tensor
from meshtf.names import Dimension, Shape, accumulation_dtype, has_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Loop(ControlFlowOp):
    """Runs `body` for each entry of `dim`, or while `condition` holds.

    Inputs are the initial carries, the scanned inputs `[dim, ...]`, and the captures of
    body and condition. The body's arguments are the index of the iteration, the carries
    and an entry of each scanned input; its results are the next carries, terms of sums,
    and entries of stacked outputs. The condition's arguments are the index and the
    carries.
    """

    body: Body
    num_carries: int
    num_scanned: int = 0
    num_sums: int = 0
    dim: Dimension | None = None  # its size is the number of iterations
    reverse: bool = False  # whether to scan from the last entry to the first
    condition: Body | None = None  # of a while loop

    def output_specs(self, *xs: Spec) -> Specs:
        self._check_inputs(xs)
        specs = [result.spec for result in self.body.results]
        num_unstacked = self.num_carries + self.num_sums
        if self.dim is None:
            return tuple(specs[:num_unstacked])
        stacked = [stacked_spec(spec, self.dim) for spec in specs[num_unstacked:]]
        return (*specs[:num_unstacked], *stacked)

    def _check_inputs(self, xs: tuple[Spec, ...]) -> None:
        """Raises ShapeError if inputs differ from what the bodies were recorded for."""
        carries, scanned, captures = self.split_inputs(xs)
        entries: list[Spec] = []
        if self.dim is not None:
            dim = self.dim.name
            entries = [Spec(x.shape.without(dim), x.dtype) for x in scanned]
        formal = (*self.body.arguments[1:], *self.body.captures)
        if self.condition is not None:
            formal = (*formal, *self.condition.captures)
        check_body_inputs(formal, (*carries, *entries, *captures))
        check_body_inputs(self.body.results[: self.num_carries], carries)

    def split_inputs(
        self, xs: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Returns the initial carries, the scanned inputs and the captures."""
        end_of_scanned = self.num_carries + self.num_scanned
        return (
            xs[: self.num_carries],
            xs[self.num_carries : end_of_scanned],
            xs[end_of_scanned:],
        )

    def flops(self, *xs: Spec) -> int:
        if self.num_iterations is None:
            return self.body.flops
        return self.body.flops * self.num_iterations

    @property
    def num_iterations(self) -> int | None:
        """How often the body runs; None where only the run decides."""
        if self.dim is None:
            return None
        return self.dim.size

    @property
    def bodies(self) -> tuple[Body, ...]:
        if self.condition is None:
            return (self.body,)
        return (self.condition, self.body)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        ys = y if isinstance(y, tuple) else (y,)
        dys = dy if isinstance(dy, tuple) else (dy,)
        if self.condition is not None:
            raise no_gradient_of_while(ys[0].node.source)
        return _BackwardLoop(self, ys, xs).cotangents(dys)


def no_gradient_of_while(source: Source) -> PlanError:
    """Returns the error for the gradient of a while loop."""
    return PlanError(
        explain_error(
            "a while loop has no gradient: the number of its iterations is not known in advance.",
            **{"from": source},
            way_out="Use mtf.scan with a fixed number of iterations, or mtf.stop_gradient "
            "around it.",
        )
    )


def unused_dim_name(body: Body, name: str) -> str:
    """Returns `name` for the dimension that a loop scans, or "." + name if a tensor of
    the body has that dimension.

    The backward loop stacks tensors of the body along the dimension, so none of them may
    have it already.
    """
    used = set(_dim_names(body))
    while name in used:
        name = "." + name  # the prefix of names that ops make: users write no such name
    return name


def _dim_names(body: Body) -> Iterator[str]:
    """Yields the names of all dimensions in a body and in the bodies inside it."""
    tensors = [*body.arguments]
    for node in body.nodes:
        tensors += node.outputs
    for tensor in tensors:
        yield from tensor.shape.names
    for node in body.nodes:
        op = node.op
        if isinstance(op, Loop) and op.dim is not None:
            yield op.dim.name
        if isinstance(op, ControlFlowOp):
            for inner in op.bodies:
                yield from _dim_names(inner)


def stacked_spec(spec: Spec, dim: Dimension, source: Source | None = None) -> Spec:
    """Returns the spec `[dim, *spec.shape]` of a stacked output.

    Args:
      spec: of one entry.
      dim: the dimension to stack along.
      source: the user's line for the error; default: the error names none.

    Raises:
      ShapeError: the entry has a dimension of that name already.
    """
    if dim.name in spec.shape:
        raise ShapeError(
            explain_error(
                f'a loop stacks along "{dim.name}", but its body has a '
                f"{spec.shape!r} already.",
                **({} if source is None else {"from": source}),
                way_out="Give the loop another dim=, or rename the dimension in the "
                "body: mtf.rename.",
            )
        )
    return Spec(Shape([dim, *spec.shape]), spec.dtype)


def _cast_cotangent(dx: Tensor, dtype: str, x: Tensor) -> Tensor:
    """Returns the cotangent of x, cast to a data type, in the placement of x."""
    with context(primals=(x,)):
        return OPERATORS["cast"](dx, dtype)


class _BackwardLoop:
    """Builds the loop that computes the gradient of a loop.

    The dicts map a tensor of the body to the tensor outside of the loop which it is an
    entry, an initial value or a capture of.

    Attributes:
      scanned: for each argument of the backward body that is an entry, the stacked
        tensor: scanned inputs, residuals, cotangents of stacked outputs.
      carried: for the cotangents of carries, their initial values.
      captured: for each tensor from outside, its value: captures of the forward body,
        cotangents of sums.
    """

    def __init__(self, loop: Loop, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
        body = loop.body
        _index, *arguments = body.arguments
        _, scanned, captures = loop.split_inputs(xs)
        self.loop = loop
        self.body = body
        self.ys = ys
        self.carries = arguments[: loop.num_carries]
        self.entries = arguments[loop.num_carries :]
        self.scanned = dict(zip(self.entries, scanned))
        self.captured = dict(zip(body.captures, captures))
        self.carried: dict[Tensor, Tensor] = {}
        self.inputs = (*arguments, *body.captures)
        self.node = latest(ys[0].node)

    def cotangents(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the cotangents of all inputs.

        Those of captures are sums over iterations. Half floats are summed in float32:
        in their own type a long sum stops growing.
        """
        targets = [x for x in self.inputs if has_gradient(x.dtype)]
        seeds = self._seeds(dys)
        nodes, body_cotangents, unread_carries = self._record_backward(seeds, targets)
        carries = [x for x in self.carries if x in body_cotangents]
        summed = [x for x in self.captured if x in body_cotangents]
        stacked = [x for x in self.entries if x in body_cotangents]
        with_cotangent = (*carries, *summed, *stacked)
        results = [body_cotangents[x] for x in with_cotangent]
        outputs = self._run(nodes, results, len(carries), len(summed))
        cotangents = dict(zip(with_cotangent, outputs))
        for x in summed:
            value = self.captured[x]
            cotangents[x] = _cast_cotangent(cotangents[x], x.dtype, value)
        # Without an iteration the initial carry is the result, so it has a cotangent
        # even if the body does not read it.
        if self.loop.num_iterations:
            for x in unread_carries:
                cotangents.pop(x, None)
        return [cotangents.get(x) for x in self.inputs]

    def _seeds(self, dys: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
        """Returns pairs of a result of the body and the argument of the backward body
        for its cotangent.

        Cotangents of carries are carried, those of sums are the same in each iteration,
        those of stacked outputs are scanned. A carry has one in any case: zeros, if its
        last value has none.
        """
        num_carries = self.loop.num_carries
        num_unstacked = num_carries + self.loop.num_sums
        seeds = []
        for k, (result, y, dy) in enumerate(zip(self.body.results, self.ys, dys)):
            if not has_gradient(result.dtype) or (k >= num_carries and dy is None):
                continue
            seed = self.body.graph.new_argument(result.spec)
            seeds.append((result, seed))
            if k < num_carries:
                self.carried[seed] = OPERATORS["zeros_like"](y) if dy is None else dy
            elif dy is not None and k < num_unstacked:
                self.captured[seed] = dy
            elif dy is not None:
                self.scanned[seed] = dy
        return seeds

    def _record_backward(
        self, seeds: Sequence[tuple[Tensor, Tensor]], targets: Sequence[Tensor]
    ) -> tuple[list[Node], dict[Tensor, Tensor], list[Tensor]]:
        """Records the gradient of one iteration on the tensors of the body.

        Args:
          seeds: pairs of a result and its cotangent.
          targets: arguments and captures of the body, of floats.

        Returns:
          (nodes, the cotangent of each target that has one, carries that the iteration
          does not read). The cotangent of an unread carry is zeros.
        """
        body_nodes = set(self.body.nodes)
        carries = set(self.carries)
        results = [result for result, _ in seeds]
        cotangents_of_results = [seed for _, seed in seeds]
        unread_carries: list[Tensor] = []

        def backward() -> list[Tensor | None]:
            cotangents = gradients_within(
                body_nodes, results, targets, cotangents_of_results
            )
            for i, (x, dx) in enumerate(zip(targets, cotangents)):
                if dx is None and x in carries:
                    unread_carries.append(x)
                    cotangents[i] = OPERATORS["zeros_like"](x)
                elif dx is not None and x in self.captured:
                    cotangents[i] = _cast_cotangent(dx, accumulation_dtype(x.dtype), x)
            return cotangents

        nodes, cotangents = record_on_body(self.body, backward)
        pairs = zip(targets, cotangents)
        by_target = {x: dx for x, dx in pairs if dx is not None}
        return nodes, by_target, unread_carries

    def _run(
        self,
        nodes: list[Node],
        results: list[Tensor],
        num_carries: int,
        num_sums: int,
    ) -> tuple[Tensor, ...]:
        """Applies the backward loop, and returns its outputs."""
        # Computing invariant nodes again is cheaper than stacking their outputs.
        nodes = required_nodes([*invariant_nodes(self.body), *nodes], results)
        used = used_tensors(nodes, results)
        residuals = self._residuals(nodes, used)
        self.scanned.update(zip(residuals, self._stack_residuals(residuals)))
        scanned = [x for x in self.scanned if x in used]
        index = self.body.arguments[0]
        arguments = [index, *self.carried, *scanned]
        body = Body.of(self.body.graph, arguments, nodes, results)
        loop = Loop(
            body,
            num_carries,
            len(scanned),
            num_sums,
            self.loop.dim,
            reverse=not self.loop.reverse,
        )
        initial_carries = self.carried.values()
        stacked_values = [self.scanned[x] for x in scanned]
        captured_values = [self.captured.get(x, x) for x in body.captures]
        return apply_all(
            loop,
            *initial_carries,
            *stacked_values,
            *captured_values,
            mesh=self.node.mesh,
        )

    def _residuals(
        self, nodes: Sequence[Node], used: Mapping[Tensor, None]
    ) -> list[Tensor]:
        """Returns the tensors of the forward body that the backward body uses, and
        neither computes nor scans already.
        """
        available = {*outputs_of_nodes(nodes), *self.scanned}
        forward = {*self.carries, *self.entries, *outputs_of_nodes(self.body.nodes)}
        return [x for x in used if x in forward and x not in available]

    def _stack_residuals(self, residuals: list[Tensor]) -> list[Tensor]:
        """Makes the forward loop stack residuals, and returns the stacked tensors."""
        node = self.node
        op = node.op
        assert isinstance(op, Loop) and op.dim is not None
        num_unstacked = op.num_carries + op.num_sums
        stacked_results = op.body.results[num_unstacked:]
        stacked_outputs = node.outputs[num_unstacked:]
        stacks = dict(zip(stacked_results, stacked_outputs))
        new = [x for x in residuals if x not in stacks]
        if new:
            body = dataclasses.replace(op.body, results=(*op.body.results, *new))
            specs = [stacked_spec(x.spec, op.dim) for x in new]
            extended_op = dataclasses.replace(op, body=body)
            extended = node.owner.replace(node, extended_op, specs)
            stacks.update(zip(new, extended.outputs[-len(new) :]))
        return [stacks[x] for x in residuals]
