"""Branches: one of two bodies runs, and all devices take the same one.

    apply_all(Branch(then, otherwise), predicate, *then.captures, *otherwise.captures)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from meshtf.graph.apply import apply_all
from meshtf.graph.body import Body, record_more, require_given
from meshtf.graph.gradients import gradients_within
from meshtf.graph.op import Op, Spec
from meshtf.graph.operators import OPERATORS
from meshtf.graph.tensor import Tensor
from meshtf.names import has_gradient


@dataclasses.dataclass(frozen=True, eq=False)
class Branch(Op):
  """Runs `then` where the first input is true, else `otherwise`; both give the same specs.

  Inputs are the predicate, the captures of `then`, and those of `otherwise`.
  """

  then: Body
  otherwise: Body

  def out(self, *xs: Spec) -> tuple[Spec, ...]:
    require_given((*self.then.captures, *self.otherwise.captures), xs[1:])
    require_given(self.otherwise.results, [r.spec for r in self.then.results])
    return tuple(r.spec for r in self.then.results)

  def flops(self, *xs: Spec) -> int:
    return max(self.then.flops, self.otherwise.flops)

  @property
  def bodies(self) -> tuple[Body, ...]:
    return self.then, self.otherwise

  def captures(self, xs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Returns the inputs that are captures of each body."""
    middle = 1 + len(self.then.captures)
    return xs[1:middle], xs[middle:]

  def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
    """Each body of the gradient computes its forward body again."""
    dys = dy if isinstance(dy, tuple) else (dy,)
    ours, theirs = self.captures(xs)
    bodies, inputs = [], []
    for body, own in ((self.then, ours), (self.otherwise, theirs)):
      gradient, given = self._backward(body, dys)
      outside = dict(zip(body.captures, own)) | given
      bodies.append(gradient)
      inputs += [outside[x] if x in outside else x for x in gradient.captures]
    made = iter(apply_all(Branch(*bodies), xs[0], *inputs, mesh=xs[0].mesh))
    return [None, *(next(made) if has_gradient(x.dtype) else None for x in xs[1:])]

  def _backward(self, body: Body, dys: Sequence[Tensor | None]
                ) -> tuple[Body, dict[Tensor, Tensor]]:
    """Returns the cotangents of all floating captures; those of the other body are zeros."""
    floats = [x for b in (self.then, self.otherwise) for x in b.captures if has_gradient(x.dtype)]
    own = set(body.captures)
    pairs = [(r, body.graph.given(r.spec), dy) for r, dy in zip(body.results, dys)
             if dy is not None]
    ours = [x for x in dict.fromkeys(floats) if x in own]

    def backward() -> list[Tensor]:
      dxs = gradients_within(set(body.nodes), [r for r, _, _ in pairs], ours,
                             [d for _, d, _ in pairs])
      made = dict(zip(ours, dxs))
      out = []
      for b in (self.then, self.otherwise):
        for x in b.captures:
          if has_gradient(x.dtype):
            dx = made.get(x) if b is body else None
            out.append(OPERATORS["zeros_like"](x) if dx is None else dx)
      return out

    nodes, results = record_more(body, backward)
    gradient = Body.of(body.graph, (), [*body.nodes, *nodes], results)
    return gradient, {d: dy for _, d, dy in pairs if dy is not None}
