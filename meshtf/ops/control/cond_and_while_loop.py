"""Control that a boolean decides: while_loop, cond. All devices decide alike.

    x, n = mtf.while_loop(lambda x, n: mtf.reduce_max(x) > 1, halve_and_count, (x, zero))
    y = mtf.cond(loss > 1, lambda: x / 2, lambda: x)

Outside of a mtf.function they run as Python runs them, one op after another.
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
    Graph,
    Loop,
    Op,
    Sample,
    Source,
    Spec,
    Tensor,
    apply_all,
    current_executor,
    record_body,
)
from meshtf.graph.control_flow.loop import no_gradient_of_while
from meshtf.names.arguments import as_callable
from meshtf.ops.control.branch_not_taken import (
    BRANCHES_DIFFER,
    with_zeros_of_other_branch,
)
from meshtf.ops.control.nested_values import (
    ITERATION,
    next_carry,
    pack,
    require_same_spec,
    require_same_structure,
    tensors_of,
)
from meshtf.ops.control.seeds import alternatives, iteration

__all__ = ["cond", "while_loop"]


def while_loop(
    test: Callable[..., Tensor], body: Callable[..., Any], state: Any
) -> Any:
    """Returns the first state for which the test is false.

    It has no gradient, inside and outside of functions: how often it turns is not known
    beforehand (`scan` has one).

    Args:
      test: takes the state (its parts, if it is a tuple) and returns a truth value,
        bool [].
      body: takes the state likewise, and returns the next one.
      state: the first one: tensors, in any nesting.

    Raises:
      ShapeError, DTypeError: the state changes its names, sizes or data type, or the
        test gives no scalar of bool.
      PlanError: test or body write to a variable, or the mesh is not known yet.
    """
    test, body = as_callable("test", test), as_callable("body", body)
    specs = [x.spec for x in tensors_of(state, "state")]
    if not isinstance(current_executor(), Graph):
        last = _while(test, body, state, specs)
        ends = tensors_of(last, "state")
        return pack(state, apply_all(Ended(), *ends)) if ends else last

    def decide(turn: Tensor, *given: Tensor) -> Sequence[Tensor]:
        with iteration(turn):
            return [_truth(_call(test, pack(state, given)))]

    def run(turn: Tensor, *given: Tensor) -> Sequence[Tensor]:
        with iteration(turn):
            new = _call(body, pack(state, given))
        return tensors_of(next_carry(state, new, specs), "state")

    tested, recorded = (record_body(fn, [ITERATION, *specs]) for fn in (decide, run))
    loop = Loop(recorded, len(specs), test=tested)
    return pack(
        state,
        apply_all(
            loop, *tensors_of(state, "state"), *recorded.captures, *tested.captures
        ),
    )


def _while(
    test: Callable[..., Tensor],
    body: Callable[..., Any],
    state: Any,
    specs: Sequence[Spec],
) -> Any:
    """Runs a while loop op by op."""
    with alternatives() as another:
        for i in itertools.count():
            with another(), iteration(i):
                if not bool(_truth(_call(test, state))):
                    break
                new = _call(body, state)
            state = next_carry(state, new, specs)
    return state


class Ended(Op):
    """What a while loop left, outside of functions: as a recorded one, it has no
    gradient.
    """

    linearity = "joint"
    samples = (Sample((), ("b:4;h:6",), gradient=False),)

    @property
    def display_name(self) -> str:
        return "while_loop"

    def output_specs(self, *xs: Spec) -> tuple[Spec, ...]:
        return xs

    def local(self, context: Any, *xs: Any) -> tuple[Any, ...]:
        return xs

    def gradient(self, dy: Any, y: Any, *xs: Any) -> list[Any]:
        raise no_gradient_of_while((y[0] if isinstance(y, tuple) else y).node.source)


def cond(
    predicate: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]
) -> Any:
    """Returns what `then` returns where the predicate is true, else what `otherwise`
    does.

    Only that one runs, but the other one is called as well, to be recorded: gradients
    by what it uses are zeros. Both must return tensors of equal names, sizes and data
    types. Random ops of one path in both draw the same numbers: give them another name=
    where they should not.

    Args:
      predicate: bool [].
      then: takes nothing; uses tensors from outside as it likes.
      otherwise: likewise.

    Raises:
      ShapeError, DTypeError: the two return different things, or the predicate is no
        scalar of bool.
      PlanError: one of them writes to a variable, or the mesh is not known yet.
    """
    then, otherwise = as_callable("then", then), as_callable("otherwise", otherwise)
    truth = _truth(predicate)
    if not isinstance(current_executor(), Graph):
        with alternatives() as branch:
            taken, other = (then, otherwise) if bool(truth) else (otherwise, then)
            with branch():
                returned = taken()
            with branch():
                return with_zeros_of_other_branch(truth.mesh, returned, other)
    made: list[Any] = []

    def run(
        fn: Callable[[], Any], branch: contextlib.AbstractContextManager[Any]
    ) -> Body:
        def record() -> Sequence[Tensor]:
            with branch:
                made.append(fn())
            return tensors_of(made[-1], "result")

        return record_body(record, [])

    with alternatives() as branch:
        bodies = run(then, branch()), run(otherwise, branch())
    require_same_structure(made[0], made[1], BRANCHES_DIFFER)
    for x, y in zip(*(body.results for body in bodies)):
        require_same_spec(x.spec, y.spec, BRANCHES_DIFFER)
    captures = [x for body in bodies for x in body.captures]
    return pack(made[0], apply_all(Branch(*bodies), truth, *captures))


def _call(fn: Callable[..., Any], state: Any) -> Any:
    return fn(*state) if isinstance(state, tuple) else fn(state)


def _truth(x: Any) -> Tensor:
    if not isinstance(x, Tensor) or x.shape.names:
        raise ShapeError(
            explain_error(
                "what decides is one truth value, bool [].",
                tensor=repr(x),
                **{"from": Source.of_caller()},
                way_out="Reduce it: mtf.reduce_any(x) or mtf.reduce_all(x).",
            )
        )
    if x.dtype != "bool":
        raise DTypeError(
            explain_error(
                f"what decides is bool, not {x.dtype}.",
                **{"from": Source.of_caller()},
                way_out="Compare it: x > 0.",
            )
        )
    return x
