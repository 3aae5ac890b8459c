"""Loops: a body that is recorded once and runs many times, on all devices together.

What a body makes in each turn is a new *state*, is added to a *sum*, or is *stacked*
along `dim`. The gradient is a loop that goes the other way: it walks along stacks of
what the forward body made and the backward body needs, carries the cotangents of
states, and sums those of captures. So a weight that every turn uses has one sum, which
is reduced over devices once, after the loop.

    apply_all(Loop(body, states=1, rows=1, dim=Dimension("layers", 12)), h, weights, *body.captures)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from meshtf.errors import PlanError, ShapeError, explain_error
from meshtf.graph.apply import apply_all
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
from meshtf.graph.tensor import Node, Source, Tensor
from meshtf.names import Dimension, Shape, accumulation_dtype, has_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Loop(ControlFlowOp):
    """Runs `body` for each row of `dim`, or while `test` holds.

    Inputs are the first states, what is walked along `dim`, and the captures of body
    and test; the body's arguments are the number of the turn, states and rows, its
    results states, sums and what is stacked; the test's are the number of the turn and
    states.
    """

    body: Body
    states: int
    rows: int = 0
    sums: int = 0
    dim: Dimension | None = None  # its size is the number of turns
    reverse: bool = False  # whether the last row comes first
    test: Body | None = None

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        given = (
            *xs[: self.states],
            *(
                Spec(x.shape.without(self.dim.name), x.dtype)
                for x in xs[self.states : self.states + self.rows]
                if self.dim
            ),
        )
        test = () if self.test is None else self.test.captures
        require_given(
            (*self.body.arguments[1:], *self.body.captures, *test),
            (*given, *xs[self.states + self.rows :]),
        )
        require_given(self.body.results[: self.states], xs[: self.states])
        specs = [r.spec for r in self.body.results]
        each = self.states + self.sums
        return (
            *specs[:each],
            *(stacked(s, self.dim) for s in specs[each:] if self.dim is not None),
        )

    def flops(self, *xs: Spec) -> int:
        return self.body.flops * (1 if self.dim is None else self.dim.size)

    @property
    def turns(self) -> int | None:
        """How often the body runs; None: only a run tells."""
        return None if self.dim is None else self.dim.size

    @property
    def bodies(self) -> tuple[Body, ...]:
        return (self.body,) if self.test is None else (self.test, self.body)

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        ys = y if isinstance(y, tuple) else (y,)
        dys = dy if isinstance(dy, tuple) else (dy,)
        if self.test is not None:
            raise no_gradient_of_while(ys[0].node.source)
        return _Reversed(self, ys, xs).cotangents(dys)


def no_gradient_of_while(source: Source) -> PlanError:
    """Returns the error of whoever asks for the gradient of a while loop."""
    return PlanError(
        explain_error(
            "a while loop has no gradient: how often it turns is not known beforehand.",
            **{"from": source},
            way_out="Use mtf.scan with a fixed number of turns, or mtf.stop_gradient "
            "around it.",
        )
    )


def unused_name(body: Body, name: str) -> str:
    """Returns a name for the dimension that a loop walks along: another one if the body
    has it.

    The loop of the gradient stacks what the body makes, so no tensor in the body may
    have the name.
    """
    used = set(_names(body))
    while name in used:
        name = "." + name  # as factors that an op uses up: nobody writes such a name
    return name


def _names(body: Body) -> Iterator[str]:
    for x in (*body.arguments, *(y for node in body.nodes for y in node.outputs)):
        yield from x.shape.names
    for op in (node.op for node in body.nodes):
        if isinstance(op, Loop) and op.dim is not None:
            yield op.dim.name
        for inner in op.bodies if isinstance(op, ControlFlowOp) else ():
            yield from _names(inner)


def stacked(spec: Spec, dim: Dimension, source: Source | None = None) -> Spec:
    """Returns what a stack of `dim` such tensors is. Raises ShapeError."""
    if dim.name in spec.shape:
        raise ShapeError(
            explain_error(
                f'a loop stacks along "{dim.name}", but within it there is a '
                f"{spec.shape!r} already.",
                **({} if source is None else {"from": source}),
                way_out="Give the loop another dim=, or rename the dimension in the "
                "body: mtf.rename.",
            )
        )
    return Spec(Shape([dim, *spec.shape]), spec.dtype)


def _cast(dx: Tensor, dtype: str, x: Tensor) -> Tensor:
    """Returns the cotangent of x as a data type; a node that is made for it lies where
    x does.
    """
    with context(primals=(x,)):
        return OPERATORS["cast"](dx, dtype)


class _Reversed:
    """Builds the loop of a loop's gradient."""

    def __init__(self, loop: Loop, ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
        self.loop, self.body, self.ys = loop, loop.body, ys
        _, *formal = loop.body.arguments
        self.states, self.rows = formal[: loop.states], formal[loop.states :]
        # What stands for what: of each tensor in the body, the one outside.
        self.walked = dict(zip(self.rows, xs[loop.states : loop.states + loop.rows]))
        self.captured = dict(zip(loop.body.captures, xs[loop.states + loop.rows :]))
        self.inputs = (*formal, *loop.body.captures)
        self.node = latest(ys[0].node)

    def cotangents(self, dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the cotangents of all inputs. Those of captures are sums over all
        iterations, half floats in float32: they would stop growing."""
        given, wanted = (
            self._given(dys),
            [x for x in self.inputs if has_gradient(x.dtype)],
        )
        self._seed(given, dys)
        own, states = set(self.body.nodes), set(self.states)
        ignored: set[Tensor] = set()  # carries that no iteration reads

        def backward() -> list[Tensor | None]:
            made = gradients_within(
                own, [r for r, _ in given], wanted, [d for _, d in given]
            )
            pairs = zip(wanted, made)
            ignored.update(x for x, dx in pairs if dx is None and x in states)
            return [
                OPERATORS["zeros_like"](x)
                if dx is None and x in states
                else _cast(dx, accumulation_dtype(x.dtype), x)
                if dx is not None and x in self.captured
                else dx
                for x, dx in zip(wanted, made)
            ]

        nodes, found = record_more(self.body, backward)
        dxs = dict(zip(wanted, found))
        carried = [x for x in self.states if x in dxs]
        summed = [x for x in self.captured if dxs.get(x) is not None]
        stacks = [x for x in self.rows if dxs.get(x) is not None]
        results = [dxs[x] for x in (*carried, *summed, *stacks)]
        got = dict(
            zip(
                (*carried, *summed, *stacks),
                self._run(nodes, results, carried, len(summed)),
            )
        )
        got.update((x, _cast(got[x], x.dtype, self.captured[x])) for x in summed)
        # Without an iteration the first carry is the result, whether it is read or not.
        absent = ignored if self.loop.turns else set()
        return [None if x in absent else got.get(x) for x in self.inputs]

    def _given(self, dys: Sequence[Tensor | None]) -> list[tuple[Tensor, Tensor]]:
        """Returns results of the body, and what stands for their cotangents."""
        first = self.loop.states
        return [
            (r, self.body.graph.given(r.spec))
            for k, (r, dy) in enumerate(zip(self.body.results, dys))
            if has_gradient(r.dtype) and (k < first or dy is not None)
        ]

    def _seed(
        self, given: list[tuple[Tensor, Tensor]], dys: Sequence[Tensor | None]
    ) -> None:
        """Sorts the cotangents: of states are carried, of sums the same each turn, else
        walked.
        """
        loop, formal = self.loop, iter(d for _, d in given)
        self.carried: dict[Tensor, Tensor] = {}
        for k, (r, y, dy) in enumerate(zip(self.body.results, self.ys, dys)):
            if not has_gradient(r.dtype) or (k >= loop.states and dy is None):
                continue
            dy = OPERATORS["zeros_like"](y) if dy is None else dy
            into = (
                self.carried
                if k < loop.states
                else self.captured
                if k < loop.states + loop.sums
                else self.walked
            )
            into[next(formal)] = dy

    def _run(
        self, nodes: list[Node], results: list[Tensor], carried: list[Tensor], sums: int
    ) -> tuple[Tensor, ...]:
        # What no turn changes takes less to make again than to stack.
        nodes = needed([*unvarying(self.body), *nodes], results)
        turn, made = self.body.arguments[0], {y for n in nodes for y in n.outputs}
        used = dict.fromkeys((*(x for n in nodes for x in uses(n)), *results))
        own = {
            *self.states,
            *self.rows,
            *(y for n in self.body.nodes for y in n.outputs),
        }
        kept = [x for x in used if x in own and x not in made and x not in self.walked]
        self.walked.update(zip(kept, self._keep(kept)))
        walked = [x for x in self.walked if x in used]
        body = Body.of(self.body.graph, [turn, *self.carried, *walked], nodes, results)
        loop = Loop(
            body, len(carried), len(walked), sums, self.loop.dim, not self.loop.reverse
        )
        return apply_all(
            loop,
            *self.carried.values(),
            *(self.walked[x] for x in walked),
            *(self.captured.get(x, x) for x in body.captures),
            mesh=self.node.mesh,
        )

    def _keep(self, kept: list[Tensor]) -> Iterable[Tensor]:
        """Makes the forward loop stack what the backward body needs of each turn."""
        node, op = self.node, self.node.op
        assert isinstance(op, Loop) and op.dim is not None
        first = op.states + op.sums
        stacks = dict(zip(op.body.results[first:], node.outputs[first:]))
        new = [x for x in kept if x not in stacks]
        if new:
            body = dataclasses.replace(op.body, results=(*op.body.results, *new))
            specs = [stacked(x.spec, op.dim) for x in new]
            extended = dataclasses.replace(op, body=body)
            more = node.owner.replace(node, extended, specs).outputs[-len(new) :]
            stacks.update(zip(new, more))
        return [stacks[x] for x in kept]
