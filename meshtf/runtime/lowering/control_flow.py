"""Loops and branches as TensorFlow's own, with all devices in one of them.

The loop variables are the number of the turn, the different slices of every state and
sum, and lists of what is stacked. Positions of one device that hold the same share one
loop variable.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.partition import BranchStep, CallStep, LoopStep, Program, Value
from meshtf.partition.cost import local_shape

# Iterations that may run at once: what the next one gathers may come while one
# computes. Those that carry no state, such as microbatches, would all hold their
# tensors at once.
PREFETCH = 2


class BodyRunner(Protocol):
    """What loops, branches and calls ask of the runtime that runs them.

    Attributes:
      mesh: the program's.
      values: what each value of the program holds.
      lists: stacks of loops that stay lists, as another loop reads them element by
        element.
    """

    mesh: Mesh
    values: dict[Value, Any]
    lists: set[Value]

    def run_body(
        self, program: Program, given: dict[Value, Any], once: bool = False
    ) -> list[Any]:
        """Returns the results of a body; `once`: it runs nowhere else."""

    def after(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Has what is made within wait until tensors are there."""

    def homes(self, value: Value) -> list[str | None]:
        """Returns the device of each distinct shard of a value."""

    def different(self, value: Value, slices: Any) -> list[Any]:
        """Returns the distinct shards in what `values` holds of a value."""

    def spread(self, value: Value, slices: list[Any]) -> Any:
        """Returns what `values` holds of a value with these distinct shards."""


def run_loop(carrier: BodyRunner, step: LoopStep) -> None:
    """Carries out a loop, and keeps what it makes."""
    loop = _Loop(carrier, step)
    with _after(carrier, step.after):
        start = loop.start()
    loop.finish(
        tf.while_loop(
            loop.goes_on,
            loop.turn,
            start,
            parallel_iterations=PREFETCH if loop.states else 1,
        )
    )


def run_branch(carrier: BodyRunner, step: BranchStep) -> None:
    """Carries out a branch, and keeps what it makes."""

    def run(k: int) -> list[Any]:
        results = carrier.run_body(step.bodies[k], _taken(carrier, step))
        return [
            tf.identity(x)
            for v, xs in zip(step.outs, results)
            for x in carrier.different(v, xs)
        ]

    with _after(carrier, step.after):
        predicate = tf.identity(
            carrier.different(step.predicate, carrier.values[step.predicate])[0]
        )
    made = tf.cond(predicate, lambda: run(0), lambda: run(1))
    _keep(carrier, step.outs, iter(tf.nest.flatten(made)))


def run_call(carrier: BodyRunner, step: CallStep) -> None:
    """Carries out a call, and keeps what it makes."""
    waits = [x for v in step.follows for x in carrier.different(v, carrier.values[v])]
    with carrier.after(waits):
        given = {v: carrier.values[x] for v, x in zip(step.given, step.passed)}
        results = carrier.run_body(step.body, given | _taken(carrier, step))
    carrier.values.update(zip(step.outs, results))


class _Loop:
    """The loop variables of a loop, in order: turn, states, sums, lists of what is
    stacked.
    """

    def __init__(self, carrier: BodyRunner, step: LoopStep) -> None:
        self.carrier, self.step, op = carrier, step, step.op
        self.turns, self.reverse = op.turns, op.reverse
        results = step.body.results
        self.states = step.states
        self.sums = results[op.states : op.states + op.sums]
        self.stacks = results[op.states + op.sums :]
        self.walked = [
            _rows_first(carrier, v, op.dim.name) for v in step.walked if op.dim
        ]

    def start(self) -> list[Any]:
        """Returns the loop variables before the first turn."""
        states = [
            x
            for v, start in zip(self.states, self.step.starts)
            for x in self.carrier.different(v, self.carrier.values[start])
        ]
        sums = [tf.zeros(*_slice(v, self.carrier)) for v in self._homes(self.sums)]
        lists = [_list(v, self.carrier, self.turns) for v in self._homes(self.stacks)]
        return [tf.constant(0), *map(tf.identity, states), *sums, *lists]

    def _homes(self, values: Sequence[Value]) -> Iterator[Value]:
        """Yields each value once for each different slice, on its device."""
        for value in values:
            for device in self.carrier.homes(value):
                with tf.device(device):
                    yield value

    def goes_on(self, turn: Any, *variables: Any) -> Any:
        """Returns whether there is another turn."""
        if self.turns is not None:
            return turn < self.turns
        assert self.step.test is not None
        given = self._given(turn, iter(variables))
        (result,) = self.carrier.run_body(self.step.test, given, once=True)
        return self.carrier.different(self.step.test.results[0], result)[0]

    def turn(self, number: Any, *variables: Any) -> list[Any]:
        """Returns the loop variables after a turn."""
        flat = iter(variables)
        row = (
            self.turns - 1 - number
            if self.reverse and self.turns is not None
            else number
        )
        given = self._given(row, flat)
        for value, rows in zip(self.step.rows, self.walked):
            given[value] = self.carrier.spread(value, [_row(x, row) for x in rows])
        results = self.carrier.run_body(self.step.body, given, once=True)
        made = [
            self.carrier.different(v, x)
            for v, x in zip(self.step.body.results, results)
        ]
        states, others = made[: len(self.states)], made[len(self.states) :]
        out = [x for xs in states for x in xs]
        for x in (x for xs in others for x in xs):
            old = next(flat)
            out.append(
                old.write(row, x) if isinstance(old, tf.TensorArray) else old + x
            )
        return [number + 1, *out]

    def _given(self, row: Any, flat: Iterator[Any]) -> dict[Value, Any]:
        """Returns what the body is given: its turn, the states, and what it takes from
        outside.
        """
        homes = len(self.carrier.homes(self.step.turn))
        given = _taken(self.carrier, self.step)
        given[self.step.turn] = self.carrier.spread(self.step.turn, [row] * homes)
        for value in self.states:
            given[value] = _spread(self.carrier, value, flat)
        return given

    def finish(self, results: Sequence[Any]) -> None:
        """Keeps the values after the last turn."""
        flat = iter(results[1:])
        for value in self.step.outs:
            found = list(itertools.islice(flat, len(self.carrier.homes(value))))
            if isinstance(found[0], tf.TensorArray) and value not in self.carrier.lists:
                found = [x.stack() for x in found]
            self.carrier.values[value] = self.carrier.spread(value, found)


def _taken(
    carrier: BodyRunner, step: LoopStep | BranchStep | CallStep
) -> dict[Value, Any]:
    """Returns what bodies use from outside."""
    return {v: carrier.values[v] for v in step.taken}


def _keep(carrier: BodyRunner, outs: Sequence[Value], flat: Iterator[Any]) -> None:
    for value in outs:
        carrier.values[value] = _spread(carrier, value, flat)


def _spread(carrier: BodyRunner, value: Value, flat: Iterator[Any]) -> Any:
    return carrier.spread(
        value, list(itertools.islice(flat, len(carrier.homes(value))))
    )


def _rows_first(carrier: BodyRunner, value: Value, dim: str) -> list[Any]:
    """Returns the different slices of a value, with `dim` in front."""
    assert value.spec is not None
    axis = value.spec.shape.index(dim)
    order = [axis, *(i for i in range(len(value.spec.shape)) if i != axis)]
    found = []
    for device, x in zip(
        carrier.homes(value), carrier.different(value, carrier.values[value])
    ):
        with tf.device(device):
            found.append(tf.transpose(x, order) if axis else x)
    return found


def _row(rows: Any, number: Any) -> Any:
    """Returns one row: of a list, or of a tensor, which TensorFlow does not copy."""
    return rows.read(number) if isinstance(rows, tf.TensorArray) else rows[number]


def _slice(value: Value, carrier: BodyRunner) -> tuple[tuple[int, ...], tf.DType]:
    """Returns sizes and data type of one slice."""
    assert value.spec is not None
    return (
        local_shape(value.spec.shape, value.placement, carrier.mesh).sizes,
        tf.as_dtype(value.spec.dtype),
    )


def _list(value: Value, carrier: BodyRunner, turns: int | None) -> tf.TensorArray:
    sizes, dtype = _slice(value, carrier)
    return tf.TensorArray(
        dtype, size=turns, element_shape=sizes, clear_after_read=False
    )


@contextlib.contextmanager
def _after(carrier: BodyRunner, value: Value | None) -> Iterator[None]:
    """Lets what is made within wait for a value."""
    waits = [] if value is None else carrier.different(value, carrier.values[value])
    with tf.control_dependencies(waits):
        yield
