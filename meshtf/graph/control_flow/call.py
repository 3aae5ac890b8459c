"""Calls: a body that is recorded and planned once, and runs at several places of a
program.

A pipeline calls the body of each stage once for each microbatch, and so its backward
body.

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
    needed,
    record_more,
    require_given,
    unvarying,
    uses,
)
from meshtf.graph.op import Spec
from meshtf.graph.op_kinds import ControlFlowOp
from meshtf.graph.operators import OPERATORS
from meshtf.graph.recorder import latest
from meshtf.graph.tensor import Node, Tensor
from meshtf.names import accumulation_dtype, has_gradient


class Which(NamedTuple):
    """Which call it is, to people who read plans and profiles."""

    cell: int = 0
    number: int = 0  # of the microbatch
    backward: bool = False

    @property
    def label(self) -> str:
        """What is called, such as "forward.2"."""
        return f"{'backward' if self.backward else 'forward'}.{self.cell}"


_FIRST = Which()


@dataclasses.dataclass(frozen=True, eq=False)
class Call(ControlFlowOp):
    """Runs a body; inputs are its arguments and captures. `follows`: what has to be
    there before.
    """

    body: Body
    follows: tuple[Tensor, ...] = ()
    which: Which = _FIRST

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        require_given((*self.body.arguments, *self.body.captures), xs)
        return tuple(r.spec for r in self.body.results)

    def flops(self, *xs: Spec) -> int:
        return self.body.flops

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.body,)

    @property
    def display_name(self) -> str:
        return self.which.label

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        dys = dy if isinstance(dy, tuple) else (dy,)
        node = latest((y[0] if isinstance(y, tuple) else y).node)
        there = tuple(k for k, d in enumerate(dys) if d is not None)
        backward = _shared_backward(self.body, there)
        keeping = backward.keeping(self.body)
        extra = [r.spec for r in keeping.results[len(node.outputs) :]]
        if extra:
            op = dataclasses.replace(self, body=keeping)
            node = node.owner.replace(node, op, extra)
        outside = dict(zip((*keeping.arguments, *keeping.captures), xs))
        outside.update(zip(keeping.results, node.outputs))
        sums = [
            OPERATORS["zeros"](outside[x].mesh, x.shape, accumulation_dtype(x.dtype))
            for x in backward.captures
        ]
        made = call(
            backward.body,
            [*(outside[x] for x in backward.kept), *(dys[k] for k in there), *sums],
            captures=outside,
            which=self.which._replace(backward=True),
        )
        found = dict(zip((*backward.arguments, *backward.captures), made))
        for x in backward.captures:
            found[x] = OPERATORS["cast"](found[x], x.dtype)
        return [found.get(x) for x in (*self.body.arguments, *self.body.captures)]


@dataclasses.dataclass(frozen=True, eq=False)
class Backward:
    """The backward body of a body, and what it takes.

    Its arguments are `kept`, tensors of the forward body, the cotangents of results,
    and sums so far of the cotangents of `captures`. Its results are the cotangents of
    `arguments`, and the new sums. Sums of half floats are float32: those of many
    microbatches would stop growing.
    """

    body: Body
    kept: tuple[Tensor, ...]
    arguments: tuple[Tensor, ...]
    captures: tuple[Tensor, ...]

    def keeping(self, body: Body) -> Body:
        """Returns the forward body with what the backward body takes among
        its results.
        """
        own = {*body.arguments, *body.results}
        more = [x for x in self.kept if x not in own]
        if not more:
            return body
        if body not in body.graph.keeping:
            body.graph.keeping[body] = Body.of(
                body.graph, body.arguments, body.nodes, [*body.results, *more]
            )
        return body.graph.keeping[body]


def backward_of(body: Body, results: Sequence[Tensor]) -> Backward:
    """Records the gradient of a body with respect to its arguments and captures.

    Args:
      body: the forward body.
      results: those of its results that have cotangents.
    """
    given = [body.graph.given(r.spec) for r in results]
    inputs = [x for x in (*body.arguments, *body.captures) if has_gradient(x.dtype)]
    same = unvarying(body)  # made again or shared, and not handed on by each call
    sums: dict[Tensor, Tensor] = {}
    adds: dict[Node, list[Node]] = {}

    def gradient() -> list[Any]:
        found = dict(
            zip(
                inputs,
                gradients_within(set(body.nodes), results, inputs, given, set(same)),
            )
        )
        for x in body.captures:
            made = found.get(x)
            if made is not None:
                sums[x] = body.graph.given(Spec(x.shape, accumulation_dtype(x.dtype)))
                with context(primals=(x,)):
                    more = OPERATORS["cast"](made, accumulation_dtype(x.dtype))
                    found[x] = total = sums[x] + more
                adds.setdefault(made.node, []).extend(
                    n for n in (more.node, total.node) if n is not made.node
                )
        return [found.get(x) for x in inputs]

    nodes, made = record_more(body, gradient)
    reached = {x: dx for x, dx in zip(inputs, made) if dx is not None}
    wanted = list(reached.values())
    nodes = needed([*same, *_at_once(nodes, adds)], wanted)
    there = {y for n in nodes for y in n.outputs}
    own = {*body.arguments, *(y for n in body.nodes for y in n.outputs)}
    used = dict.fromkeys((*(x for n in nodes for x in uses(n)), *wanted))
    kept = tuple(x for x in used if x in own and x not in there)
    return Backward(
        Body.of(body.graph, (*kept, *given, *sums.values()), nodes, wanted),
        kept,
        tuple(x for x in reached if x not in sums),
        tuple(sums),
    )


def _at_once(nodes: Sequence[Node], after: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Returns nodes with some right after others, so that what these make need not be
    held.
    """
    later = {n for some in after.values() for n in some}
    first = [
        n for node in nodes if node not in later for n in (node, *after.get(node, ()))
    ]
    return [*first, *later.difference(first)]


def _shared_backward(body: Body, results: tuple[int, ...]) -> Backward:
    """Returns the backward body of some results, recorded once for all calls."""
    key = body, results
    if key not in body.graph.backwards:
        body.graph.backwards[key] = backward_of(
            body, [body.results[k] for k in results]
        )
    return body.graph.backwards[key]


def call(
    body: Body,
    arguments: Sequence[Tensor],
    follows: Sequence[Tensor] = (),
    captures: Mapping[Tensor, Tensor] | None = None,
    which: Which = _FIRST,
) -> tuple[Tensor, ...]:
    """Returns the results of a body.

    Args:
      body: what is called.
      arguments: what it is given.
      follows: what has to be there before it runs.
      captures: by what it uses from outside: what to take for it here; default: itself.
      which: call it is.
    """
    taken = [x if captures is None else captures.get(x, x) for x in body.captures]
    return apply_unchecked(Call(body, tuple(follows), which), *arguments, *taken)
