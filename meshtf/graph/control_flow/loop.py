"""Loops: a body that is recorded once and runs many times, on all devices together.

    layers = Dimension("layers", 12)
    loop = Loop(body, num_carries=1, num_scanned=1, dim=layers)
    apply_all(loop, h, weights, *body.captures)

An iteration takes the *carries* of the iteration before, and one entry (a slice without the
scanned dimension) of each *scanned input*. It returns new carries, terms of *sums*, and
entries of *stacked outputs*. So a loop is like `jax.lax.scan`, with outputs that are summed
over iterations in addition. Other tensors that the body uses are *captures*.

The gradient of a loop is a loop in the other direction: it scans the residuals (tensors of
the forward body that the gradient reads, stacked by the forward loop), carries the cotangents
of carries, and sums the cotangents of captures. So the gradient of a weight that every
iteration uses is one sum, which is reduced over devices once, after the loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from meshtf.graph.apply import apply_all
from meshtf.graph.autodiff.cotangents import cast_cotangent
from meshtf.graph.autodiff.gradients import gradients_within
from meshtf.graph.context import current
from meshtf.graph.control_flow.body import (
    Body,
    check_body_inputs,
    no_gradient_of_while,
    outputs_of_nodes,
    record_on_body,
    required_nodes,
    used_tensors,
)
from meshtf.graph.control_flow.recomputed import recomputed_nodes
from meshtf.graph.control_flow.stacking import stacked_spec
from meshtf.graph.op import Cotangents, Spec, Specs
from meshtf.graph.op_kinds import ControlFlowOp
from meshtf.graph.operators import OPERATORS  # functions of `meshtf.ops`
from meshtf.graph.recorder import latest_version
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import Dimension, accumulation_dtype, has_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Loop(ControlFlowOp):
    """Runs `body` for each entry of `dim`, or while `condition` holds.

    The inputs are the initial carries, the scanned inputs `[dim, ...]`, and the captures of
    body and condition. The outputs are the last carries, the sums, and the stacked outputs
    `[dim, ...]`.

    The arguments of the body are the index of the iteration, the carries and an entry of
    each scanned input. The results of the body are the next carries, terms of sums, and
    entries of stacked outputs. The arguments of the condition are the index and the carries.

    Attributes:
      body: the body of an iteration.
      num_carries: the number of carries.
      num_scanned: the number of scanned inputs.
      num_sums: the number of sums.
      dim: the dimension of scanned inputs and stacked outputs, with an index for each
        iteration; None: a while loop.
      reverse: whether to scan from the last entry to the first.
      condition: the test of a while loop, which returns a boolean; None: no while loop.
      may_run_on: whether more iterations of a while loop would change no result that is read.
    """

    body: Body
    num_carries: int
    num_scanned: int = 0
    num_sums: int = 0
    dim: Dimension | None = None
    reverse: bool = False
    condition: Body | None = None
    may_run_on: bool = False

    def output_specs(self, *xs: Spec) -> Specs:
        self._check_inputs(xs)
        specs = [result.spec for result in self.body.results]
        num_unstacked = self.num_carries + self.num_sums
        if self.dim is None:
            return tuple(specs[:num_unstacked])
        stacked_specs = [stacked_spec(spec, self.dim) for spec in specs[num_unstacked:]]
        return (*specs[:num_unstacked], *stacked_specs)

    def _check_inputs(self, xs: tuple[Spec, ...]) -> None:
        """Raises ShapeError if inputs differ from the tensors that the bodies were recorded
        with.
        """
        carries, scanned_inputs, captures = self.split_inputs(xs)
        entries: list[Spec] = []
        if self.dim is not None:
            dim = self.dim.name
            entries = [Spec(x.shape.without(dim), x.dtype) for x in scanned_inputs]
        _index, *arguments = self.body.arguments
        expected = [*arguments, *self.body.captures]
        if self.condition is not None:
            expected.extend(self.condition.captures)
        check_body_inputs(expected, (*carries, *entries, *captures))
        # An iteration returns carries of the same specs as it takes.
        check_body_inputs(self.body.results[: self.num_carries], carries)

    def split_inputs(
        self, xs: Sequence[Any]
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Returns the inputs `xs` as (initial carries, scanned inputs, captures)."""
        end_of_scanned = self.num_carries + self.num_scanned
        initial_carries = xs[: self.num_carries]
        scanned_inputs = xs[self.num_carries : end_of_scanned]
        captures = xs[end_of_scanned:]
        return initial_carries, scanned_inputs, captures

    def flops(self, *xs: Spec) -> int:
        if self.num_iterations is None:
            return self.body.flops
        return self.body.flops * self.num_iterations

    @property
    def num_iterations(self) -> int | None:
        """The number of runs of the body; None for a while loop."""
        return None if self.dim is None else self.dim.size

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
        return _BackwardLoop(self, ys=ys, xs=xs).cotangents(dys)


class _ResultCotangent(NamedTuple):
    """A result of the forward body, and a symbolic tensor for the result's cotangent."""

    result: Tensor
    cotangent: Tensor


class _IterationGradient(NamedTuple):
    """The gradient of one iteration, as nodes that read tensors of the forward body.

    Attributes:
      nodes: the nodes of the gradient.
      cotangents: the cotangents of arguments and captures of the forward body that have one.
      unread_carries: the carries that the iteration does not read; their cotangents are
        zeros.
    """

    nodes: list[Node]
    cotangents: dict[Tensor, Tensor]
    unread_carries: list[Tensor]


class _BackwardLoop:
    """Builds the loop that computes the gradient of a loop.

    Args:
      loop: the forward loop.
      ys: the outputs of the forward loop.
      xs: the inputs of the forward loop.

    Attributes:
      body: the forward body.
      carries: the arguments of the forward body that are carries.
      entries: the arguments of the forward body that are entries of scanned inputs.
      scanned_values: for each tensor that is an entry in the backward body, the stacked
        tensor outside of the loop: a scanned input, stacked residuals, or the cotangent of
        a stacked output.
      initial_carries: for each tensor that is a carry of the backward body (the cotangent of
        a forward carry), the initial value.
      captured_values: for each tensor that is a capture of the backward body, the tensor
        outside of the loop: a capture of the forward loop, or the cotangent of a sum.
      inputs: the tensors of the forward body that correspond to `xs`.
      node: the node of the forward loop.
    """

    def __init__(self, loop: Loop, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
        body = loop.body
        _index, *arguments = body.arguments
        _, scanned_inputs, captures = loop.split_inputs(xs)
        self.loop = loop
        self.body = body
        self.ys = ys
        self.carries = arguments[: loop.num_carries]
        self.entries = arguments[loop.num_carries :]
        self.scanned_values = dict(zip(self.entries, scanned_inputs))
        self.captured_values = dict(zip(body.captures, captures))
        self.initial_carries: dict[Tensor, Tensor] = {}
        self.inputs = (*arguments, *body.captures)
        self.node = latest_version(ys[0].node)

    def cotangents(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Applies the backward loop, and returns the cotangents of all inputs of the forward
        loop.

        Args:
          dys: the cotangents of the outputs; None: zero.
        """
        # The cotangents of carries are passed on from iteration to iteration.
        carried = set(self.carries)
        needs = current().needs_cotangent or (True,) * len(self.inputs)
        targets = [
            x
            for x, is_needed in zip(self.inputs, needs, strict=True)
            if has_gradient(x.dtype) and (is_needed or x in carried)
        ]
        result_cotangents = self._result_cotangents(dys)
        gradient = self._record_backward(result_cotangents, targets)
        carries = [x for x in self.carries if x in gradient.cotangents]
        summed_captures = [x for x in self.captured_values if x in gradient.cotangents]
        stacked_entries = [x for x in self.entries if x in gradient.cotangents]
        with_cotangent = (*carries, *summed_captures, *stacked_entries)
        outputs = self._run(
            gradient.nodes,
            results=[gradient.cotangents[x] for x in with_cotangent],
            num_carries=len(carries),
            num_sums=len(summed_captures),
        )
        cotangents = dict(zip(with_cotangent, outputs))
        for x in summed_captures:
            # bfloat16 was summed in float32, since in bfloat16 a long sum stops growing.
            value = self.captured_values[x]
            cotangents[x] = cast_cotangent(cotangents[x], x.dtype, value)
        # The initial value of a carry that no iteration reads has no cotangent. But without
        # any iteration it is the loop's result, so its cotangent is that of the result.
        if self.loop.num_iterations:
            for x in gradient.unread_carries:
                cotangents.pop(x, None)
        return [cotangents.get(x) for x in self.inputs]

    def _result_cotangents(
        self, dys: Sequence[Tensor | None]
    ) -> list[_ResultCotangent]:
        """Returns symbolic cotangents of results of the forward body, and adds them to
        `initial_carries`, `captured_values` or `scanned_values`.

        The cotangent of a carry is a carry of the backward loop, which starts from zeros if
        the last carry has no cotangent. The cotangent of a sum is equal in all iterations.
        The cotangent of a stacked output is scanned.
        """
        num_carries = self.loop.num_carries
        num_unstacked = num_carries + self.loop.num_sums
        result_cotangents = []
        for i, (result, y, dy) in enumerate(zip(self.body.results, self.ys, dys)):
            is_carry = i < num_carries
            is_unused = dy is None and not is_carry
            if is_unused or not has_gradient(result.dtype):
                continue
            cotangent = self.body.graph.new_argument(result.spec)
            result_cotangents.append(_ResultCotangent(result, cotangent))
            if dy is None:
                self.initial_carries[cotangent] = OPERATORS["zeros_like"](y)
            elif is_carry:
                self.initial_carries[cotangent] = dy
            elif i < num_unstacked:
                self.captured_values[cotangent] = dy
            else:
                self.scanned_values[cotangent] = dy
        return result_cotangents

    def _record_backward(
        self,
        result_cotangents: Sequence[_ResultCotangent],
        targets: Sequence[Tensor],
    ) -> _IterationGradient:
        """Records the gradient of one iteration, on tensors of the forward body.

        Args:
          result_cotangents: the cotangents of results of the forward body.
          targets: the arguments and captures of the forward body to differentiate by.
        """
        body_nodes = set(self.body.nodes)
        carries = set(self.carries)
        unread_carries: list[Tensor] = []

        def backward() -> list[Tensor | None]:
            """Returns the cotangents of targets: carries always have one."""
            cotangents = gradients_within(
                body_nodes,
                ys=[pair.result for pair in result_cotangents],
                xs=targets,
                grad_ys=[pair.cotangent for pair in result_cotangents],
            )
            for i, (x, dx) in enumerate(zip(targets, cotangents)):
                if dx is None and x in carries:
                    unread_carries.append(x)
                    cotangents[i] = OPERATORS["zeros_like"](x)
                elif dx is not None and x in self.captured_values:
                    cotangents[i] = cast_cotangent(dx, accumulation_dtype(x.dtype), x)
            return cotangents

        nodes, cotangents = record_on_body(self.body, backward)
        target_cotangents = {
            x: dx for x, dx in zip(targets, cotangents) if dx is not None
        }
        return _IterationGradient(nodes, target_cotangents, unread_carries)

    def _run(
        self,
        nodes: list[Node],
        results: list[Tensor],
        num_carries: int,
        num_sums: int,
    ) -> tuple[Tensor, ...]:
        """Applies the backward loop, and returns the outputs.

        Args:
          nodes: the nodes of the gradient of one iteration.
          results: the results of the backward body: carries, terms of sums, and entries of
            stacked outputs.
          num_carries: the number of carries among the results.
          num_sums: the number of terms of sums among the results.
        """
        nodes = required_nodes(nodes, results)
        recomputed = recomputed_nodes(
            self.body,
            needed=used_tensors(nodes, results),
            available={*self.scanned_values, *self.captured_values},
            stacked=self.body.results[self.loop.num_carries + self.loop.num_sums :],
        )
        nodes = [*recomputed, *nodes]
        all_used_tensors = used_tensors(nodes, results)
        residuals = self._residuals(nodes, all_used_tensors)
        self.scanned_values.update(zip(residuals, self._stack_residuals(residuals)))
        scanned_tensors = [x for x in self.scanned_values if x in all_used_tensors]
        index = self.body.arguments[0]
        arguments = [index, *self.initial_carries, *scanned_tensors]
        graph = self.body.graph
        body = Body.of(graph, arguments=arguments, nodes=nodes, results=results)
        loop = Loop(
            body,
            num_carries=num_carries,
            num_scanned=len(scanned_tensors),
            num_sums=num_sums,
            dim=self.loop.dim,
            reverse=not self.loop.reverse,
        )
        initial_carries = self.initial_carries.values()
        stacked_values = [self.scanned_values[x] for x in scanned_tensors]
        captured_values = [self.captured_values.get(x, x) for x in body.captures]
        return apply_all(
            loop,
            *initial_carries,
            *stacked_values,
            *captured_values,
            mesh=self.node.mesh,
        )

    def _residuals(
        self, nodes: Sequence[Node], candidates: Mapping[Tensor, None]
    ) -> list[Tensor]:
        """Returns the tensors of the forward body that the forward loop must stack, given
        the nodes of the backward body and the tensors that it uses (`candidates`).
        """
        available_tensors = {*outputs_of_nodes(nodes), *self.scanned_values}
        forward_tensors = {
            *self.carries,
            *self.entries,
            *outputs_of_nodes(self.body.nodes),
        }
        return [
            x for x in candidates if x in forward_tensors and x not in available_tensors
        ]

    def _stack_residuals(self, residuals: list[Tensor]) -> list[Tensor]:
        """Replaces the forward loop by one that also stacks residuals, and returns the
        stacked residuals.

        Args:
          residuals: tensors of the forward body.
        """
        node = self.node
        op = node.op
        assert isinstance(op, Loop) and op.dim is not None
        num_unstacked = op.num_carries + op.num_sums
        stacked_results = op.body.results[num_unstacked:]
        stacked_outputs = node.outputs[num_unstacked:]
        # Tensor of the forward body -> its stacked values.
        stacks = dict(zip(stacked_results, stacked_outputs))
        unstacked = [x for x in residuals if x not in stacks]
        if unstacked:
            body = dataclasses.replace(op.body, results=(*op.body.results, *unstacked))
            specs = [stacked_spec(x.spec, op.dim) for x in unstacked]
            op = dataclasses.replace(op, body=body)
            node = node.owner.replace(node, op, specs)
            stacks.update(zip(unstacked, node.outputs[-len(unstacked) :]))
        return [stacks[x] for x in residuals]
