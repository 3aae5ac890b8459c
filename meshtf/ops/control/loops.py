"""Loops of a known number of iterations: scan, scan_and_sum. All devices take part in
one loop.

    def layer(h, w):                                   # one traced body for a deep model
      return mtf.relu(mtf.einsum([h, w], "batch;d_out")), None
    h, _ = mtf.scan(layer, h, weights, "layers")        # weights[layers, d, d_out]

State is cut as the layout says. Outside of a mtf.function they run as Python runs them,
one op after another, so a body can be looked at. Random ops draw other numbers in each
iteration, wherever the seed is set.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import (
    Body,
    Graph,
    Loop,
    Source,
    Spec,
    Tensor,
    apply_all,
    current_executor,
    executing,
    record_body,
)
from meshtf.graph.control_flow.loop import stacked, unused_name
from meshtf.names import Dimension, accumulation_dtype
from meshtf.names.arguments import as_bool, as_callable, as_dim, as_int
from meshtf.ops.common.batch_dimensions import index_in_batch
from meshtf.ops.control.nested_values import (
    ITERATION,
    leaves,
    next_carry,
    pack,
    pack_next,
    tensors_of,
)
from meshtf.ops.control.seeds import alternatives, iteration
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.shapes.stack import stack, unstack
from meshtf.ops.variables.fill import full

__all__ = ["scan", "scan_and_sum"]


def scan(
    body: Callable[..., tuple[Any, Any]],
    state: Any,
    rows: Any = None,
    dim: str = "turns",
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Returns the last state, and what the body made in each turn, stacked along `dim`.

    It has a gradient, which keeps of each turn what the backward pass needs: with
    `mtf.recompute` of the body that is its state alone. A tensor from outside that
    every turn uses, such as a weight of a recurrent network, gets one sum of gradients,
    which devices add up once, after the loop.

    Args:
      body: takes a state and a row of `rows` (or None), returns the next state and what
        to stack.
      state: the first one: tensors, in any nesting, in which None may be; or None.
      rows: tensors with dimension `dim`, likewise; each turn gets one row, without
        `dim`.
      dim: the name that is walked along, and that stacks get first.
      length: how many turns, if there are no rows; 0: the state stays and stacks are
        empty.
      reverse: whether to start with the last row.

    Raises:
      ShapeError, DTypeError: a state changes its names, sizes or data type (their order
        may change: it is brought back); rows lack `dim`, or have different numbers of
          it.
      PlanError: the body writes to a variable, or the mesh is not known yet.
    """
    as_callable("body", body)

    def turn(state: Any, row: Any) -> tuple[Any, Any, Any]:
        new, stack = _pair(body(state, row))
        return new, None, stack

    state, _, stacks = scan_and_sum(turn, state, rows, dim, length, reverse)
    return state, stacks


def scan_and_sum(
    body: Callable[..., tuple[Any, Any, Any]],
    state: Any,
    rows: Any = None,
    dim: str = "turns",
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any, Any]:
    """Returns what `scan` does, with sums over all turns: (last state, sums, stacks).

    The body returns (state, what to add up, what to stack). What is added up may stay
    unfinished in all turns: devices reduce a sum once, after the loop, and not in each
    turn, as they would a state. Half floats are added up in float32. Arguments and
    errors are those of `scan`.
    """
    as_callable("body", body)
    dim = as_dim("dim", dim)
    walked = Dimension(dim, _length(rows, dim, length))
    reverse = as_bool("reverse", reverse)
    if not walked.size:
        return _without_iteration(body, state, rows, walked)
    run = _recorded if isinstance(current_executor(), Graph) else _unrolled
    return run(body, state, rows, walked, reverse)


def _length(rows: Any, dim: str, length: int | None) -> int:
    sizes = {} if length is None else {as_int("length", length, least=0): "length"}
    for x in tensors_of(rows, "rows"):
        if dim not in x.shape:
            raise ShapeError(
                explain_error(
                    f'rows of a scan lack "{dim}", which it walks along.',
                    tensor=repr(x.shape),
                    **{"from": Source.of_caller()},
                    way_out=f'Name it: mtf.scan(..., dim="{x.shape.names[0]}").'
                    if x.shape.names
                    else "Leave it out: use it in the body.",
                )
            )
        sizes.setdefault(x.shape[dim], repr(x.shape))
    if len(sizes) != 1:
        raise ShapeError(
            explain_error(
                "a scan needs one number of turns"
                + (f", not {sorted(sizes)}." if sizes else "."),
                **{"from": Source.of_caller()},
                way_out="Give rows with dimension dim=, or length=.",
            )
        )
    return next(iter(sizes))


def _record(
    body: Callable[..., Any], state: Any, rows: Any, dim: Dimension
) -> tuple[Body, Any, Any]:
    """Returns the recorded body, and the nests of what it adds up and of what it
    stacks.
    """
    states, walked = tensors_of(state, "state"), tensors_of(rows, "rows")
    specs = [x.spec for x in states] + [
        Spec(x.shape.without(dim.name), x.dtype) for x in walked
    ]
    made: list[Any] = []

    def record(turn: Tensor, *given: Tensor) -> Sequence[Tensor]:
        with iteration(index_in_batch(dim, turn)):
            new, *made[:] = _triple(
                body(
                    pack(state, given[: len(states)]),
                    pack(rows, given[len(states) :]),
                )
            )
        more = _widened(made[0])
        return [
            *tensors_of(next_carry(state, new, specs), "state"),
            *more,
            *tensors_of(made[1], "result"),
        ]

    recorded = record_body(record, [ITERATION, *specs])
    return recorded, made[0], made[1]


def _recorded(
    body: Callable[..., Any], state: Any, rows: Any, dim: Dimension, reverse: bool
) -> tuple[Any, Any, Any]:
    states, walked = tensors_of(state, "state"), tensors_of(rows, "rows")
    recorded, sums, stacks = _record(body, state, rows, dim)
    first = len(states) + len(leaves(sums))
    for result in recorded.results[first:]:
        stacked(result.spec, dim, Source.of_caller())
    # A body may use the name itself, as a loop within does: then the loop walks under
    # another one.
    inner = Dimension(unused_name(recorded, dim.name), dim.size)
    walked = [_renamed(x, dim, inner) for x in walked]
    loop = Loop(recorded, len(states), len(walked), len(leaves(sums)), inner, reverse)
    made = apply_all(loop, *states, *walked, *recorded.captures)
    ys = iter((*made[:first], *(_renamed(y, inner, dim) for y in made[first:])))
    return pack_next(state, ys), _narrowed(sums, ys), pack_next(stacks, ys)


def _renamed(x: Tensor, old: Dimension, new: Dimension) -> Tensor:
    return x if old == new else rename(x, {old.name: new.name})


def _unrolled(
    body: Callable[..., Any], state: Any, rows: Any, dim: Dimension, reverse: bool
) -> tuple[Any, Any, Any]:
    walked = [unstack(x, dim.name) for x in tensors_of(rows, "rows")]
    sums, stacks = [], {}
    order = list(range(dim.size))
    specs = [x.spec for x in tensors_of(state, "state")]
    with alternatives() as another:
        for i in reversed(order) if reverse else order:
            with another(), iteration(index_in_batch(dim, i)):
                made = body(state, pack(rows, [xs[i] for xs in walked]))
            new, more, stacks[i] = _triple(made)
            state = next_carry(state, new, specs)
            sums.append(more)
    totals = iter(
        [functools.reduce(operator.add, xs) for xs in zip(*map(_widened, sums))]
    )
    flat = zip(*(tensors_of(stacks[i], "result") for i in order))
    return (
        state,
        _narrowed(sums[0], totals),
        pack(stacks[0], [stack(list(xs), dim.name) for xs in flat]),
    )


def _without_iteration(
    body: Callable[..., Any], state: Any, rows: Any, dim: Dimension
) -> tuple[Any, Any, Any]:
    """Returns what a scan of no iteration does; the body is recorded, for shapes, and
    never runs.
    """
    states = tensors_of(state, "state")
    given = [*states, *tensors_of(rows, "rows")]
    around = current_executor()
    graph = (
        around if isinstance(around, Graph) else Graph(given[0].mesh if given else None)
    )
    with executing(graph):
        recorded, sums, stacks = _record(body, state, rows, dim)
    first = len(states) + len(leaves(sums))
    specs = [r.spec for r in recorded.results]
    empty = [
        *specs[len(states) : first],
        *(stacked(spec, dim, Source.of_caller()) for spec in specs[first:]),
    ]
    ys = iter(
        [*states, *(full(recorded.graph.mesh, s.shape, 0, s.dtype) for s in empty)]
    )
    return pack_next(state, ys), _narrowed(sums, ys), pack_next(stacks, ys)


def _triple(made: Any) -> tuple[Any, Any, Any]:
    if not isinstance(made, tuple) or len(made) != 3:
        raise PlanError(
            explain_error(
                "the body of scan_and_sum returns three things: the next state, what "
                "to add up, and what to stack.",
                **{"from": Source.of_caller()},
                way_out="Return (state, more, None) to stack nothing.",
            )
        )
    return made


def _widened(sums: Any) -> list[Tensor]:
    """Returns what is added up, half floats as float32: they stop counting at 256."""
    found = tensors_of(sums, "sum")
    for x in found:
        if x.dtype == "bool":
            raise DTypeError(
                explain_error(
                    "scan_and_sum adds up numbers, not bool.",
                    tensor=repr(x),
                    **{"from": Source.of_caller()},
                    way_out='Convert it: mtf.cast(x, "int32").',
                )
            )
    return [cast(x, accumulation_dtype(x.dtype)) for x in found]


def _narrowed(sums: Any, totals: Iterator[Tensor]) -> Any:
    """Returns the nest of sums with the next totals, in the types of what was
    added up.
    """
    return pack(sums, [cast(next(totals), x.dtype) for x in tensors_of(sums, "sum")])


def _pair(made: Any) -> tuple[Any, Any]:
    if not isinstance(made, tuple) or len(made) != 2:
        raise PlanError(
            explain_error(
                "the body of a scan returns two things: the next state, and what to "
                "stack.",
                **{"from": Source.of_caller()},
                way_out="Return (state, None) to stack nothing.",
            )
        )
    return made
