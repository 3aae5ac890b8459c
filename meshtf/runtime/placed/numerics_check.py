"""Finds the first op that outputs NaN or infinity, by running a program op by op.

    with mtf.check_numerics():
      loss = train_step(batch, step)            # a mtf.function, or ops outside of functions

Functions run with their loops, branches, updates and collectives, but op by op, without
TensorFlow's graphs. An op raises an error if it outputs NaN, or infinity from finite float
inputs. Infinity from an op without float inputs, such as a mask, is allowed.

A node is an op with its inputs in the graph; it has the user's line. A program consists of
segments, which are sequences of computations without communication, and of the steps
between them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from meshtf.errors import NumericsError, PlanError, explain_error
from meshtf.graph import Graph, Node, Source, Spec, context, current_executor
from meshtf.mesh import Mesh, Partial, Placement
from meshtf.names import has_gradient
from meshtf.partition import (
    Bucket,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Segment,
    Step,
    Value,
    WriteStep,
)
from meshtf.runtime.lowering.op_errors import with_line
from meshtf.runtime.placed.executor import PlacedExecutor
from meshtf.runtime.placed.resharding import Shards
from meshtf.runtime.placed.segment_functions import run_directly
from meshtf.runtime.placed.variables.read_write_phases import (
    phases_of,
    touches_variables,
)
from meshtf.runtime.storage.sharding import region, shard_keys, without_padding


@contextlib.contextmanager
def check_numerics() -> Iterator[None]:
    """Checks the outputs of all ops in a `with` block, also those of functions that are
    called. This is slow, since functions run op by op.

    Raises:
      NumericsError: an op output NaN, or infinity from finite inputs; the error names
        the user's line and the module.
      PlanError: the context is used inside a mtf.function.
    """
    if isinstance(current_executor(), Graph):
        raise PlanError(
            explain_error(
                "mtf.check_numerics is used inside a mtf.function, which only records "
                "its ops.",
                source=Source.of_caller(),
                way_out="Put it around the call of the function: it checks all ops of "
                "the function.",
            )
        )
    with context(check_numerics=True):
        yield


class CheckingExecutor(PlacedExecutor):
    """Runs a program op by op, without TensorFlow's graphs, and checks all outputs."""

    def __init__(self, mesh: Mesh, segments: Sequence[Segment]) -> None:
        super().__init__(mesh, segments, run_directly)
        # The innermost loop that runs; None: no loop runs.
        self._loop: LoopStep | None = None
        # The iterations of all loops that run, such as "layers 3 of 12", outer loop first.
        self._iterations: tuple[str, ...] = ()

    def execute(self, step: Step) -> None:
        """Executes a step and checks the sums of collectives. Raises NumericsError."""
        outer_loop = self._loop
        if isinstance(step, LoopStep):
            self._loop = step
        try:
            super().execute(step)
        finally:
            self._loop = outer_loop
        reshards: Sequence[ReshardStep] = ()
        if isinstance(step, Bucket):
            reshards = step.reductions
        elif isinstance(step, ReshardStep):
            reshards = [step]
        for reshard in reshards:
            if isinstance(reshard.reshard.before, Partial) and reshard.node is not None:
                axes = reshard.reshard.axes_text
                name = f"{reshard.reshard.kind} over mesh axis {axes!r}"
                self._check(name, reshard.node, ins=(reshard.src,), outs=(reshard.out,))

    def run_body(
        self, program: Program, inputs: dict[Value, Any], single_use: bool = False
    ) -> list[Shards]:
        """Returns the results of the body of a loop, branch or call. If it is the body of
        a loop, errors name the iteration.
        """
        outer_iterations = self._iterations
        loop = self._loop
        if loop is not None and loop.iteration in inputs:
            iteration = _iteration_text(loop, inputs[loop.iteration])
            self._iterations = (*outer_iterations, iteration)
        try:
            return super().run_body(program, inputs, single_use=single_use)
        finally:
            self._iterations = outer_iterations

    def _call(self, segment: Segment) -> None:
        """Runs each computation of a segment as a separate segment, and checks its
        outputs.
        """
        for compute in segment.computes:
            single = Segment(
                before=(),
                computes=(compute,),
                stage=segment.stage,
                ins=tuple(compute.inputs),
                outs=compute.outs,
            )
            try:
                super()._call(single)
            except tf.errors.InvalidArgumentError as error:
                raise with_line(compute.node, error) from None
            # Statistics that shards exchange are no outputs of an op.
            if not compute.makes_statistics:
                self._check(
                    name=compute.node.op.display_name,
                    node=compute.node,
                    ins=compute.ins,
                    outs=compute.outs,
                )

    def _execute_before(self, steps: Sequence[Step]) -> None:
        """Executes the steps before a segment, and checks the variables."""
        for phase in phases_of(steps, self.mesh):
            self.values.update(self.variables.read(phase.reads))
            for read in phase.reads:
                self._check_read(read)
            for step in (*phase.slices, *phase.remaining):
                self.execute(step)
            for write in phase.writes:
                self.values.update(self.variables.write([write], self.values))
                self._check_written(write)

    def _check(
        self,
        name: str,
        node: Node,
        ins: Sequence[Value],
        outs: Sequence[Value],
    ) -> None:
        """Checks the outputs of an op or a collective, see `check`."""
        check(
            name,
            node,
            ins=self._checked_tensors(ins),
            outs=self._checked_tensors(outs),
            iterations=self._iterations,
        )

    def _checked_tensors(self, values: Sequence[Value]) -> list[CheckedTensor]:
        """Returns the tensors of values; statistics and residuals are not checked."""
        tensors = []
        for value in values:
            if value.spec is not None:
                shards = self._without_padding(
                    value.spec, value.placement, self.values[value]
                )
                is_infinite = _infinity_test(value.placement)
                tensors.append(CheckedTensor(value.spec, shards, is_infinite))
        return tensors

    def _without_padding(
        self, spec: Spec, placement: Placement, shards: Shards
    ) -> Shards:
        """Returns the shards of all positions without their padding."""
        if not self.mesh.pads:
            return shards
        return [
            None
            if x is None
            else without_padding(x, region(spec.shape, placement, key, self.mesh))
            for key, x in zip(shard_keys(placement, self.mesh), shards)
        ]

    def _check_read(self, read: ReadStep) -> None:
        """Raises NumericsError if a variable has NaN."""
        if not touches_variables(read):
            return
        (read_tensor,) = self._checked_tensors([read.out])
        count = _count_of_first(read_tensor.shards, np.isnan)
        if count:
            raise NumericsError(
                explain_error(
                    f"variable {read.store.name!r} has NaN, {count}.",
                    variable=f"{read.store.spec.dtype} {read.store.spec.shape!r}",
                    way_out="It had NaN before this call: check what wrote it, a step "
                    "or a checkpoint.",
                )
            )

    def _check_written(self, write: WriteStep) -> None:
        """Checks the outputs of an update, and the variables that it has written."""
        self._check(
            name=write.op.display_name,
            node=write.node,
            ins=write.values,
            outs=write.outs,
        )
        for store in write.variables:
            check(
                name=f"{write.op.display_name} of variable {store.name!r}",
                node=write.node,
                ins=self._checked_tensors(write.values),
                outs=[
                    CheckedTensor(
                        store.spec,
                        self._without_padding(
                            store.spec, store.placement, store.read()
                        ),
                    )
                ],
            )


class CheckedTensor(NamedTuple):
    """An input or output of an op.

    Attributes:
      spec: the global shape and data type.
      shards: the shard of each mesh position (an element of the mesh's grid).
      is_infinite: the test of elements for infinity.
    """

    spec: Spec
    shards: Shards
    is_infinite: Callable[[Any], Any] = np.isinf


def check(
    name: str,
    node: Node,
    ins: Sequence[CheckedTensor],
    outs: Sequence[CheckedTensor],
    iterations: Sequence[str] = (),
) -> None:
    """Checks that the outputs of an op are finite, if its inputs are.

    Args:
      name: the name of the op, or of the collective.
      node: the node of the op.
      ins: the inputs.
      outs: the outputs.
      iterations: the iterations of the loops around the op, such as "layers 3 of 12".

    Raises:
      NumericsError: an output has NaN although no input has, or an output has infinity
        although all inputs are finite floats.
    """
    float_inputs = [x.shards for x in ins if has_gradient(x.spec.dtype)]
    if any(_count_of_first(shards, np.isnan) for shards in float_inputs):
        return  # the op that output the NaN has been reported
    all_finite = not any(_count_of_first(shards, np.isinf) for shards in float_inputs)
    for spec, shards, is_infinite in outs:
        if not has_gradient(spec.dtype):
            continue
        count = _count_of_first(shards, np.isnan)
        if count:
            headline = f"{name} output NaN, {count}"
            raise _error(headline, node, spec, inputs=ins, iterations=iterations)
        count = _count_of_first(shards, is_infinite)
        if count and float_inputs and all_finite:
            headline = f"{name} output infinity, {count}"
            raise _error(headline, node, spec, inputs=ins, iterations=iterations)


def _infinity_test(placement: Placement) -> Callable[[Any], Any]:
    """Returns the test of a value for infinity. The maximum of a shard without elements is
    -infinity, which changes no maximum, and the minimum is infinity.
    """
    kinds = {state.kind for state in placement if isinstance(state, Partial)}
    if kinds == {"max"}:
        return np.isposinf
    if kinds == {"min"}:
        return np.isneginf
    return np.isinf


def _error(
    headline: str,
    node: Node,
    spec: Spec,
    inputs: Sequence[CheckedTensor],
    iterations: Sequence[str],
) -> NumericsError:
    """Returns the error for an output with this spec that is not finite."""
    facts = {}
    if node.path:
        facts["module"] = "/".join(node.path)
    if iterations:
        facts["iteration"] = ", ".join(iterations)
    if node.primals:  # an op of the backward pass
        headline += ", in the gradient of the line below"
    return NumericsError(
        explain_error(
            f"{headline}.",
            tensor=f"{spec.dtype} {spec.shape!r}",
            inputs="\n".join(map(_description, inputs)) or "none",
            **facts,
            source=node.source,
        )
    )


def _iteration_text(loop: LoopStep, shards: Shards) -> str:
    """Returns the iteration of a loop as text, such as "layers 3 of 12", from 0 on.

    Args:
      loop: the loop.
      shards: the shards of the index of the iteration.
    """
    index = next(int(x) for x in shards if x is not None)
    dim = loop.op.dim
    if dim is None:
        return f"{index}"
    return f"{dim.name} {index} of {dim.size}"


def _arrays(shards: Shards) -> Iterator[Any]:
    """Yields the distinct shards as numpy arrays; real floats as float64, since numpy has
    no bfloat16.
    """
    distinct_shards = {id(x): x for x in shards if tf.is_tensor(x)}
    for x in distinct_shards.values():
        if not x.dtype.is_complex:
            x = tf.cast(x, tf.float64)
        yield np.asarray(x)


def _count_of_first(shards: Shards, test: Callable[[Any], Any]) -> str:
    """Returns the number of elements that satisfy a test in the first shard that has such
    elements, such as "3 of 8"; "" if no shard has.
    """
    for array in _arrays(shards):
        matches = test(array)
        if matches.any():
            return f"{matches.sum()} of {array.size}"
    return ""


def _description(x: CheckedTensor) -> str:
    """Returns the dtype and shape of a tensor, and the range of real elements."""
    arrays = [array for array in _arrays(x.shards) if array.size]
    description = f"{x.spec.dtype} {x.spec.shape!r}"
    if not arrays or np.iscomplexobj(arrays[0]):
        return description
    minimum = min(array.min() for array in arrays)
    maximum = max(array.max() for array in arrays)
    return f"{description} from {minimum:.4g} to {maximum:.4g}"
