"""Loops and branches: scan, scan_and_sum, while_loop, cond. All devices turn together, in one loop.

    def layer(h, w):                                   # one traced body for a deep model
      return mtf.relu(mtf.einsum([h, w], "batch;d_out")), None
    h, _ = mtf.scan(layer, h, weights, "layers")        # weights[layers, d, d_out]

    x, n = mtf.while_loop(lambda x, n: mtf.reduce_max(x) > 1, halve_and_count, (x, zero))
    y = mtf.cond(loss > 1, lambda: x / 2, lambda: x)

State is cut as the layout says. Outside of a mtf.function they run as Python runs them, one op
after another, so a body can be looked at. Random ops draw other numbers in each iteration, wherever
the seed is set.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import (
  Body,
  Branch,
  Graph,
  Loop,
  Source,
  Spec,
  Tensor,
  apply_all,
  current_executor,
  record_body,
)
from meshtf.names import Dimension, Shape
from meshtf.ops.seeds import alternatives, iteration
from meshtf.ops.stacking import stack, unstack

__all__ = ["cond", "scan", "scan_and_sum", "while_loop"]


def scan(body: Callable[..., tuple[Any, Any]], state: Any, rows: Any = None, dim: str = "turns",
         length: int | None = None, reverse: bool = False) -> tuple[Any, Any]:
  """Returns the last state, and what the body made in each turn, stacked along `dim`.

  It has a gradient, which keeps of each turn what the backward pass needs: with `mtf.recompute` of
  the body that is its state alone. A tensor from outside that every turn uses, such as a weight of
  a recurrent network, gets one sum of gradients, which devices add up once, after the loop.

  Args:
    body: takes a state and a row of `rows` (or None), returns the next state and what to stack.
    state: the first one: tensors, in any nesting, in which None may be; or None.
    rows: tensors with dimension `dim`, likewise; each turn gets one row, without `dim`.
    dim: the name that is walked along, and that stacks get first.
    length: how many turns, if there are no rows.
    reverse: whether to start with the last row.

  Raises:
    ShapeError, DTypeError: a state changes its names, sizes or data type; rows lack `dim`, or have
      different numbers of it.
    PlanError: the body writes to a variable, or the mesh is not known yet.
  """
  def turn(state: Any, row: Any) -> tuple[Any, Any, Any]:
    new, stack = _pair(body(state, row))
    return new, None, stack
  state, _, stacks = scan_and_sum(turn, state, rows, dim, length, reverse)
  return state, stacks


def scan_and_sum(body: Callable[..., tuple[Any, Any, Any]], state: Any, rows: Any = None,
                 dim: str = "turns", length: int | None = None, reverse: bool = False
                 ) -> tuple[Any, Any, Any]:
  """Returns what `scan` does, with sums over all turns: (last state, sums, stacks).

  The body returns (state, what to add up, what to stack). What is added up may stay unfinished in
  all turns: devices reduce a sum once, after the loop, and not in each turn, as they would a state.
  Arguments and errors are those of `scan`.
  """
  walked = Dimension(dim, _length(rows, dim, length))
  run = _recorded if isinstance(current_executor(), Graph) else _unrolled
  return run(body, state, rows, walked, reverse)


def _length(rows: Any, dim: str, length: int | None) -> int:
  sizes = {} if length is None else {length: "length"}
  for x in _tensors(rows, "rows"):
    if dim not in x.shape:
      raise ShapeError(explain_error(f'rows of a scan lack "{dim}", which it walks along.',
                                     tensor=repr(x.shape), **{"from": Source.here()},
                                     way_out=f'Name it: mtf.scan(..., dim="{x.shape.names[0]}").'
                                     if x.shape.names else "Leave it out: use it in the body."))
    sizes.setdefault(x.shape[dim], repr(x.shape))
  if len(sizes) != 1:
    raise ShapeError(explain_error(
        "a scan needs one number of turns" + (f", not {sorted(sizes)}." if sizes else "."),
        **{"from": Source.here()}, way_out="Give rows with dimension dim=, or length=."))
  return next(iter(sizes))


def _recorded(body: Callable[..., Any], state: Any, rows: Any, dim: Dimension, reverse: bool
              ) -> tuple[Any, Any, Any]:
  states, walked = _tensors(state, "state"), _tensors(rows, "rows")
  specs = [x.spec for x in states] + [Spec(x.shape.without(dim.name), x.dtype) for x in walked]
  made: list[Any] = []

  def record(turn: Tensor, *given: Tensor) -> Sequence[Tensor]:
    with iteration(turn):
      made[:] = body(_packed(state, given[:len(states)]), _packed(rows, given[len(states):]))
    _same(state, made[0], states)
    return [t for part in made for t in _tensors(part, "result")]

  recorded = record_body(record, [_TURN, *specs])
  _, sums, stacks = made
  loop = Loop(recorded, len(states), len(walked), len(_flat(sums)), dim, reverse)
  ys = iter(apply_all(loop, *states, *walked, *recorded.captures))
  return _filled(state, ys), _filled(sums, ys), _filled(stacks, ys)


def _unrolled(body: Callable[..., Any], state: Any, rows: Any, dim: Dimension, reverse: bool
              ) -> tuple[Any, Any, Any]:
  walked = [unstack(x, dim.name) for x in _tensors(rows, "rows")]
  sums, stacks = [], {}
  order = list(range(dim.size))
  with alternatives() as another:
    for i in reversed(order) if reverse else order:
      with another(), iteration(i):
        new, more, stacks[i] = body(state, _packed(rows, [xs[i] for xs in walked]))
      _same(state, new, _tensors(state, "state"))
      state = new
      sums.append(more)
  totals = [functools.reduce(operator.add, xs) for xs in zip(*(_tensors(x, "sum") for x in sums))]
  flat = zip(*(_tensors(stacks[i], "result") for i in order))
  return (state, _packed(sums[0], totals),
          _packed(stacks[0], [stack(list(xs), dim.name) for xs in flat]))


def while_loop(test: Callable[..., Tensor], body: Callable[..., Any], state: Any) -> Any:
  """Returns the first state for which the test is false.

  It has no gradient: how often it turns is not known beforehand (`scan` has one).

  Args:
    test: takes the state (its parts, if it is a tuple) and returns a truth value, bool [].
    body: takes the state likewise, and returns the next one.
    state: the first one: tensors, in any nesting.

  Raises:
    ShapeError, DTypeError: the state changes its names, sizes or data type, or the test gives no
      scalar of bool.
    PlanError: test or body write to a variable, or the mesh is not known yet.
  """
  states = _tensors(state, "state")
  if not isinstance(current_executor(), Graph):
    return _while(test, body, state, states)
  specs = [_TURN, *(x.spec for x in states)]

  def decide(turn: Tensor, *given: Tensor) -> Sequence[Tensor]:
    with iteration(turn):
      return [_truth(_call(test, _packed(state, given)))]

  def run(turn: Tensor, *given: Tensor) -> Sequence[Tensor]:
    with iteration(turn):
      new = _call(body, _packed(state, given))
    _same(state, new, states)
    return _tensors(new, "state")

  tested, recorded = record_body(decide, specs), record_body(run, specs)
  loop = Loop(recorded, len(states), test=tested)
  return _packed(state, apply_all(loop, *states, *recorded.captures, *tested.captures))


def _while(test: Callable[..., Tensor], body: Callable[..., Any], state: Any,
           states: Sequence[Tensor]) -> Any:
  """Runs a while loop op by op."""
  with alternatives() as another:
    for i in itertools.count():
      with another(), iteration(i):
        if not bool(_truth(_call(test, state))):
          return state
        new = _call(body, state)
      _same(state, new, states)
      state = new


def cond(predicate: Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
  """Returns what `then` returns where the predicate is true, else what `otherwise` does.

  Only that one runs. Both must return tensors of equal names, sizes and data types. Random ops of
  one path in both draw the same numbers: give them another name= where they should not.

  Args:
    predicate: bool [].
    then: takes nothing; uses tensors from outside as it likes.
    otherwise: likewise.

  Raises:
    ShapeError, DTypeError: the two return different things, or the predicate is no scalar of bool.
    PlanError: one of them writes to a variable, or the mesh is not known yet.
  """
  truth = _truth(predicate)
  if not isinstance(current_executor(), Graph):
    return then() if bool(truth) else otherwise()
  made: list[Any] = []

  def run(fn: Callable[[], Any], branch: contextlib.AbstractContextManager[Any]) -> Body:
    def record() -> Sequence[Tensor]:
      with branch:
        made.append(fn())
      return _tensors(made[-1], "result")
    return record_body(record, [])

  with alternatives() as branch:
    bodies = run(then, branch()), run(otherwise, branch())
  _same(made[0], made[1], list(bodies[0].results), "the two branches of a cond differ")
  captures = [x for body in bodies for x in body.captures]
  return _packed(made[0], apply_all(Branch(*bodies), truth, *captures))


_TURN = Spec(Shape(), "int32")


def _call(fn: Callable[..., Any], state: Any) -> Any:
  return fn(*state) if isinstance(state, tuple) else fn(state)


def _pair(made: Any) -> tuple[Any, Any]:
  if not isinstance(made, tuple) or len(made) != 2:
    raise PlanError(explain_error(
        "the body of a scan returns two things: the next state, and what to stack.",
        **{"from": Source.here()}, way_out="Return (state, None) to stack nothing."))
  return made


def _tensors(nest: Any, what: str) -> list[Tensor]:
  """Returns the tensors of a nest; variables are read. Raises PlanError for others."""
  found = []
  for x in _flat(nest):
    x = x.tensor() if hasattr(x, "tensor") else x
    if not isinstance(x, Tensor):
      raise PlanError(explain_error(
          f"the {what} of a loop or branch is made of tensors, not of {type(x).__name__}.",
          **{"from": Source.here()}, way_out='Make it one: mtf.full(mesh, "", value, dtype).'))
    found.append(x)
  return found


def _flat(nest: Any) -> list[Any]:
  return [x for x in tf.nest.flatten(nest) if x is not None]


def _filled(nest: Any, flat: Iterator[Any]) -> Any:
  """Returns the nest with as many of the next tensors as it has."""
  return _packed(nest, [next(flat) for _ in _flat(nest)])


def _packed(nest: Any, flat: Sequence[Any]) -> Any:
  given = iter(flat)
  return tf.nest.map_structure(lambda x: None if x is None else next(given), nest)


def _truth(x: Any) -> Tensor:
  if not isinstance(x, Tensor) or x.shape.names:
    raise ShapeError(explain_error(
        "what decides is one truth value, bool [].", tensor=repr(x), **{"from": Source.here()},
        way_out="Reduce it: mtf.reduce_any(x) or mtf.reduce_all(x)."))
  if x.dtype != "bool":
    raise DTypeError(explain_error(
        f"what decides is bool, not {x.dtype}.", **{"from": Source.here()},
        way_out="Compare it: x > 0."))
  return x


def _same(old: Any, new: Any, olds: Sequence[Tensor],
          what: str = "the body of a loop changes what its state is") -> None:
  """Refuses a new state that is not like the old one. Raises ShapeError, DTypeError, PlanError."""
  if not _alike(old, new):
    raise PlanError(explain_error(f"{what}: {_outline(old)} is not {_outline(new)}.",
                                  **{"from": Source.here()},
                                  way_out="Return the same nesting of tensors."))
  for x, y in zip(olds, _tensors(new, "state")):
    if x.shape != y.shape:
      raise ShapeError(explain_error(f"{what}.", before=repr(x.shape), after=repr(y.shape),
                                     **{"from": Source.here()},
                                     way_out=f'Bring it back: mtf.transpose(x, "{x.shape.names}")'
                                     if set(x.shape) == set(y.shape) else
                                     "Names and sizes must stay."))
    if x.dtype != y.dtype:
      raise DTypeError(explain_error(f"{what}: {x.dtype} is not {y.dtype}.", tensor=repr(x.shape),
                                     **{"from": Source.here()},
                                     way_out=f'Convert it: mtf.cast(x, "{x.dtype}").'))


def _alike(old: Any, new: Any) -> bool:
  """Returns whether two nestings are the same; a list may stand for a tuple."""
  try:
    tf.nest.assert_same_structure(old, new, check_types=False)
  except (TypeError, ValueError):
    return False
  return all((x is None) == (y is None) for x, y in zip(tf.nest.flatten(old), tf.nest.flatten(new)))


def _outline(nest: Any) -> str:
  return repr(tf.nest.map_structure(lambda x: None if x is None else "*", nest))
