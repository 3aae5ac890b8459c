"""Runs loops, branches and calls: a loop is one `tf.while_loop`, and a branch one
`tf.cond`, for all devices together.

    results = run_loop(executor, step)       # the entries of executor.values for its outputs

The body of a loop returns new carries (values that the next iteration takes), terms of sums
over all iterations, and outputs that are stacked. The loop variables of `tf.while_loop` are
the index of the iteration, the distinct shards of each carry and sum, and a tf.TensorArray
for each distinct shard of each stacked output. Shards are *distinct* if their devices or
contents differ: mesh positions of one device with the same shard share one loop variable.

Under XLA a term of a sum may be added in place (`partition.steps.sums_in_place`): the step that
computes it, such as an inner loop, gets the sum so far, and returns the new one.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.partition import (
    Addend,
    BranchStep,
    CallStep,
    LoopStep,
    Program,
    Step,
    Value,
    added_in_place,
)
from meshtf.runtime.lowering.padding.uneven_loops import (
    counted_once,
    entries_of_shards,
)
from meshtf.runtime.lowering.stacks import (
    index_of_entry,
    local_shape_and_dtype,
    with_leading_dim,
)

# The number of iterations that may run in parallel, so that the next iteration receives
# data while one computes. A loop without carries, as over microbatches, runs one iteration
# at a time, since parallel ones would need their memory at once.
PREFETCH = 2


class BodyRunner(Protocol):
    """The members of an executor that loops, branches and calls use; see `StepExecutor`.

    Attributes:
      mesh: the mesh of the program.
      values: the shards of each value of the program. Their form depends on the executor:
        a list with the shard of each mesh position, or a single shard.
      unstacked_values: the stacked outputs of loops that stay lists, as another loop
        reads them element by element.
      adds_in_place: whether steps add to the sums of loops in place.
      totals: outputs of steps -> the distinct shards of what the step adds them to.
    """

    mesh: Mesh
    values: dict[Value, Any]
    unstacked_values: set[Value]
    adds_in_place: ClassVar[bool]
    totals: dict[Value, list[Any]]

    def run_body(
        self,
        program: Program,
        inputs: dict[Value, Any],
        single_use: bool = False,
    ) -> list[Any]:
        """Returns the results of a body for the shards of its inputs; `single_use`: whether the
        program contains this body only once.
        """

    def after(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which new ops run only after `tensors` are computed."""

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each distinct shard of a value."""

    def distinct_shards(self, value: Value, shards: Any) -> list[Any]:
        """Returns the distinct shards of a value, given its entry of `values`."""

    def empty_after(self, array: Any, num_entries: int, value: Value, x: Any) -> Any:
        """Returns an empty tf.TensorArray for shards of a value, made after x is computed."""

    def shard_coordinates(self, value: Value) -> list[Any]:
        """Returns the coordinates on the mesh of each distinct shard of a value, by axis."""

    def to_positions(self, value: Value, shards: list[Any]) -> Any:
        """Returns the entry of `values` for a value with these distinct shards."""


def run_loop(executor: BodyRunner, step: LoopStep) -> list[Any]:
    """Executes a loop and returns the entries of `executor.values` for its results."""
    loop = _Loop(executor, step)
    with executor.after(_awaited(executor, step)):
        initial_variables = loop.initial_variables()
    final_variables = tf.while_loop(
        loop.has_next,
        loop.iterate,
        initial_variables,
        parallel_iterations=PREFETCH if loop.carries else 1,
    )
    return loop.results(final_variables)


def run_branch(executor: BodyRunner, step: BranchStep) -> list[Any]:
    """Executes a branch and returns the entries of `executor.values` for its results."""

    def run(index: int) -> list[Any]:
        """Returns the distinct shards of all results of the body with this index."""
        captured = _captured_values(executor, step)
        results = executor.run_body(step.programs[index], captured)
        all_shards = []
        for value, shards in zip(step.outs, results):
            for x in executor.distinct_shards(value, shards):
                all_shards.append(tf.identity(x))
        return all_shards

    with executor.after(_awaited(executor, step)):
        shards = executor.values[step.predicate]
        # The predicate is equal on all devices, so any shard will do.
        any_shard = executor.distinct_shards(step.predicate, shards)[0]
        predicate = tf.identity(any_shard)
    all_shards = tf.cond(predicate, lambda: run(0), lambda: run(1))
    # `_take_value` takes the shards of one value after another.
    remaining_shards = iter(tf.nest.flatten(all_shards))
    return [_take_value(executor, value, remaining_shards) for value in step.outs]


def run_call(executor: BodyRunner, step: CallStep) -> list[Any]:
    """Executes a call and returns the entries of `executor.values` for its results."""
    with executor.after(_awaited(executor, step)):
        inputs = _captured_values(executor, step)
        for parameter, argument in zip(step.body_arguments, step.arguments):
            inputs[parameter] = executor.values[argument]
        return executor.run_body(step.body, inputs)


class _Loop:
    """The loop variables of a loop, and the functions that `tf.while_loop` calls.

    The variables are, in this order: iteration, carries, sums, stacked outputs.

    Attributes:
      executor: the executor, which runs the body.
      step: the loop.
      num_iterations: the number of iterations on a device; None: the loop runs while the test
        of the step returns True.
      reverse: whether the loop scans from the last element to the first.
      carries: the arguments of the body that are carries.
      sums: the results of the body that are terms of sums.
      stacked_results: the results of the body that are stacked.
      totals: those of `sums` and `stacked_results` that are added to the sum of an outer loop, or
        to its entries -> the distinct shards of that sum.
      addends: those results of the body that a step of the body adds in place to what they would
        be added to.
      scanned_shards: for each scanned input its distinct shards, with the scanned dimension
        first.
    """

    def __init__(self, executor: BodyRunner, step: LoopStep) -> None:
        op = step.op
        self.executor = executor
        self.step = step
        self.num_iterations = step.num_iterations
        self.reverse = op.reverse
        results = step.body.results
        self.carries = step.carries
        self.sums = results[len(step.carries) : step.num_unstacked]
        self.stacked_results = results[step.num_unstacked :]
        self.totals = {
            result: executor.totals.pop(output)
            for result, output in zip(results, step.outs)
            if output in executor.totals
        }
        self.addends: dict[Value, Addend] = {}
        if executor.adds_in_place and not step.is_uneven:
            for term in (*self.sums, *self.totals):
                addend = added_in_place(step.body, term)
                if addend is not None:
                    self.addends[term] = addend
        self.scanned_shards: list[list[Any]] = []
        if op.dim is not None:
            for value in step.scanned_inputs:
                self.scanned_shards.append(
                    with_leading_dim(executor, value, op.dim.name)
                )

    def initial_variables(self) -> list[Any]:
        """Returns the loop variables before the first iteration."""
        values = self.executor.values
        carries = []
        for carry, initial in zip(self.carries, self.step.initial_values):
            for x in self.executor.distinct_shards(carry, values[initial]):
                # A new op, which waits for the control dependencies of the caller.
                carries.append(tf.identity(x))
        sums = []
        for term in self.sums:
            if term in self.totals:
                sums.extend(self.totals[term])
                continue
            for value in self._on_shard_devices([term]):
                sizes, dtype = local_shape_and_dtype(value, self.executor.mesh)
                sums.append(tf.zeros(sizes, dtype))
        arrays = []
        for result in self.stacked_results:
            totals = iter(self.totals.get(result, ()))
            for value in self._on_shard_devices([result]):
                array = self._empty_array(value)
                if result in self.totals:
                    array = array.unstack(next(totals))
                elif self.reverse and carries and self.num_iterations:
                    array = self.executor.empty_after(
                        array, self.num_iterations, value, carries[0]
                    )
                arrays.append(array)
        iteration = tf.constant(0)
        return [iteration, *carries, *sums, *arrays]

    def _on_shard_devices(self, values: Sequence[Value]) -> Iterator[Value]:
        """Yields each value once for each of its distinct shards. The device of the shard
        is TensorFlow's current device meanwhile.
        """
        for value in values:
            for device in self.executor.shard_devices(value):
                with tf.device(device):
                    yield value

    def _empty_array(self, value: Value) -> tf.TensorArray:
        """Returns an empty tf.TensorArray for the elements of one shard of a stacked output;
        an element is the output of one iteration.
        """
        sizes, dtype = local_shape_and_dtype(value, self.executor.mesh)
        return tf.TensorArray(
            dtype, size=self.num_iterations, element_shape=sizes, clear_after_read=False
        )

    def has_next(self, iteration: Any, *variables: Any) -> Any:
        """Returns whether there is another iteration, as a boolean tensor."""
        if self.num_iterations is not None:
            return iteration < self.num_iterations
        test = self.step.test
        assert test is not None
        inputs = self._body_inputs(iteration, iter(variables))
        (shards,) = self.executor.run_body(test, inputs, single_use=True)
        # The result is equal on all devices, so any shard will do.
        return self.executor.distinct_shards(test.results[0], shards)[0]

    def iterate(self, iteration: Any, *variables: Any) -> list[Any]:
        """Returns the loop variables after an iteration."""
        remaining_variables = iter(variables)
        index = self._index(iteration)
        # Takes the carries from the iterator; the sums and stacked outputs remain in it.
        inputs = self._body_inputs(index, remaining_variables)
        for k, value in enumerate(self.step.entries):
            shards = self.scanned_shards[k]
            elements = entries_of_shards(self.executor, self.step, k, shards, index)
            inputs[value] = self.executor.to_positions(value, elements)
        body = self.step.body
        accumulated = (*self.sums, *self.stacked_results)
        variables_of = [
            _shards_of(self.executor, value, remaining_variables)
            for value in accumulated
        ]
        for value, old_variables in zip(accumulated, variables_of):
            self._begin_addend(value, old_variables, index)
        results = self.executor.run_body(body, inputs, single_use=True)
        shards_of_results = [
            self.executor.distinct_shards(value, shards)
            for value, shards in zip(body.results, results)
        ]
        new_carries = shards_of_results[: len(self.carries)]
        new_variables = list(itertools.chain.from_iterable(new_carries))
        for value, old_variables, shards in zip(
            accumulated, variables_of, shards_of_results[len(self.carries) :]
        ):
            if value in self.sums:
                shards = counted_once(self.executor, self.step, value, shards, index)
            for variable, x in zip(old_variables, shards):
                new_variables.append(self._accumulated(value, variable, index, x))
        return [iteration + 1, *new_variables]

    def _begin_addend(self, value: Value, variables: Sequence[Any], index: Any) -> None:
        """Has the step that adds a result of the body in place, if one does, begin with what the
        result would be added to.

        Args:
          value: the result of the body.
          variables: the loop variables of its distinct shards.
          index: the index of the entry of stacked outputs.
        """
        addend = self.addends.get(value)
        if addend is None:
            return
        totals = variables
        if value in self.stacked_results:
            totals = [variable.read(index) for variable in variables]
        sizes, _dtype = local_shape_and_dtype(addend.value, self.executor.mesh)
        self.executor.totals[addend.value] = [tf.reshape(x, sizes) for x in totals]

    def _accumulated(self, value: Value, variable: Any, index: Any, x: Any) -> Any:
        """Returns the new loop variable of a sum or of a stacked output.

        Args:
          value: the result of the body.
          variable: the old variable of one of its shards.
          index: the index of the entry of stacked outputs.
          x: the shard.
        """
        if not isinstance(variable, tf.TensorArray):
            return x if value in self.addends else variable + x
        if value in self.totals and value not in self.addends:
            x = variable.read(index) + x
        return variable.write(index_of_entry(self.step, value, index), x)

    def _index(self, iteration: Any) -> Any:
        """Returns the index of the elements that an iteration scans and writes."""
        if self.reverse and self.num_iterations is not None:
            return self.num_iterations - 1 - iteration
        return iteration

    def _body_inputs(self, index: Any, variables: Iterator[Any]) -> dict[Value, Any]:
        """Returns the inputs of the body: the index, the carries, which are taken from
        `variables`, and the captured values.
        """
        inputs = _captured_values(self.executor, self.step)
        devices = self.executor.shard_devices(self.step.iteration)
        # The shards of the index are equal on all devices.
        index_shards = [index] * len(devices)
        inputs[self.step.iteration] = self.executor.to_positions(
            self.step.iteration, index_shards
        )
        for value in self.carries:
            inputs[value] = _take_value(self.executor, value, variables)
        return inputs

    def results(self, final_variables: Sequence[Any]) -> list[Any]:
        """Returns the entries of `executor.values` for the results of the loop."""
        results = []
        _iteration, *variables = final_variables
        remaining_variables = iter(variables)
        for value in self.step.outs:
            devices = self.executor.shard_devices(value)
            shards = list(itertools.islice(remaining_variables, len(devices)))
            is_stacked_output = isinstance(shards[0], tf.TensorArray)
            if is_stacked_output and value not in self.executor.unstacked_values:
                shards = [x.stack() for x in shards]
            results.append(self.executor.to_positions(value, shards))
        return results


def _captured_values(
    executor: BodyRunner, step: LoopStep | BranchStep | CallStep
) -> dict[Value, Any]:
    """Returns the values that a body captures (reads without being passed them), as
    {value: its shards}.
    """
    return {value: executor.values[value] for value in step.captured_values}


def _take_value(executor: BodyRunner, value: Value, shards: Iterator[Any]) -> Any:
    """Takes the distinct shards of a value from an iterator, and returns the entry of
    `values` for these shards.
    """
    return executor.to_positions(value, _shards_of(executor, value, shards))


def _shards_of(executor: BodyRunner, value: Value, shards: Iterator[Any]) -> list[Any]:
    """Takes the distinct shards of a value from an iterator."""
    return list(itertools.islice(shards, len(executor.shard_devices(value))))


def _awaited(executor: BodyRunner, step: Step) -> list[Any]:
    """Returns the tensors that must be computed before a step runs."""
    return [
        x
        for value in step.waits_for
        for x in executor.distinct_shards(value, executor.values[value])
    ]
