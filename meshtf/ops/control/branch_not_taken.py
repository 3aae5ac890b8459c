"""Gradients of an eager cond: zeros for tensors that only the other branch uses.

In eager mode only one branch runs, op by op. The other branch is recorded, but never run,
to find the variables and tensors that it uses. Their gradients are zeros, as those of a
recorded cond are. So an optimizer treats a variable equally in both modes, whichever branch
runs.

    with_zeros_of_other_branch(mesh, branch(), other_branch)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshtf.errors import NoValueError
from meshtf.graph import (
    OPERATORS,
    Body,
    CustomGradientRule,
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
    """Records the body of a branch that does not run, without its writes and prints."""

    def run(self, node: Node) -> tuple[Tensor, ...]:
        has_effect = isinstance(node.op, (WriteOp, HostOp))
        if has_effect:
            return node.outputs
        return super().run(node)


def with_zeros_of_other_branch(
    mesh: Mesh | None, result: Any, other_branch: Callable[[], Any]
) -> Any:
    """Returns the result of a branch, whose gradients by tensors that only the other
    branch uses are zeros.

    If the other branch reads the values of a tensor, for example in a debugger, it cannot
    be recorded, and there are no zeros.

    Args:
      mesh: the mesh of the cond, or None.
      result: the result of the branch that ran: tensors in any nesting.
      other_branch: a function without arguments, which is recorded.

    Raises:
      ShapeError, DTypeError, PlanError: the results of the branches differ.
    """
    other_result: Any = None

    def record() -> Sequence[Tensor]:
        nonlocal other_result
        other_result = other_branch()
        return tensors_of(other_result, "result")

    ys = tensors_of(result, "result")
    try:
        with executing(Graph(mesh)):
            body = record_body(record, [], _NeverRun)
    except NoValueError:
        return result
    require_same_structure(result, other_result, BRANCHES_DIFFER)
    for y, other_y in zip(ys, body.results):
        require_same_spec(y.spec, other_y.spec, BRANCHES_DIFFER)
    eager_values = _eager_values(body.captures)
    if not eager_values:
        return result
    rule = _zeros_rule(num_results=len(ys), ys=ys, body=body, eager_values=eager_values)
    return pack(result, [result_of(rule, k, y) for k, y in enumerate(ys)])


def _eager_values(captures: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Returns an eager tensor for each capture of a body that may have a gradient.

    Such a capture is either an eager tensor, which is returned as it is, or a read of a
    variable, which is read again.
    """
    values = {}
    for x in captures:
        if not has_gradient(x.dtype):
            continue
        if x.sharded_value is not None:
            values[x] = x
            continue
        variable = _variable_of(x)
        if variable is not None:
            values[x] = variable.tensor()
    return values


def _variable_of(x: Tensor) -> Any:
    """Returns the variable of which a tensor is a read, or None."""
    op = x.node.op
    if isinstance(op, ReadOp) and op.store.kind in ("parameter", "state"):
        return op.store
    return None


def _zeros_rule(
    num_results: int,
    ys: Sequence[Tensor],
    body: Body,
    eager_values: Mapping[Tensor, Tensor],
) -> GradientRule:
    """Returns a gradient rule that passes cotangents to `ys`, and zeros to captures.

    Args:
      num_results: the number of cotangents that the rule takes.
      ys: the leading inputs of the rule: the results of the branch that ran.
      body: the recorded body of the other branch.
      eager_values: the inputs that get zeros, by capture of `body`.
    """
    captures = [x for x in body.captures if x in eager_values]
    inputs = (*ys, *(eager_values[x] for x in captures))
    gradient = functools.partial(_gradient, len(ys), captures, body, eager_values)
    return CustomGradientRule(inputs, (), num_results, (), gradient)


def _gradient(
    num_ys: int,
    captures: Sequence[Tensor],
    body: Body,
    eager_values: Mapping[Tensor, Tensor],
    dys: Sequence[Tensor | None],
) -> list[Tensor | None]:
    """Returns the cotangents of a branch's results, and zeros for `captures`.

    The zeros have gradients too: zeros by the tensors that the gradient of the other branch
    uses. A capture that this gradient does not reach gets None.

    Args:
      num_ys: the number of leading inputs of the rule, whose cotangents are passed on.
      captures: the captures of `body` that may have gradients.
      body: the recorded body of the other branch.
      eager_values: the inputs that get zeros, by capture of `body`.
      dys: the cotangents of the rule's results.
    """
    backward = branch_gradient(body, dys)
    reached = [x for x in backward.cotangents if x in eager_values]
    backward_body = backward.body([backward.cotangents[x] for x in reached])
    values = {**eager_values, **backward.outer_cotangents}
    rule = _zeros_rule(
        num_results=len(reached), ys=(), body=backward_body, eager_values=values
    )
    zeros = {}
    for k, x in enumerate(reached):
        with context(primals=(eager_values[x],)):
            zeros_like_x = OPERATORS["zeros_like"](eager_values[x])
            zeros[x] = result_of(rule, k, zeros_like_x)
    return [*dys[:num_ys], *(zeros.get(x) for x in captures)]
