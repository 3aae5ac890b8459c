"""Calls: a body that is recorded and planned once, and runs several times in a program.

    ys = call(body, arguments, call_id=CallId(chunk=0, microbatch=3))

A pipeline calls the body of each stage chunk (consecutive layers on one pipeline stage) once
for each microbatch. The gradient of a body, its backward body, is recorded once as well, and
called once for each microbatch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from meshtf.graph.apply import apply_unchecked
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
from meshtf.graph.operators import OPERATORS  # functions of `meshtf.ops`
from meshtf.graph.recorder import latest_version
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import accumulation_dtype, has_gradient


class CallId(NamedTuple):
    """Identifies a call of a pipeline in plans and profiles."""

    chunk: int = 0  # the index of the pipeline stage chunk
    microbatch: int = 0  # the index of the microbatch
    backward: bool = False  # whether the backward body is called

    @property
    def label(self) -> str:
        """The name of the body that is called, such as "forward.2"."""
        direction = "backward" if self.backward else "forward"
        return f"{direction}.{self.chunk}"


_DEFAULT_ID = CallId()


@dataclasses.dataclass(frozen=True, eq=False)
class Call(ControlFlowOp):
    """Runs a body. The inputs are the values of the body's arguments and captures.

    Attributes:
      body: the body that runs.
      wait_for: control dependencies: the call does not run before these tensors exist.
      call_id: the name of the call in plans and profiles.
    """

    body: Body
    wait_for: tuple[Tensor, ...] = ()
    call_id: CallId = _DEFAULT_ID

    def output_specs(self, *xs: Spec) -> Specs:
        check_body_inputs((*self.body.arguments, *self.body.captures), xs)
        return tuple(result.spec for result in self.body.results)

    def flops(self, *xs: Spec) -> int:
        return self.body.flops

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.body,)

    @property
    def display_name(self) -> str:
        return self.call_id.label

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        """Returns the cotangents of the inputs, which a call of the backward body computes."""
        dys = dy if isinstance(dy, tuple) else (dy,)
        ys = y if isinstance(y, tuple) else (y,)
        # The indices of the results that have a cotangent.
        indices = tuple(i for i, result_dy in enumerate(dys) if result_dy is not None)
        backward = _shared_backward_body(self.body, indices)
        forward_node = latest_version(ys[0].node)
        extended_body, outputs = self._with_residuals(forward_node, backward)
        # Tensors of the forward body -> the tensors of the caller that are their values.
        values = dict(zip((*extended_body.arguments, *extended_body.captures), xs))
        values.update(zip(extended_body.results, outputs))
        residuals = [values[x] for x in backward.residuals]
        output_cotangents = [dys[i] for i in indices]
        # Each call starts from zeros; the gradients of several calls are added outside.
        zero_sums = []
        for x in backward.captures:
            dtype = accumulation_dtype(x.dtype)
            zero_sums.append(OPERATORS["zeros"](values[x].mesh, x.shape, dtype))
        dxs = call(
            backward.body,
            [*residuals, *output_cotangents, *zero_sums],
            captures=values,
            call_id=self.call_id._replace(backward=True),
        )
        cotangents = dict(zip((*backward.arguments, *backward.captures), dxs))
        for x in backward.captures:
            cotangents[x] = OPERATORS["cast"](cotangents[x], x.dtype)
        inputs = (*self.body.arguments, *self.body.captures)
        return [cotangents.get(x) for x in inputs]

    def _with_residuals(
        self, node: Node, backward: BackwardBody
    ) -> tuple[Body, tuple[Tensor, ...]]:
        """Replaces the node of the forward call by one that also returns the residuals of
        the backward body.

        Args:
          node: the node of the forward call.
          backward: the backward body.

        Returns:
          (the body that the new node calls, the outputs of the new node).
        """
        body = backward.with_residuals(self.body)
        extra_results = body.results[len(node.outputs) :]
        extra_specs = [result.spec for result in extra_results]
        if extra_specs:
            op = dataclasses.replace(self, body=body)
            node = node.owner.replace(node, op, extra_specs)
        return body, node.outputs


@dataclasses.dataclass(frozen=True, eq=False)
class BackwardBody:
    """The body that computes the gradient of a forward body.

    The arguments of the backward body are the residuals, the cotangents of the forward
    results, and for each capture the sum of its cotangents over earlier calls. The results
    are the cotangents of the forward arguments, and the new sums. Cotangents in bfloat16 and
    float16 are summed in float32: in bfloat16 a sum over many microbatches stops growing.

    Attributes:
      body: the backward body.
      residuals: the tensors of the forward body that the backward body reads.
      arguments: the arguments of the forward body that have cotangents.
      captures: the captures of the forward body that have cotangents.
    """

    body: Body
    residuals: tuple[Tensor, ...]
    arguments: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]

    def with_residuals(self, body: Body) -> Body:
        """Returns the forward body `body` with the residuals added to its results."""
        available_tensors = {*body.arguments, *body.results}
        extra_residuals = [x for x in self.residuals if x not in available_tensors]
        if not extra_residuals:
            return body
        cache = body.graph.bodies_with_residuals
        if body not in cache:
            results = [*body.results, *extra_residuals]
            cache[body] = Body.of(
                body.graph,
                arguments=body.arguments,
                nodes=body.nodes,
                results=results,
            )
        return cache[body]


def backward_body(body: Body, results: Sequence[Tensor]) -> BackwardBody:
    """Records the gradient of a body with respect to its arguments and captures.

    Args:
      body: the forward body.
      results: the results of the forward body that have cotangents.
    """
    result_cotangents = [body.graph.new_argument(result.spec) for result in results]
    targets = [x for x in (*body.arguments, *body.captures) if has_gradient(x.dtype)]
    # Nodes that depend on no argument, such as casts of captured weights. The backward body
    # computes them again, so their outputs need not be residuals of each call.
    constant_nodes = invariant_nodes(body)
    sums = _CaptureSums(body)

    def gradient() -> list[Any]:
        """Returns the cotangents of targets; of captures, the new sums."""
        dxs = gradients_within(
            set(body.nodes),
            ys=results,
            xs=targets,
            grad_ys=result_cotangents,
            not_recomputed=set(constant_nodes),
        )
        return sums.add(dict(zip(targets, dxs)))

    gradient_nodes, dxs = record_on_body(body, gradient)
    cotangents = {x: dx for x, dx in zip(targets, dxs) if dx is not None}
    outputs = list(cotangents.values())
    nodes = [
        *constant_nodes,
        *_with_early_sums(gradient_nodes, sum_nodes=sums.sum_nodes),
    ]
    nodes = required_nodes(nodes, outputs)
    residuals = _residuals(body, nodes, outputs)
    arguments = (*residuals, *result_cotangents, *sums.previous_sums.values())
    return BackwardBody(
        body=Body.of(body.graph, arguments=arguments, nodes=nodes, results=outputs),
        residuals=residuals,
        arguments=tuple(x for x in cotangents if x not in sums.previous_sums),
        captures=tuple(sums.previous_sums),
    )


def _residuals(
    body: Body, nodes: Sequence[Node], outputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Returns the tensors of the forward body that the backward body reads and does not
    compute itself.

    Args:
      body: the forward body.
      nodes: the nodes of the backward body.
      outputs: the results of the backward body.
    """
    computed_tensors = set(outputs_of_nodes(nodes))
    forward_tensors = {*body.arguments, *outputs_of_nodes(body.nodes)}
    all_used_tensors = used_tensors(nodes, outputs)
    return tuple(
        x
        for x in all_used_tensors
        if x in forward_tensors and x not in computed_tensors
    )


class _CaptureSums:
    """Adds the cotangents of captures to sums that are passed from call to call.

    Args:
      body: the forward body.

    Attributes:
      previous_sums: for each capture with a cotangent, the argument of the backward body
        that is the sum of its cotangents over earlier calls.
      sum_nodes: for each node that computes such a cotangent, the nodes that add it to the
        sum.
    """

    def __init__(self, body: Body) -> None:
        self.body = body
        self.previous_sums: dict[Tensor, Tensor] = {}
        self.sum_nodes: dict[Node, list[Node]] = {}

    def add(self, cotangents: dict[Tensor, Any]) -> list[Any]:
        """Replaces the cotangents of captures by their new sums, and returns all cotangents.

        Args:
          cotangents: the cotangent of each target, or None; changed in place.
        """
        for x in self.body.captures:
            dx = cotangents.get(x)
            if dx is None:
                continue
            dtype = accumulation_dtype(x.dtype)
            self.previous_sums[x] = self.body.graph.new_argument(Spec(x.shape, dtype))
            with context(primals=(x,)):
                term = OPERATORS["cast"](dx, dtype)
                total = self.previous_sums[x] + term
            cotangents[x] = total
            nodes = [total.node]
            if term is not dx:  # `cast` returns `dx` itself if it has the dtype already
                nodes.insert(0, term.node)
            self.sum_nodes.setdefault(dx.node, []).extend(nodes)
        return list(cotangents.values())


def _with_early_sums(
    nodes: Sequence[Node], sum_nodes: Mapping[Node, Sequence[Node]]
) -> list[Node]:
    """Returns nodes in an order in which each cotangent of a capture is added to its sum,
    and can be freed, before the next one is computed.

    Args:
      nodes: the nodes in the order in which they were recorded.
      sum_nodes: for each node that computes such a cotangent, the nodes that add it.
    """
    nodes_to_move: set[Node] = set()
    for moved_nodes in sum_nodes.values():
        nodes_to_move.update(moved_nodes)
    ordered = []
    for node in nodes:
        if node not in nodes_to_move:
            ordered.append(node)
            ordered += sum_nodes.get(node, ())
    # The sums of cotangents that none of `nodes` computes come last.
    return [*ordered, *nodes_to_move.difference(ordered)]


def _shared_backward_body(body: Body, indices: tuple[int, ...]) -> BackwardBody:
    """Returns the backward body for cotangents of the results at `indices`; all calls of
    the body share it.
    """
    cache = body.graph.backward_bodies
    key = body, indices
    if key not in cache:
        cache[key] = backward_body(body, [body.results[i] for i in indices])
    return cache[key]


def call(
    body: Body,
    arguments: Sequence[Tensor],
    wait_for: Sequence[Tensor] = (),
    captures: Mapping[Tensor, Tensor] | None = None,
    call_id: CallId = _DEFAULT_ID,
) -> tuple[Tensor, ...]:
    """Applies a `Call` of a body, and returns the results.

    Args:
      body: the body.
      arguments: the values of the body's arguments.
      wait_for: control dependencies: the call does not run before these tensors exist.
      captures: for captures of the body, tensors to be used in their place; may have other
        keys too.
      call_id: the name of the call in plans and profiles.
    """
    replacements = {} if captures is None else captures
    captured_values = [replacements.get(x, x) for x in body.captures]
    op = Call(body, wait_for=tuple(wait_for), call_id=call_id)
    return apply_unchecked(op, *arguments, *captured_values)
