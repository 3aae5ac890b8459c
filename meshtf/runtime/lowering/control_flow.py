"""Loops and branches as `tf.while_loop` and `tf.cond`, one for all devices.

The loop variables are the index of the iteration, the distinct shards of each carry and
sum, and a tf.TensorArray for each distinct shard of each stacked output. Positions of one
device with the same shard share one loop variable.
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

# Iterations that may run in parallel: the next one may receive data while one computes.
# Without carries, as with microbatches, only one: all would need their memory at once.
PREFETCH = 2


class BodyRunner(Protocol):
    """The members of an executor that loops, branches and calls use.

    Attributes:
      mesh: the mesh of the program.
      values: the shards of each value of the program.
      unstacked_values: stacked outputs of loops that stay lists, as another loop reads
        them element by element.
    """

    mesh: Mesh
    values: dict[Value, Any]
    unstacked_values: set[Value]

    def run_body(
        self,
        program: Program,
        inputs: dict[Value, Any],
        once: bool = False,
    ) -> list[Any]:
        """Returns the results of a body; `once`: it occurs only once in the program."""

    def after(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Within the context, new ops run only after `tensors` are computed."""

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each distinct shard of a value."""

    def distinct_shards(self, value: Value, shards: Any) -> list[Any]:
        """Returns the distinct shards of a value, given its entry of `values`."""

    def to_positions(self, value: Value, shards: list[Any]) -> Any:
        """Returns the entry of `values` for a value with these distinct shards."""


def run_loop(executor: BodyRunner, step: LoopStep) -> None:
    """Executes a loop and stores its results in `executor.values`."""
    loop = _Loop(executor, step)
    with _after(executor, step.wait_for):
        initial = loop.initial_variables()
    final = tf.while_loop(
        loop.has_next,
        loop.iterate,
        initial,
        parallel_iterations=PREFETCH if loop.carries else 1,
    )
    loop.finish(final)


def run_branch(executor: BodyRunner, step: BranchStep) -> None:
    """Executes a branch and stores its results in `executor.values`."""

    def run(index: int) -> list[Any]:
        captured = _captured_values(executor, step)
        results = executor.run_body(step.bodies[index], captured)
        return [
            tf.identity(x)
            for value, shards in zip(step.outs, results)
            for x in executor.distinct_shards(value, shards)
        ]

    with _after(executor, step.wait_for):
        shards = executor.values[step.predicate]
        predicate = tf.identity(executor.distinct_shards(step.predicate, shards)[0])
    results = tf.cond(predicate, lambda: run(0), lambda: run(1))
    flat = iter(tf.nest.flatten(results))
    for value in step.outs:
        executor.values[value] = _next_value(executor, value, flat)


def run_call(executor: BodyRunner, step: CallStep) -> None:
    """Executes a call and stores its results in `executor.values`."""
    waits = [
        x
        for value in step.wait_for
        for x in executor.distinct_shards(value, executor.values[value])
    ]
    with executor.after(waits):
        inputs = _captured_values(executor, step)
        for parameter, argument in zip(step.body_arguments, step.arguments):
            inputs[parameter] = executor.values[argument]
        results = executor.run_body(step.body, inputs)
    executor.values.update(zip(step.outs, results))


class _Loop:
    """The loop variables of a loop, in order: iteration, carries, sums, stacked
    outputs.
    """

    def __init__(self, executor: BodyRunner, step: LoopStep) -> None:
        op = step.op
        self.executor = executor
        self.step = step
        self.iterations = op.num_iterations
        self.reverse = op.reverse
        results = step.body.results
        self.carries = step.carries
        self.sums = results[op.num_carries : op.num_carries + op.num_sums]
        self.stacked = results[op.num_carries + op.num_sums :]
        self.scanned = [
            _with_leading(executor, value, op.dim.name)
            for value in step.scanned_inputs
            if op.dim
        ]

    def initial_variables(self) -> list[Any]:
        """Returns the loop variables before the first iteration."""
        values = self.executor.values
        carries = [
            tf.identity(x)
            for carry, initial in zip(self.carries, self.step.initial_values)
            for x in self.executor.distinct_shards(carry, values[initial])
        ]
        sums = [
            tf.zeros(*_local_shape_and_dtype(value, self.executor))
            for value in self._on_shard_devices(self.sums)
        ]
        arrays = [
            self._empty_array(value) for value in self._on_shard_devices(self.stacked)
        ]
        return [tf.constant(0), *carries, *sums, *arrays]

    def _on_shard_devices(self, values: Sequence[Value]) -> Iterator[Value]:
        """Yields each value once for each distinct shard, within its device."""
        for value in values:
            for device in self.executor.shard_devices(value):
                with tf.device(device):
                    yield value

    def _empty_array(self, value: Value) -> tf.TensorArray:
        sizes, dtype = _local_shape_and_dtype(value, self.executor)
        return tf.TensorArray(
            dtype, size=self.iterations, element_shape=sizes, clear_after_read=False
        )

    def has_next(self, iteration: Any, *variables: Any) -> Any:
        """Returns whether there is another iteration."""
        if self.iterations is not None:
            return iteration < self.iterations
        assert self.step.test is not None
        inputs = self._body_inputs(iteration, iter(variables))
        (result,) = self.executor.run_body(self.step.test, inputs, once=True)
        return self.executor.distinct_shards(self.step.test.results[0], result)[0]

    def iterate(self, iteration: Any, *variables: Any) -> list[Any]:
        """Returns the loop variables after an iteration."""
        flat = iter(variables)
        index = self._index(iteration)
        inputs = self._body_inputs(index, flat)
        for value, shards in zip(self.step.elements, self.scanned):
            elements = [_element(x, index) for x in shards]
            inputs[value] = self.executor.to_positions(value, elements)
        body = self.step.body
        results = self.executor.run_body(body, inputs, once=True)
        shards_of_results = [
            self.executor.distinct_shards(value, shards)
            for value, shards in zip(body.results, results)
        ]
        carries = shards_of_results[: len(self.carries)]
        added = shards_of_results[len(self.carries) :]
        variables_after = list(itertools.chain.from_iterable(carries))
        for x in itertools.chain.from_iterable(added):
            variables_after.append(_accumulated(next(flat), index, x))
        return [iteration + 1, *variables_after]

    def _index(self, iteration: Any) -> Any:
        """Returns the index that an iteration scans."""
        if self.reverse and self.iterations is not None:
            return self.iterations - 1 - iteration
        return iteration

    def _body_inputs(self, index: Any, flat: Iterator[Any]) -> dict[Value, Any]:
        """Returns the inputs of the body: the index, the carries, and captured
        values.
        """
        inputs = _captured_values(self.executor, self.step)
        devices = self.executor.shard_devices(self.step.iteration)
        copies = [index] * len(devices)
        inputs[self.step.iteration] = self.executor.to_positions(
            self.step.iteration, copies
        )
        for value in self.carries:
            inputs[value] = _next_value(self.executor, value, flat)
        return inputs

    def finish(self, variables: Sequence[Any]) -> None:
        """Stores the results of the loop, given the final loop variables."""
        flat = iter(variables[1:])
        for value in self.step.outs:
            devices = self.executor.shard_devices(value)
            shards = list(itertools.islice(flat, len(devices)))
            is_list = isinstance(shards[0], tf.TensorArray)
            if is_list and value not in self.executor.unstacked_values:
                shards = [x.stack() for x in shards]
            self.executor.values[value] = self.executor.to_positions(value, shards)


def _accumulated(variable: Any, index: Any, x: Any) -> Any:
    """Returns a stacked output with x written at an index, or a sum plus x."""
    if isinstance(variable, tf.TensorArray):
        return variable.write(index, x)
    return variable + x


def _captured_values(
    executor: BodyRunner, step: LoopStep | BranchStep | CallStep
) -> dict[Value, Any]:
    """Returns the shards of the values that bodies capture."""
    return {value: executor.values[value] for value in step.captured_values}


def _next_value(executor: BodyRunner, value: Value, flat: Iterator[Any]) -> Any:
    """Returns the entry of `values` for a value, taking its distinct shards from `flat`."""
    count = len(executor.shard_devices(value))
    return executor.to_positions(value, list(itertools.islice(flat, count)))


def _with_leading(executor: BodyRunner, value: Value, dim: str) -> list[Any]:
    """Returns the distinct shards of a value, transposed so that `dim` leads."""
    assert value.spec is not None
    axis = value.spec.shape.index(dim)
    shards = executor.distinct_shards(value, executor.values[value])
    if axis == 0:
        return shards
    rest = [i for i in range(len(value.spec.shape)) if i != axis]
    transposed = []
    for device, x in zip(executor.shard_devices(value), shards):
        with tf.device(device):
            transposed.append(tf.transpose(x, [axis, *rest]))
    return transposed


def _element(x: Any, index: Any) -> Any:
    """Returns an element of a list, or of a tensor without copying it."""
    return x.read(index) if isinstance(x, tf.TensorArray) else x[index]


def _local_shape_and_dtype(
    value: Value, executor: BodyRunner
) -> tuple[tuple[int, ...], tf.DType]:
    """Returns the sizes and the data type of one shard."""
    assert value.spec is not None
    shape = local_shape(value.spec.shape, value.placement, executor.mesh)
    return shape.sizes, tf.as_dtype(value.spec.dtype)


@contextlib.contextmanager
def _after(executor: BodyRunner, value: Value | None) -> Iterator[None]:
    """Within the context, new ops run only after a value is computed."""
    waits = []
    if value is not None:
        waits = executor.distinct_shards(value, executor.values[value])
    with tf.control_dependencies(waits):
        yield
