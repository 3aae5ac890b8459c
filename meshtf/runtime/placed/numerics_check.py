"""Finds the first op that outputs NaN or infinity, by running a program op by op.

    with mtf.check_numerics():
      loss = train_step(batch, step)            # a mtf.function, or ops outside of functions

Functions run with their loops, branches, updates and collectives, but op by op, without
TensorFlow's graphs. An op raises an error if it outputs NaN, or infinity from finite float
inputs. Infinity from an op without float inputs, such as a mask, is allowed. So do arguments,
arrays, tensors and variables that have NaN when they are read; see `check_read`.

A node is an op with its inputs in the graph; it has the user's line. A program consists of
segments, which are sequences of computations without communication, and of the steps
between them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import NumericsError, PlanError, explain_error
from meshtf.graph import (
    Graph,
    Node,
    Source,
    Spec,
    Store,
    context,
    current_executor,
    is_variable,
)
from meshtf.graph.recorder import EagerStore
from meshtf.mesh import Mesh
from meshtf.names import has_gradient
from meshtf.partition import Compute, LoopStep, Program, Segment, Step, Value
from meshtf.runtime.lowering.op_errors import with_line
from meshtf.runtime.placed.checked_tensor import CheckedTensor
from meshtf.runtime.placed.op_by_op import OpByOpExecutor
from meshtf.runtime.placed.resharding import Shards


@contextlib.contextmanager
def check_numerics() -> Iterator[None]:
    """Checks the outputs of all ops in a `with` block, also those of functions that are
    called, and what they read: arguments, arrays and variables. This is slow, since
    functions run op by op.

    Raises:
      NumericsError: an op output NaN, or infinity from finite inputs; the error names
        the user's line and the module. Or an argument, array, tensor or variable has NaN;
        the error says how many, and the first index. Infinity in an argument or array is an
        error as well, unless it is a mask: all elements are 0 or negative infinity.
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


class CheckingExecutor(OpByOpExecutor):
    """Runs a program op by op, and checks all outputs.

    Args:
      mesh: the mesh of the program.
      segments: the segments of the program.
    """

    def __init__(self, mesh: Mesh, segments: Sequence[Segment]) -> None:
        super().__init__(mesh, segments)
        # The innermost loop that runs; None: no loop runs.
        self._loop: LoopStep | None = None
        # The iterations of all loops that run, such as "layers 3 of 12", outer loop first.
        self._iterations: tuple[str, ...] = ()

    def execute(self, step: Step) -> None:
        """Executes a step; checks what it reads, and the sums of collectives. Raises
        NumericsError.
        """
        outer_loop = self._loop
        self._loop = step.loop or outer_loop
        try:
            super().execute(step)
        finally:
            self._loop = outer_loop
        if step.reads:
            self._after_read(step)
        for reduction in step.reductions:
            if reduction.node is not None:
                axes = reduction.reshard.axes_text
                name = f"{reduction.kind} over mesh axis {axes!r}"
                self._check(
                    name, reduction.node, ins=(reduction.src,), outs=(reduction.out,)
                )

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

    def _on_failure(self, node: Node, problem: tf.errors.OpError) -> None:
        """Raises an error with the user's line."""
        if isinstance(problem, tf.errors.InvalidArgumentError):
            raise with_line(node, problem) from None

    def _after_op(self, compute: Compute) -> None:
        """Checks the outputs of a computation."""
        # Statistics that shards exchange are no outputs of an op.
        if not compute.makes_statistics:
            name = compute.node.op.display_name
            self._check(name, compute.node, ins=compute.ins, outs=compute.outs)

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
        return [
            CheckedTensor.of(value.spec, value.placement, self.values[value], self.mesh)
            for value in values
            if value.spec is not None
        ]

    def _after_read(self, read: Step) -> None:
        """Raises NumericsError if what a program reads has NaN or infinity already. A tensor
        whose value is only looked at, as by `numpy()`, may have.
        """
        (store,) = read.reads
        if isinstance(store, EagerStore) and _only_reads(self.segments):
            return
        (read_tensor,) = self._checked_tensors(read.outputs)
        if has_gradient(read_tensor.spec.dtype):
            check_read(store, read_tensor)

    def _update(self, write: Step) -> None:
        """Runs an update, and checks its outputs and the variables that it has written."""
        super()._update(write)
        node = write.node
        assert node is not None
        self._check(write.title, node, ins=write.inputs, outs=write.outputs)
        for store in write.writes:
            check(
                name=f"{write.title} of variable {store.name!r}",
                node=node,
                ins=self._checked_tensors(write.inputs),
                outs=[
                    CheckedTensor.of(
                        store.spec, store.placement, store.read(), self.mesh
                    )
                ],
            )


def _only_reads(segments: Sequence[Segment]) -> bool:
    """Returns whether a program only reads its results, and reshards them."""
    if any(segment.computes for segment in segments):
        return False
    steps = itertools.chain.from_iterable(segment.before for segment in segments)
    return all(step.reads or step.reshards for step in steps)


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
    float_inputs = [x for x in ins if has_gradient(x.spec.dtype)]
    if any(x.contains(np.isnan) for x in float_inputs):
        return  # what output the NaN, or where it came from, has been reported
    all_finite = not any(x.contains(np.isinf) for x in float_inputs)
    for out in outs:
        if not has_gradient(out.spec.dtype):
            continue
        location = out.locate(np.isnan)
        if location:
            headline = f"{name} output NaN, {location}"
            raise _error(headline, node, out.spec, inputs=ins, iterations=iterations)
        location = out.locate(out.is_infinite)
        if location and float_inputs and all_finite:
            headline = f"{name} output infinity, {location}"
            raise _error(headline, node, out.spec, inputs=ins, iterations=iterations)


def check_read(store: Store, x: CheckedTensor) -> None:
    """Checks what a program reads from a store: x, a tensor of floats.

    Infinity is an error in arguments and arrays, but not in a mask (all elements are 0 or
    negative infinity), nor in variables, such as a lowest loss that begins with infinity,
    nor in tensors that were computed before.

    Raises:
      NumericsError: x has NaN, or infinity where that is an error.
    """
    location = x.locate(np.isnan)
    if location:
        raise _error_of_read(store, f"NaN, {location}")
    if not (is_variable(store) or isinstance(store, EagerStore) or x.is_mask()):
        location = x.locate(np.isinf)
        if location:
            raise _error_of_read(store, f"infinity, {location}")


def _error_of_read(store: Store, problem: str) -> NumericsError:
    """Returns the error for a store that has NaN or infinity; `problem` says which."""
    source = getattr(store, "source", None)
    subject = f"argument {store.name!r}"
    way_out = "It came with the call: check the data."
    if is_variable(store):
        subject = f"variable {store.name!r}"
        way_out = (
            "It had that before this call: check what wrote it, a step or a checkpoint."
        )
    elif isinstance(store, EagerStore):
        source = store.tensor.node.source
        subject = "a tensor that was made before"
        way_out = "Make it within mtf.check_numerics(), too."
    elif isinstance(source, Source) or store.kind == "number":
        subject = "a number" if store.kind == "number" else "an array"
        way_out = "Check where it comes from."
    facts = {"source": source} if isinstance(source, Source) else {}
    return NumericsError(
        explain_error(
            f"{subject} has {problem}.",
            tensor=f"{store.spec.dtype} {store.spec.shape!r}",
            **facts,
            way_out=way_out,
        )
    )


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
            inputs="\n".join(x.description() for x in inputs) or "none",
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
