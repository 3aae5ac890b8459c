"""Control flow by a boolean tensor: while_loop and cond.

    x, n = mtf.while_loop(lambda x, n: mtf.reduce_max(x) > 1, halve_and_count, (x, zero))
    y = mtf.cond(loss > 1, lambda: x / 2, lambda: x)

All devices take the same branches and do the same iterations. Inside of a mtf.function
the branches, and the test and body of a loop, are recorded as graphs (`Body`). Outside of
one they run in Python, op by op.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import (
    Body,
    Branch,
    Cotangents,
    Graph,
    Loop,
    Sample,
    Source,
    Spec,
    Tensor,
    apply_all,
    current_executor,
    record_body,
)
from meshtf.graph.control_flow.body import no_gradient_of_while
from meshtf.names.arguments import as_callable
from meshtf.ops.common.op_bases import _Identity
from meshtf.ops.control.branch_not_taken import (
    BRANCHES_DIFFER,
    with_zeros_of_other_branch,
)
from meshtf.ops.control.nested_values import (
    ITERATION,
    next_carry,
    pack,
    record_result,
    require_same_spec,
    require_same_structure,
    tensors_of,
)
from meshtf.ops.control.seeds import alternatives, iteration

__all__ = ["cond", "while_loop"]


def while_loop(test: Callable[..., Tensor], body: Callable[..., Any], init: Any) -> Any:
    """Returns the first carry for which `test` is false: like `jax.lax.while_loop`.

    The carry is the tensors that an iteration passes to the next one. The loop has no
    gradient, in eager mode or recorded, since the number of iterations is not known in
    advance (`scan` has a gradient).

    Args:
      test: a function that takes the carry and returns bool []. If the carry is a tuple,
        its elements are the arguments.
      body: a function that takes the carry in the same way and returns the next carry.
      init: the initial carry: tensors in any nesting.

    Raises:
      ShapeError, DTypeError: the carry changes its names, sizes or data type, or `test`
        does not return bool [].
      PlanError: `test` or `body` write to a variable, or the mesh is not known yet.
    """
    return _while_loop(test, body, init)


def while_unfinished(
    is_unfinished: Callable[..., Tensor], body: Callable[..., Any], init: Any
) -> Any:
    """Returns the result of `while_loop`, whose test, bool [], is whether any entry of a batch
    is unfinished, and whose body changes nothing that the caller reads of a finished entry.

    So the results of an entry do not depend on other entries, although the number of
    iterations does, and a SavedModel may compute the batch in chunks (`any_size`). Arguments
    and errors are those of `while_loop`.
    """
    return _while_loop(is_unfinished, body, init, may_run_on=True)


def _while_loop(
    test: Callable[..., Tensor],
    body: Callable[..., Any],
    init: Any,
    may_run_on: bool = False,
) -> Any:
    """Returns the result of `while_loop`.

    Args:
      test, body, init: the arguments of `while_loop`.
      may_run_on: whether more iterations would change no result that is read.
    """
    test = as_callable("test", test)
    body = as_callable("body", body)
    specs = [x.spec for x in tensors_of(init, label="carry")]
    if not isinstance(current_executor(), Graph):
        return _eager_while(test, body, init, specs)

    def record_test(index: Tensor, *carry: Tensor) -> Sequence[Tensor]:
        with iteration(index):
            return [_checked_condition(_call(test, pack(init, carry)))]

    def record_iteration(index: Tensor, *carry: Tensor) -> Sequence[Tensor]:
        with iteration(index):
            new_carry = _call(body, pack(init, carry))
        return tensors_of(next_carry(init, new_carry, specs), label="carry")

    recorded_test = record_body(record_test, [ITERATION, *specs])
    recorded_body = record_body(record_iteration, [ITERATION, *specs])
    loop = Loop(
        recorded_body,
        num_carries=len(specs),
        condition=recorded_test,
        may_run_on=may_run_on,
    )
    captures = [*recorded_body.captures, *recorded_test.captures]
    last_carry = apply_all(loop, *tensors_of(init, label="carry"), *captures)
    return pack(init, last_carry)


def _eager_while(
    test: Callable[..., Tensor],
    body: Callable[..., Any],
    init: Any,
    specs: Sequence[Spec],
) -> Any:
    """Returns the result of a while loop that runs op by op.

    Args:
      test, body, init: the arguments of `while_loop`.
      specs: the specs of the tensors of `init`.
    """
    carry = init
    # Each iteration may have random ops of the same paths: their seeds differ by iteration.
    with alternatives() as alternative:
        for i in itertools.count():
            with alternative(), iteration(i):
                is_done = not bool(_checked_condition(_call(test, carry)))
                if is_done:
                    break
                new_carry = _call(body, carry)
            carry = next_carry(carry, new_carry, specs)
    tensors = tensors_of(carry, label="carry")
    if tensors:
        return pack(init, apply_all(WhileResult(), *tensors))
    return carry


class WhileResult(_Identity):
    """The result of an eager while loop. Its gradient raises the error that the gradient of a
    recorded loop raises.
    """

    # op(a + b, c + d) = op(a, c) + op(b, d): partial sums stay partial sums.
    linearity = "joint"
    # Inputs for the conformance suite: see `Sample`.
    conformance_samples = (Sample(inputs=("b:4;h:6",), gradient=False),)

    @property
    def display_name(self) -> str:
        return "while_loop"

    def gradient(self, dy: Any, y: Any, *xs: Any) -> Cotangents:
        first_result = y[0] if isinstance(y, tuple) else y
        raise no_gradient_of_while(first_result.node.source)


def cond(
    predicate: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]
) -> Any:
    """Returns then() if the predicate is true, and otherwise() if it is false.

    Only one branch runs, but both functions are called: the other branch is recorded, since
    gradients by tensors that only the other branch uses are zeros. Both must return tensors
    of equal names, sizes and data types. Random ops of one path (module names and op name)
    in both branches draw the same numbers; give them different names (name=) if they should
    not.

    Args:
      predicate: a scalar boolean tensor.
      then: a function without arguments. It may use any tensors and variables.
      otherwise: a function without arguments, like `then`.

    Raises:
      ShapeError, DTypeError: the results of the branches differ, or the predicate is not
        bool [].
      PlanError: a branch writes to a variable, or the mesh is not known yet.
    """
    then = as_callable("then", then)
    otherwise = as_callable("otherwise", otherwise)
    predicate = _checked_condition(predicate)
    if isinstance(current_executor(), Graph):
        return _recorded_cond(predicate, then, otherwise)
    return _eager_cond(predicate, then, otherwise)


def _eager_cond(
    predicate: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]
) -> Any:
    """Returns the result of one branch, which runs op by op. The other one is recorded, for
    its zero gradients.
    """
    if bool(predicate):
        branch = then
        other_branch = otherwise
    else:
        branch = otherwise
        other_branch = then
    # Both branches may have random ops of the same paths.
    with alternatives() as alternative:
        with alternative():
            result = branch()
        with alternative():
            return with_zeros_of_other_branch(predicate.mesh, result, other_branch)


def _recorded_cond(
    predicate: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]
) -> Any:
    """Records both branches as one `Branch` op in the current graph, and returns its
    results.
    """
    with alternatives() as alternative:
        then_body, then_result = _record_branch(then, alternative())
        otherwise_body, otherwise_result = _record_branch(otherwise, alternative())
    require_same_structure(then_result, otherwise_result, BRANCHES_DIFFER)
    for then_y, otherwise_y in zip(then_body.results, otherwise_body.results):
        require_same_spec(then_y.spec, otherwise_y.spec, BRANCHES_DIFFER)
    captures = [*then_body.captures, *otherwise_body.captures]
    branch = Branch(then=then_body, otherwise=otherwise_body)
    ys = apply_all(branch, predicate, *captures)
    return pack(then_result, ys)


def _record_branch(
    branch: Callable[[], Any], alternative: contextlib.AbstractContextManager[Any]
) -> tuple[Body, Any]:
    """Returns the recorded body of a branch, and its result: tensors in any nesting.

    Args:
      branch: the function.
      alternative: the context in which the function is called.
    """

    def run() -> Any:
        with alternative:
            return branch()

    return record_result(run)


def _call(fn: Callable[..., Any], carry: Any) -> Any:
    """Returns fn(carry), or fn(*carry) if the carry is a tuple."""
    if isinstance(carry, tuple):
        return fn(*carry)
    return fn(carry)


def _checked_condition(x: Any) -> Tensor:
    """Returns x, a scalar boolean tensor. Raises ShapeError or DTypeError if it is none."""
    if not isinstance(x, Tensor) or x.shape.names:
        raise ShapeError(
            explain_error(
                "a condition is one boolean, bool [].",
                tensor=repr(x),
                source=Source.of_caller(),
                way_out="Reduce it: mtf.reduce_any(x) or mtf.reduce_all(x).",
            )
        )
    if x.dtype != "bool":
        raise DTypeError(
            explain_error(
                f"a condition is bool, not {x.dtype}.",
                source=Source.of_caller(),
                way_out="Compare it: x > 0.",
            )
        )
    return x
