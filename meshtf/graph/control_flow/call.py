"""Calls: a body that is recorded and planned once, and runs several times in a program.

A pipeline calls the body of each stage chunk once for each microbatch, and so it does
the backward body.

    ys = apply_all(Call(body), *arguments, *body.captures)
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
from meshtf.graph.operators import OPERATORS
from meshtf.graph.recorder import latest
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import accumulation_dtype, has_gradient


class CallId(NamedTuple):
    """Identifies a call of a pipeline in plans and profiles."""

    chunk: int = 0  # index of the pipeline stage chunk
    microbatch: int = 0
    backward: bool = False

    @property
    def label(self) -> str:
        """The name of the body that is called, such as "forward.2"."""
        return f"{'backward' if self.backward else 'forward'}.{self.chunk}"


_DEFAULT_ID = CallId()


@dataclasses.dataclass(frozen=True, eq=False)
class Call(ControlFlowOp):
    """Runs a body. Inputs are its arguments and captures.

    Attributes:
      body: what runs.
      wait_for: tensors before which it must not run (control dependencies).
      call_id: names the call in plans and profiles.
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
        dys = dy if isinstance(dy, tuple) else (dy,)
        ys = y if isinstance(y, tuple) else (y,)
        with_cotangent = tuple(k for k, d in enumerate(dys) if d is not None)
        backward = _shared_backward_body(self.body, with_cotangent)
        body, outputs = self._with_residuals(latest(ys[0].node), backward)
        # From tensors of the body to those of this call.
        values = dict(zip((*body.arguments, *body.captures), xs))
        values.update(zip(body.results, outputs))
        zeros = []
        for x in backward.captures:
            dtype = accumulation_dtype(x.dtype)
            zeros.append(OPERATORS["zeros"](values[x].mesh, x.shape, dtype))
        residuals = [values[x] for x in backward.residuals]
        output_cotangents = [dys[k] for k in with_cotangent]
        dxs = call(
            backward.body,
            [*residuals, *output_cotangents, *zeros],
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
        """Makes the forward call return the residuals of its backward body as well.

        Returns:
          (the body that is called now, the outputs of the call).
        """
        body = backward.with_residuals(self.body)
        extra_specs = [r.spec for r in body.results[len(node.outputs) :]]
        if extra_specs:
            op = dataclasses.replace(self, body=body)
            node = node.owner.replace(node, op, extra_specs)
        return body, node.outputs


@dataclasses.dataclass(frozen=True, eq=False)
class BackwardBody:
    """The backward body of a body, with the meaning of its arguments and results.

    Its arguments are the residuals, the cotangents of results, and the sums so far of
    the cotangents of captures. Its results are the cotangents of arguments, and the new
    sums. Sums of half floats are float32: over many microbatches they stop growing in
    their own type.

    Attributes:
      body: the backward body.
      residuals: tensors of the forward body that it reads.
      arguments: those arguments of the forward body that have cotangents.
      captures: those captures of the forward body that have cotangents.
    """

    body: Body
    residuals: tuple[Tensor, ...]
    arguments: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]

    def with_residuals(self, body: Body) -> Body:
        """Returns the forward body with the residuals among its results.

        Args:
          body: the forward body.
        """
        available = {*body.arguments, *body.results}
        extra = [x for x in self.residuals if x not in available]
        if not extra:
            return body
        cache = body.graph.bodies_with_residuals
        if body not in cache:
            results = [*body.results, *extra]
            cache[body] = Body.of(body.graph, body.arguments, body.nodes, results)
        return cache[body]


def backward_body(body: Body, results: Sequence[Tensor]) -> BackwardBody:
    """Records the gradient of a body with respect to its arguments and captures.

    Args:
      body: the forward body.
      results: those of its results that have cotangents.
    """
    seeds = [body.graph.new_argument(result.spec) for result in results]
    targets = [x for x in (*body.arguments, *body.captures) if has_gradient(x.dtype)]
    # Invariant nodes are computed again by the backward body, or shared: their outputs
    # are no residuals of each call.
    invariant = invariant_nodes(body)
    sums = _Sums(body)

    def gradient() -> list[Any]:
        nodes = set(body.nodes)
        dxs = gradients_within(nodes, results, targets, seeds, set(invariant))
        return sums.add(dict(zip(targets, dxs)))

    gradient_nodes, dxs = record_on_body(body, gradient)
    cotangents = {x: dx for x, dx in zip(targets, dxs) if dx is not None}
    outputs = list(cotangents.values())
    nodes = [*invariant, *_moved_up(gradient_nodes, sums.nodes)]
    nodes = required_nodes(nodes, outputs)
    residuals = _residuals(body, nodes, outputs)
    arguments = (
        *residuals,
        *seeds,
        *sums.before.values(),
    )
    return BackwardBody(
        body=Body.of(body.graph, arguments, nodes, outputs),
        residuals=residuals,
        arguments=tuple(x for x in cotangents if x not in sums.before),
        captures=tuple(sums.before),
    )


def _residuals(
    body: Body, nodes: Sequence[Node], outputs: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Returns the tensors of the forward body that backward nodes read and do not
    compute.
    """
    computed = set(outputs_of_nodes(nodes))
    forward = {*body.arguments, *outputs_of_nodes(body.nodes)}
    used = used_tensors(nodes, outputs)
    return tuple(x for x in used if x in forward and x not in computed)


class _Sums:
    """Adds the cotangents of captures to sums that are handed on from call to call.

    Attributes:
      before: for each capture with a cotangent, the argument that is the sum before
        the call.
      nodes: for a node that computes such a cotangent, the nodes that add it.
    """

    def __init__(self, body: Body) -> None:
        self.body = body
        self.before: dict[Tensor, Tensor] = {}
        self.nodes: dict[Node, list[Node]] = {}

    def add(self, cotangents: dict[Tensor, Any]) -> list[Any]:
        """Returns the cotangents, those of captures added to their sums.

        Args:
          cotangents: of each target, or None.
        """
        for x in self.body.captures:
            dx = cotangents.get(x)
            if dx is None:
                continue
            dtype = accumulation_dtype(x.dtype)
            self.before[x] = self.body.graph.new_argument(Spec(x.shape, dtype))
            with context(primals=(x,)):
                term = OPERATORS["cast"](dx, dtype)
                total = self.before[x] + term
            cotangents[x] = total
            new_nodes = [n for n in (term.node, total.node) if n is not dx.node]
            self.nodes.setdefault(dx.node, []).extend(new_nodes)
        return list(cotangents.values())


def _moved_up(
    nodes: Sequence[Node], followers: Mapping[Node, Sequence[Node]]
) -> list[Node]:
    """Returns nodes in an order in which each is followed at once by its followers.

    So a cotangent of a capture is added to its sum, and freed, before the next one is
    computed.
    """
    moved: set[Node] = set()
    for nodes_after in followers.values():
        moved.update(nodes_after)
    ordered = []
    for node in nodes:
        if node not in moved:
            ordered.append(node)
            ordered += followers.get(node, ())
    return [*ordered, *moved.difference(ordered)]


def _shared_backward_body(body: Body, indices: tuple[int, ...]) -> BackwardBody:
    """Returns the backward body for cotangents of the results at `indices`, recorded
    once for all calls.
    """
    cache = body.graph.backward_bodies
    key = body, indices
    if key not in cache:
        cache[key] = backward_body(body, [body.results[k] for k in indices])
    return cache[key]


def call(
    body: Body,
    arguments: Sequence[Tensor],
    wait_for: Sequence[Tensor] = (),
    captures: Mapping[Tensor, Tensor] | None = None,
    call_id: CallId = _DEFAULT_ID,
) -> tuple[Tensor, ...]:
    """Returns the results of a call of a body.

    Args:
      body: the body.
      arguments: the values of its arguments.
      wait_for: tensors before which it must not run.
      captures: the values of captures; those that it lacks are taken as they are.
      call_id: names the call in plans and profiles.
    """
    values = {} if captures is None else captures
    captured_values = [values.get(x, x) for x in body.captures]
    op = Call(body, tuple(wait_for), call_id)
    return apply_unchecked(op, *arguments, *captured_values)
