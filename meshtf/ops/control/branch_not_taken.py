"""Gradients of an eager cond: zeros for tensors that only the other branch uses.

    result = then()                      # the branch that runs, op by op
    result = with_zeros_of_other_branch(mesh, result, otherwise)

In eager mode only one branch runs. The other branch is recorded as a `Body` (a graph), but
never run, to find its captures: the variables and tensors that it uses. Their gradients are
zeros, as in a recorded cond. So an optimizer treats a variable equally in both modes,
whichever branch runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshtf.errors import NoValueError
from meshtf.graph import (
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
    is_variable,
)
from meshtf.graph.control_flow.body import BodyGraph
from meshtf.graph.control_flow.branch import branch_gradient
from meshtf.mesh import Mesh
from meshtf.names import has_gradient
from meshtf.ops.control.custom_gradient import result_of
from meshtf.ops.control.nested_values import (
    pack,
    record_result,
    require_same_spec,
    require_same_structure,
    tensors_of,
)
from meshtf.ops.variables.fill import zeros_like

BRANCHES_DIFFER = "the two branches of a cond differ"


class _NeverRunGraph(BodyGraph):
    """Records the body of a branch that does not run, without its writes and prints."""

    def run(self, node: Node) -> tuple[Tensor, ...]:
        has_effect = isinstance(node.op, (WriteOp, HostOp))
        if has_effect:
            # Not recorded: the graph of a body would raise an error.
            return node.outputs
        return super().run(node)


def with_zeros_of_other_branch(
    mesh: Mesh | None, result: Any, other_branch: Callable[[], Any]
) -> Any:
    """Returns the result of a branch, with gradients that are zeros for tensors that only
    the other branch uses.

    If the other branch reads the elements of a tensor, as `print(x.numpy())` does, it cannot
    be recorded. Then those tensors get no gradients.

    Args:
      mesh: the mesh of the cond, or None.
      result: the result of the branch that ran: tensors in any nesting.
      other_branch: the function of the other branch, without arguments.

    Raises:
      ShapeError, DTypeError, PlanError: the results of the branches differ.
    """
    ys = tensors_of(result, label="result")
    try:
        with executing(Graph(mesh)):
            body, other_result = record_result(other_branch, _NeverRunGraph)
    except NoValueError:
        return result
    require_same_structure(result, other_result, BRANCHES_DIFFER)
    for y, other_y in zip(ys, body.results):
        require_same_spec(y.spec, other_y.spec, BRANCHES_DIFFER)
    eager_values = _eager_values(body.captures)
    if not eager_values:
        return result
    rule = _zeros_rule(num_results=len(ys), ys=ys, body=body, eager_values=eager_values)
    ys_with_zeros = [result_of(rule, index=k, y=y) for k, y in enumerate(ys)]
    return pack(result, ys_with_zeros)


def _eager_values(captures: Sequence[Tensor]) -> dict[Tensor, Tensor]:
    """Returns an eager tensor for each capture of a body that may have a gradient.

    A capture that is an eager tensor stays as it is. A capture that is a recorded read of a
    variable has no value: the variable is read again.
    """
    eager_values = {}
    for x in captures:
        if not has_gradient(x.dtype):
            continue
        is_eager = x.sharded_value is not None
        if is_eager:
            eager_values[x] = x
            continue
        variable = _variable_of(x)
        if variable is not None:
            eager_values[x] = variable.tensor()
    return eager_values


def _variable_of(x: Tensor) -> Any:
    """Returns the variable that a tensor was read from, or None."""
    op = x.node.op
    # A parameter is updated by optimizers; a state is any other variable.
    if isinstance(op, ReadOp) and is_variable(op.store):
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
      ys: the first inputs of the rule: the results of the branch that ran.
      body: the recorded body of the other branch.
      eager_values: the further inputs, which get zeros, by capture of `body`.
    """
    captures = [x for x in body.captures if x in eager_values]

    def gradient(dys: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Returns the cotangents of a branch's results, and zeros for `captures`.

        The zeros have gradients too: for gradients of gradients, they are the results of a
        rule that gives zeros to the tensors that the gradient of the other branch uses. A
        capture that the results of the other branch do not depend on gets None.
        """
        backward = branch_gradient(body, dys)
        captures_with_zeros = [x for x in backward.cotangents if x in eager_values]
        backward_body = backward.body(
            [backward.cotangents[x] for x in captures_with_zeros]
        )
        rule = _zeros_rule(
            num_results=len(captures_with_zeros),
            ys=(),
            body=backward_body,
            eager_values={**eager_values, **backward.outer_cotangents},
        )
        zeros = {}
        for k, x in enumerate(captures_with_zeros):
            # The primals: the forward tensors whose gradients are computed; see `Context`.
            with context(primals=(eager_values[x],)):
                zeros[x] = result_of(rule, index=k, y=zeros_like(eager_values[x]))
        return [*dys[: len(ys)], *(zeros.get(x) for x in captures)]

    return CustomGradientRule(
        inputs=(*ys, *(eager_values[x] for x in captures)),
        captures=(),
        num_results=num_results,
        intermediates=(),
        gradient=gradient,
    )
