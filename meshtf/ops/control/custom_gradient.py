"""User-defined gradients, like tf.custom_gradient, on named tensors.

    @mtf.custom_gradient
    def clipped(x):                      # the identity, with a clipped gradient
      return x, lambda dy: [mtf.clip(dy, -1.0, 1.0)]

The function returns its result and a rule. The rule takes the cotangent of each result, and
returns the cotangent of each argument. It may use intermediate tensors of the function;
under `mtf.recompute` these are recomputed like all others.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import (
    CustomGradientRule,
    GradientBarrier,
    GradientRule,
    ReadOp,
    Sample,
    Source,
    Tensor,
    apply,
    context,
    current,
    current_executor,
    next_serial,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import has_gradient, nested
from meshtf.names.arguments import as_callable, described
from meshtf.ops.common.op_bases import _Identity
from meshtf.ops.control.nested_values import flatten, leaves, pack
from meshtf.ops.control.seeds import ForwardContext
from meshtf.ops.variables.fill import zeros_like
from meshtf.ops.variables.read_write import transpose_like


@dataclasses.dataclass(frozen=True)
class Result(_Identity):
    """A result of a function with a user-defined gradient.

    The op has no gradient rule: the user's `GradientRule` is attached to its node.
    """

    linearity = "joint"  # op(a + b) = op(a) + op(b): partial sums stay partial sums
    # Inputs for the conformance suite: see `Sample`.
    conformance_samples = (Sample(inputs=("b:4;h:6",), gradient=False),)

    @property
    def display_name(self) -> str:
        return "custom_gradient"


def result_of(rule: GradientRule, index: int, y: Tensor) -> Tensor:
    """Returns y [...], with the gradient that a rule defines.

    Args:
      rule: the gradient rule of a function.
      index: the index of y among the results of the function.
      y: the result.
    """
    with context(gradient_rule=(rule, index)):
        return apply(Result(), y)


def custom_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns fn with the gradient that it defines.

    A rule that is not linear in cotangents, such as one that clips, is meant for first
    gradients. In a gradient of a gradient, the rule may be called once for each term of a
    cotangent, not for the sum, if fn is called within a mtf.function or mtf.recompute, which
    compute fn again. With microbatches, the rule gets the cotangent of each microbatch's
    loss.

    A random op in the rule draws the numbers that an op of its path draws in fn, whatever the
    seeds where the gradient is taken. So a rule draws a mask of fn again, or another one by
    another name=.

    Args:
      fn: a function of tensors, variables and other values in any nesting. It returns a
        pair: its result (tensors in any nesting) and a rule. The rule takes the cotangent
        of each tensor of the result (zeros if there is none). It returns a list: for each
        tensor or variable among the positional arguments, in order, the cotangent or None.
        For a single argument it may return the cotangent instead of a list.

    Raises, when the returned function is called or its gradient is computed:
      PlanError: fn does not return such a pair; the rule returns another number of
        cotangents; or fn captures a tensor or variable that the gradient is computed for:
        the rule has cotangents only for arguments.
      ShapeError, DTypeError: a cotangent has another shape or data type than its argument.
    """
    fn = as_callable("fn", fn)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        """Calls fn, and attaches the rule that fn returned to the results."""
        source = Source.of_caller()
        flat_args = [x.tensor() if hasattr(x, "tensor") else x for x in flatten(args)]
        substitutes = current().substitutes
        if substitutes is not None:
            flat_args = [
                substitutes.get(x, x) if isinstance(x, Tensor) else x for x in flat_args
            ]
        inputs = tuple(x for x in flat_args if isinstance(x, Tensor))
        # Nodes (applied ops) have serial numbers: those of fn are larger than this one.
        start_serial = next_serial()
        # The list of the current graph, to which the ops of fn append nodes. In eager mode
        # there is no graph.
        nodes = getattr(current_executor(), "nodes", [])
        num_nodes_before = len(nodes)
        paths_before = set(current().random_paths or ())
        args_without_variables = nested.pack_sequence_as(args, flat_args)
        returned = fn(*args_without_variables, **kwargs)
        forward = ForwardContext.after_call(paths_before)
        intermediates = [*forward.computed_tensors]
        for node in nodes[num_nodes_before:]:
            intermediates.extend(node.outputs)
        result, user_rule = _result_and_rule(returned, fn, source)
        ys = [as_tensor("result", y) for y in leaves(result)]
        cotangents = functools.partial(
            _cotangents,
            rule=user_rule,
            inputs=inputs,
            ys=ys,
            source=source,
            forward=forward,
        )
        rule = CustomGradientRule(
            inputs=inputs,
            captures=_captures(ys, inputs, start_serial),
            num_results=len(ys),
            intermediates=tuple(intermediates),
            gradient=cotangents,
        )
        ys_with_rule = [result_of(rule, index=k, y=y) for k, y in enumerate(ys)]
        return pack(result, ys_with_rule)

    return wrapped


def _result_and_rule(
    returned: Any, fn: Callable[..., Any], source: Source
) -> tuple[Any, Callable[..., Any]]:
    """Returns the result and the rule that fn returned. Raises PlanError if it returned
    something else.
    """
    is_pair = isinstance(returned, tuple) and len(returned) == 2
    if not is_pair or not callable(returned[-1]):
        raise PlanError(
            explain_error(
                f"{getattr(fn, '__name__', repr(fn))} has a custom gradient, but does "
                "not return it.",
                source=source,
                way_out="Return the result and a rule: return y, lambda dy: [dx].",
            )
        )
    return returned


def _captures(
    ys: Sequence[Tensor], inputs: Sequence[Tensor], start_serial: int
) -> tuple[Tensor, ...]:
    """Returns the tensors that a function captures and that its results depend on.

    Args:
      ys: the results of the function.
      inputs: the arguments of the function, which are not captures.
      start_serial: the serial number at the call. A node with a smaller number is older
        than the call.
    """
    input_ops = [x.node.op for x in inputs]
    # A store is a variable, or an argument of a mtf.function.
    input_stores = [op.store for op in input_ops if isinstance(op, ReadOp)]
    captures = []
    visited_ids = set(map(id, inputs))
    # Depth-first search, from the results to older tensors.
    to_visit = list(ys)
    while to_visit:
        x = to_visit.pop()
        if id(x) in visited_ids or not has_gradient(x.dtype):
            continue
        visited_ids.add(id(x))
        op = x.node.op
        if isinstance(op, ReadOp):
            if op.store not in input_stores:
                captures.append(x)
        elif x.node.serial < start_serial:
            captures.append(x)
        elif not isinstance(op, GradientBarrier):
            to_visit.extend(_inputs_of(x))
    return tuple(captures)


def _inputs_of(x: Tensor) -> Sequence[Tensor]:
    """Returns the tensors from which x was computed."""
    node = x.node
    # A mtf.function called in eager mode is a node without inputs: those of the function are
    # in its gradient rule.
    if node.inputs or node.gradient_rule is None:
        return node.inputs
    return node.gradient_rule.inputs


def _cotangents(
    dys: Sequence[Any],
    *,
    rule: Callable[..., Any],
    inputs: Sequence[Tensor],
    ys: Sequence[Tensor],
    source: Source,
    forward: ForwardContext,
) -> list[Any]:
    """Returns the cotangents of the inputs that the user's rule returns, and checks them.

    Args:
      dys: the cotangent of each result, or None.
      rule: the user's rule. It draws the random numbers of the context in which the function
        was called, and reads the variables of its layer of a Repeat.
      inputs: the tensors among the arguments of the function.
      ys: the results of the function.
      source: the line of the call, for errors.
      forward: the context in which the function was called.
    """
    result_cotangents = []
    for y, dy in zip(ys, dys, strict=True):
        if dy is None and has_gradient(y.dtype):
            dy = zeros_like(y)
        result_cotangents.append(dy)
    with forward.again():
        dxs = rule(*result_cotangents)
    if isinstance(dxs, (list, tuple)):
        dxs = list(dxs)
    else:
        dxs = [dxs]
    if len(dxs) != len(inputs):
        raise PlanError(
            explain_error(
                f"a custom gradient gave {len(dxs)} cotangents for {len(inputs)} "
                "tensors.",
                arguments=" ".join(repr(x.shape) for x in inputs),
                source=source,
                way_out="Return one for each tensor among the arguments, or None.",
            )
        )
    input_cotangents = []
    for x, dx in zip(inputs, dxs):
        if hasattr(dx, "tensor"):
            dx = dx.tensor()
        if dx is not None:
            dx = _checked_cotangent(dx, x, source)
        input_cotangents.append(dx)
    return input_cotangents


def _checked_cotangent(dx: Any, x: Tensor, source: Source) -> Tensor:
    """Returns a cotangent of x with its dimensions in the order of x.

    Raises:
      PlanError: the cotangent is no tensor.
      ShapeError, DTypeError: the cotangent has other dimensions or another data type than
        x.
    """
    facts = {"argument": repr(x), "cotangent": repr(dx), "from": source}
    if not isinstance(dx, Tensor):
        raise PlanError(
            explain_error(
                f"a custom gradient gave {described(dx)} for a cotangent, which is a "
                "tensor or None.",
                **facts,
                way_out="Return mtf.ones_like(x) * value, or mtf.broadcast of a scalar "
                "tensor.",
            )
        )
    if set(dx.shape) != set(x.shape):
        raise ShapeError(
            explain_error(
                "a custom gradient gave a cotangent of other dimensions than its "
                "argument.",
                **facts,
                way_out="Sum over names that the argument lacks: mtf.reduce_sum; "
                "repeat along those that the cotangent lacks: mtf.broadcast.",
            )
        )
    if dx.dtype != x.dtype:
        raise DTypeError(
            explain_error(
                "a custom gradient gave a cotangent of another data type than its "
                "argument.",
                **facts,
                way_out=f'Convert it: mtf.cast(dx, "{x.dtype}").',
            )
        )
    return transpose_like(dx, x.shape)
