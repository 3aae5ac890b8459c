"""Gradients of your own, as tf.custom_gradient has them, on named tensors.

    @mtf.custom_gradient
    def clipped(x):                      # the identity, whose gradient lies within bounds
      return x, lambda dy: [mtf.clip(dy, -1.0, 1.0)]

The rule gets the cotangent of each result and returns that of each argument. It may use
what the function made on its way; under `mtf.recompute` that is computed again like all
else.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import (
    OPERATORS,
    Context,
    GradientBarrier,
    Op,
    ReadOp,
    Rule,
    Sample,
    Source,
    Spec,
    Tensor,
    apply,
    context,
    current,
    current_executor,
    next_serial,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import has_gradient
from meshtf.names.arguments import as_callable, described
from meshtf.ops.control.nested_values import flatten
from meshtf.ops.variables.read_write import transpose_like


@dataclasses.dataclass(frozen=True)
class Result(Op):
    """The result of a function with a gradient of its own, which takes the place of
    this op's.
    """

    linearity = "joint"
    samples = (Sample((), ("b:4;h:6",), gradient=False),)

    @property
    def display_name(self) -> str:
        return "custom_gradient"

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return xs

    def local(self, context: Any, *xs: Any) -> tuple[Any, ...]:
        return xs


def result_of(rule: Rule, index: int, y: Tensor) -> Tensor:
    """Returns y as a result of a rule, by which its gradient is."""
    with context(rule=(rule, index)):
        return apply(Result(), y)


def custom_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Returns fn with a gradient of its own.

    Args:
      fn: takes tensors, variables and other values in any nesting, and returns a pair:
        its result (a tensor, or several in any nesting), and a rule. The rule takes the
        cotangent of each tensor of the result (zeros where there is none), and returns
        a list with the cotangent of each tensor
        or variable among the positional arguments, in order; None where there is none.
        For a single argument it may return the cotangent itself. A rule that is not
        linear in cotangents, such as one that clips, belongs in first gradients: in a
        gradient of a gradient it may get a cotangent term by term where fn is called
        within a mtf.function or mtf.recompute, which compute it once more. With
        microbatches it gets the cotangent of each microbatch's own loss.

    Raises, when it is called or its gradient is asked:
      PlanError: fn returns no such pair, or the rule another number of cotangents; or
        fn uses a tensor or variable, of which the gradient is asked, that is not among
        its arguments.
      ShapeError, DTypeError: a cotangent is not like its argument.
    """
    as_callable("fn", fn)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        source = Source.of_caller()
        flat = [x.tensor() if hasattr(x, "tensor") else x for x in flatten(args)]
        since, recorded = next_serial(), getattr(current_executor(), "nodes", [])
        before = len(recorded)
        made = fn(*tf.nest.pack_sequence_as(args, flat), **kwargs)
        beside = tuple(y for node in recorded[before:] for y in node.outputs)
        if not (isinstance(made, tuple) and len(made) == 2 and callable(made[1])):
            raise PlanError(
                explain_error(
                    f"{getattr(fn, '__name__', repr(fn))} has a gradient of its own, "
                    "but does not return it.",
                    **{"from": source},
                    way_out="Return the result and a rule: return y, lambda dy: [dx].",
                )
            )
        ys = flatten(made[0])
        own = [as_tensor("result", y) for y in ys if y is not None]
        inputs = tuple(x for x in flat if isinstance(x, Tensor))
        rule = Rule(
            inputs,
            _captures(own, inputs, since),
            len(own),
            beside,
            functools.partial(_cotangents, made[1], inputs, own, source, current()),
        )
        results = iter([result_of(rule, k, y) for k, y in enumerate(own)])
        return tf.nest.pack_sequence_as(
            made[0], [None if y is None else next(results) for y in ys]
        )

    return wrapped


def _captures(
    ys: Sequence[Tensor], inputs: Sequence[Tensor], since: int
) -> tuple[Tensor, ...]:
    """Returns what ys depend on besides inputs, of what was made before a number, and
    variables.
    """
    ops = [x.node.op for x in inputs]
    given = [op.store for op in ops if isinstance(op, ReadOp)]
    stack, seen, found = list(ys), set(map(id, inputs)), []
    while stack:
        x = stack.pop()
        if id(x) in seen or not has_gradient(x.dtype):
            continue
        seen.add(id(x))
        op = x.node.op
        if isinstance(op, ReadOp) or x.node.serial < since:
            if not isinstance(op, ReadOp) or op.store not in given:
                found.append(x)
        elif not isinstance(op, GradientBarrier):
            called = (
                not x.node.inputs and x.node.rule is not None
            )  # a function, in eager mode
            stack.extend(x.node.rule.inputs if called else x.node.inputs)
    return tuple(found)


def _cotangents(
    rule: Callable[..., Any],
    inputs: Sequence[Tensor],
    ys: Sequence[Tensor],
    source: Source,
    forward: Context,
    dys: Sequence[Any],
) -> list[Any]:
    """Calls the user's rule, in its function's iterations of loops and layers of a
    Repeat.

    It is held to what it must return.
    """
    full = [
        OPERATORS["zeros_like"](y) if dy is None and has_gradient(y.dtype) else dy
        for y, dy in zip(ys, dys, strict=True)
    ]
    with context(iterations=forward.iterations, rows=forward.rows):
        dxs = rule(*full)
    dxs = list(dxs) if isinstance(dxs, (list, tuple)) else [dxs]
    if len(dxs) != len(inputs):
        raise PlanError(
            explain_error(
                f"a gradient of its own gave {len(dxs)} cotangents for {len(inputs)} "
                "tensors.",
                arguments=" ".join(repr(x.shape) for x in inputs),
                **{"from": source},
                way_out="Return one for each tensor among the arguments, None where "
                "there is none.",
            )
        )
    dxs = [dx.tensor() if hasattr(dx, "tensor") else dx for dx in dxs]
    return [None if dx is None else _like(dx, x, source) for x, dx in zip(inputs, dxs)]


def _like(dx: Any, x: Tensor, source: Source) -> Tensor:
    facts = {"argument": repr(x), "cotangent": repr(dx), "from": source}
    if not isinstance(dx, Tensor):
        raise PlanError(
            explain_error(
                f"a gradient of its own gave {described(dx)} for a cotangent, which is "
                "a tensor or None.",
                **facts,
                way_out="Return mtf.ones_like(x) * value, or mtf.broadcast of a scalar "
                "tensor.",
            )
        )
    if set(dx.shape) != set(x.shape):
        raise ShapeError(
            explain_error(
                "a gradient of its own gave a cotangent of other dimensions than its "
                "argument.",
                **facts,
                way_out="Sum over names that the argument lacks: mtf.reduce_sum; "
                "repeat along those that the cotangent lacks: mtf.broadcast.",
            )
        )
    if dx.dtype != x.dtype:
        raise DTypeError(
            explain_error(
                "a gradient of its own gave a cotangent of another data type than its "
                "argument.",
                **facts,
                way_out=f'Convert it: mtf.cast(dx, "{x.dtype}").',
            )
        )
    return transpose_like(dx, x.shape)
