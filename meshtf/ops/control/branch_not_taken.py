"""Gradients of a cond outside of functions: zeros for what the branch that does not run
uses.

There only one branch runs, op by op. The other one is recorded, and never runs: that
tells by which variables and tensors it has gradients. They get zeros, as they do from a
recorded cond, so that an optimizer treats a variable alike in both modes, whichever
branch is taken.

    with_branch_not_taken(mesh, taken(), other)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshtf.errors import NoValueError
from meshtf.graph import (
    OPERATORS,
    Body,
    GradientRule,
    Graph,
    HostOp,
    Node,
    ReadOp,
    Tensor,
    WriteOp,
    context,
    executing,
)
from meshtf.graph.control_flow.body import BodyGraph, record_body
from meshtf.graph.control_flow.branch import branch_gradient
from meshtf.mesh import Mesh
from meshtf.names import has_gradient
from meshtf.ops.control.custom_gradient import result_of
from meshtf.ops.control.nested_values import (
    pack,
    require_same_spec,
    require_same_structure,
    tensors_of,
)

BRANCHES_DIFFER = "the two branches of a cond differ"


class _NeverRun(BodyGraph):
    """Records the body of a branch that does not run; what it would write or print is
    left out.
    """

    def run(self, node: Node) -> tuple[Tensor, ...]:
        has_effect = isinstance(node.op, (WriteOp, HostOp))
        return node.outputs if has_effect else super().run(node)


def with_zeros_of_other_branch(
    mesh: Mesh | None, made: Any, other: Callable[[], Any]
) -> Any:
    """Returns what a branch made, whose gradients are zeros by what the other branch
    uses.

    A branch that asks for elements of a tensor, as a debugger does, runs outside of
    functions alone and cannot be recorded: then there are no zeros.

    Args:
      mesh: of the cond.
      made: what the branch that is taken returned.
      other: the branch that is not taken; it is recorded.

    Raises:
      ShapeError, DTypeError, PlanError: the two return different things.
    """
    returned: list[Any] = []

    def record() -> Sequence[Tensor]:
        returned.append(other())
        return tensors_of(returned[0], "result")

    taken = tensors_of(made, "result")
    try:
        with executing(Graph(mesh)):
            body = record_body(record, [], _NeverRun)
    except NoValueError:
        return made
    require_same_structure(made, returned[0], BRANCHES_DIFFER)
    for x, y in zip(taken, body.results):
        require_same_spec(x.spec, y.spec, BRANCHES_DIFFER)
    outside = {x: _outside(x) for x in body.captures if _is_outside(x)}
    if not outside:
        return made
    rule = _zeros_rule(len(taken), taken, body, outside)
    return pack(made, [result_of(rule, k, x) for k, x in enumerate(taken)])


def _is_outside(x: Tensor) -> bool:
    """Returns whether a gradient may be asked by a tensor that a body captures."""
    return has_gradient(x.dtype) and (
        x.sharded_value is not None or _read_variable(x) is not None
    )


def _outside(x: Tensor) -> Tensor:
    """Returns an eager tensor in place of one that a branch captures."""
    return x if x.sharded_value is not None else _read_variable(x).tensor()


def _read_variable(x: Tensor) -> Any:
    """Returns the variable whose read a tensor is, or None."""
    op = x.node.op
    if isinstance(op, ReadOp) and op.store.kind in ("parameter", "state"):
        return op.store
    return None


def _zeros_rule(
    count: int,
    taken: Sequence[Tensor],
    body: Body,
    outside: Mapping[Tensor, Tensor],
) -> GradientRule:
    """Returns the rule of `count` results: the gradient of `taken`, and zeros by what
    the body of the other branch captures.
    """
    captures = [x for x in body.captures if x in outside]
    inputs = (*taken, *(outside[x] for x in captures))
    gradient = functools.partial(_gradient, len(taken), captures, body, outside)
    return GradientRule(inputs, (), count, (), gradient)


def _gradient(
    number: int,
    captures: Sequence[Tensor],
    body: Body,
    outside: Mapping[Tensor, Tensor],
    dys: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Returns the cotangents of what the branch made, and zeros; these have gradients
    as well.
    """
    half = branch_gradient(body, dys)
    reached = [x for x in half.cotangents if x in outside]
    further = half.body([half.cotangents[x] for x in reached])
    rule = _zeros_rule(len(reached), (), further, {**outside, **half.outer_cotangents})
    zeros = {}
    for k, x in enumerate(reached):
        with context(primals=(outside[x],)):
            zeros[x] = result_of(rule, k, OPERATORS["zeros_like"](outside[x]))
    return [*dys[:number], *(zeros.get(x) for x in captures)]
