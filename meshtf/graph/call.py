"""Calls: a body that is recorded and planned once, and runs at several places of a program.

A pipeline calls the body of each stage once for each microbatch, and so its backward body.

    ys = apply_all(Call(body), *arguments, *body.captures)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from meshtf.graph.apply import apply_all
from meshtf.graph.body import Body, needed, record_more, uses
from meshtf.graph.context import context
from meshtf.graph.gradients import gradients_within
from meshtf.graph.op import Op, Spec
from meshtf.graph.tensor import Tensor
from meshtf.names import has_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Call(Op):
  """Runs a body; inputs are its arguments and captures. `follows`: what has to be there before."""

  body: Body
  follows: tuple[Tensor, ...] = ()

  def out(self, *xs: Spec) -> tuple[Spec, ...]:
    return tuple(r.spec for r in self.body.results)

  def flops(self, *xs: Spec) -> int:
    return self.body.flops

  @property
  def bodies(self) -> tuple[Body, ...]:
    return (self.body,)


@dataclasses.dataclass(frozen=True, eq=False)
class Backward:
  """The backward body of a body, and what it takes.

  Its arguments are `kept`, tensors of the forward body, the cotangents of results, and sums so far
  of the cotangents of `captures`. Its results are the cotangents of `arguments`, and these sums with
  those of this run.
  """

  body: Body
  kept: tuple[Tensor, ...]
  arguments: tuple[Tensor, ...]
  captures: tuple[Tensor, ...]


def backward_of(body: Body, results: Sequence[Tensor]) -> Backward:
  """Records the gradient of a body with respect to its arguments and captures.

  Args:
    body: the forward body.
    results: those of its results that have cotangents.
  """
  given = [body.graph.given(r.spec) for r in results]
  inputs = [x for x in (*body.arguments, *body.captures) if has_gradient(x.dtype)]
  sums: dict[Tensor, Tensor] = {}

  def gradient() -> list[Any]:
    found = dict(zip(inputs, gradients_within(set(body.nodes), results, inputs, given)))
    for x in body.captures:
      if found.get(x) is not None:
        sums[x] = body.graph.given(x.spec)
        with context(primals=(x,)):
          found[x] = sums[x] + found[x]
    return [found.get(x) for x in inputs]

  nodes, made = record_more(body, gradient)
  reached = {x: dx for x, dx in zip(inputs, made) if dx is not None}
  wanted = list(reached.values())
  nodes = needed(nodes, wanted)
  there = {*given, *sums.values(), *body.captures, *(y for n in nodes for y in n.outputs)}
  used = dict.fromkeys((*(x for n in nodes for x in uses(n)), *wanted))
  kept = tuple(x for x in used if x not in there)
  return Backward(Body.of(body.graph, (*kept, *given, *sums.values()), nodes, wanted), kept,
                  tuple(x for x in reached if x not in sums), tuple(sums))


def call(body: Body, arguments: Sequence[Tensor], follows: Sequence[Tensor] = ()
         ) -> tuple[Tensor, ...]:
  """Returns the results of a body."""
  return apply_all(Call(body, tuple(follows)), *arguments, *body.captures)
