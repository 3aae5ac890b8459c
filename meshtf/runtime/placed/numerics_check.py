"""The first tensor that is not finite, by running op by op.

    with mtf.check_numerics():
      loss = train_step(batch, step)              # a mtf.function, or ops outside of any

Functions run with their loops, branches, updates and collectives, but op by op, without
TensorFlow's graphs. An op that outputs NaN raises, and so does one that outputs infinity
from finite floats. Infinity from an op without float inputs, such as a mask, is allowed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import NumericsError, PlanError, explain_error
from meshtf.graph import Graph, Node, Source, Spec, context, current_executor
from meshtf.mesh import Mesh, Partial
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
from meshtf.runtime.placed.executor import Placed
from meshtf.runtime.placed.resharding import Shards
from meshtf.runtime.placed.segment_functions import run_directly
from meshtf.runtime.placed.variables.read_write_phases import (
    phases_of,
    touches_variables,
)


@contextlib.contextmanager
def check_numerics() -> Iterator[None]:
    """Within the context, checks the outputs of all ops, also those of functions that are
    called. Slow: functions run op by op.

    Raises:
      NumericsError: an op output NaN, or infinity from finite inputs; with the op's line
        and module.
      PlanError: the context is used inside a mtf.function.
    """
    if isinstance(current_executor(), Graph):
        raise PlanError(
            explain_error(
                "mtf.check_numerics is used inside a mtf.function, which only records "
                "its ops.",
                **{"from": Source.of_caller()},
                way_out="Put it around the call of the function: it checks all ops of "
                "the function.",
            )
        )
    with context(check_numerics=True):
        yield


class Checked(Placed):
    """Runs a program op by op, without TensorFlow's graphs, and checks all outputs."""

    def __init__(self, mesh: Mesh, segments: Sequence[Segment]) -> None:
        super().__init__(mesh, segments, run_directly)
        self._loop: LoopStep | None = None  # the innermost one that runs
        self._iterations: tuple[str, ...] = ()  # of all loops that run, outer first

    def execute(self, step: Step) -> None:
        """Executes a step and checks the sums of collectives. Raises NumericsError."""
        outer_loop = self._loop
        self._loop = step if isinstance(step, LoopStep) else outer_loop
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
                name = f"{reshard.reshard.kind} over mesh axis {reshard.reshard.axis!r}"
                self._check(name, reshard.node, (reshard.src,), (reshard.out,))

    def run_body(
        self, program: Program, inputs: dict[Value, Any], once: bool = False
    ) -> list[Shards]:
        """Returns the results of a program within this one; errors say which iteration
        of a loop it is.
        """
        outer_iterations = self._iterations
        loop = self._loop
        if loop is not None and loop.iteration in inputs:
            iteration = _iteration_text(loop, inputs[loop.iteration])
            self._iterations = (*outer_iterations, iteration)
        try:
            return super().run_body(program, inputs, once)
        finally:
            self._iterations = outer_iterations

    def _call(self, segment: Segment) -> None:
        for compute in segment.computes:
            super()._call(
                Segment(
                    (),
                    (compute,),
                    segment.stage,
                    tuple(compute.inputs),
                    compute.outs,
                )
            )
            if not compute.makes_statistics:
                self._check(
                    compute.node.op.display_name,
                    compute.node,
                    compute.ins,
                    compute.outs,
                )

    def _execute_before(self, steps: Sequence[Step]) -> None:
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
        check(
            name,
            node,
            [(v.spec, self.values[v]) for v in ins if v.spec is not None],
            [(v.spec, self.values[v]) for v in outs if v.spec is not None],
            self._iterations,
        )

    def _check_read(self, read: ReadStep) -> None:
        if not touches_variables(read):
            return
        count = _count_of_first(self.values[read.out], np.isnan)
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
        ins = [(v.spec, self.values[v]) for v in write.values if v.spec is not None]
        self._check(write.op.display_name, write.node, write.values, write.outs)
        for store in write.variables:
            check(
                f"{write.op.display_name} of variable {store.name!r}",
                write.node,
                ins,
                [(store.spec, store.read())],
            )


def check(
    name: str,
    node: Node,
    ins: Sequence[tuple[Spec, Shards]],
    outs: Sequence[tuple[Spec, Shards]],
    iterations: Sequence[str] = (),
) -> None:
    """Checks that the outputs of an op are finite.

    Args:
      name: the name of the op, or of the collective.
      node: the node of the op.
      ins: spec and shards of each input.
      outs: spec and shards of each output.
      iterations: of the loops around the op, such as "layers 3 of 12".

    Raises:
      NumericsError: an output has NaN although no input has, or an output has infinity
        although all inputs are finite floats.
    """
    floats = [shards for spec, shards in ins if has_gradient(spec.dtype)]
    if any(_count_of_first(shards, np.isnan) for shards in floats):
        return  # the op that output the NaN has been reported
    all_finite = not any(_count_of_first(shards, np.isinf) for shards in floats)
    for spec, shards in outs:
        if not has_gradient(spec.dtype):
            continue
        count = _count_of_first(shards, np.isnan)
        if count:
            raise _error(f"{name} output NaN, {count}", node, spec, ins, iterations)
        count = _count_of_first(shards, np.isinf)
        if count and floats and all_finite:
            headline = f"{name} output infinity, {count}"
            raise _error(headline, node, spec, ins, iterations)


def _error(
    headline: str,
    node: Node,
    spec: Spec,
    ins: Sequence[tuple[Spec, Shards]],
    iterations: Sequence[str],
) -> NumericsError:
    facts = {"module": "/".join(node.path)} if node.path else {}
    if iterations:
        facts["iteration"] = ", ".join(iterations)
    note = ", in the gradient of the line below" if node.primals else ""
    return NumericsError(
        explain_error(
            f"{headline}{note}.",
            tensor=f"{spec.dtype} {spec.shape!r}",
            inputs="\n".join(_range(*x) for x in ins) or "none",
            **facts,
            **{"from": node.source},
        )
    )


def _iteration_text(loop: LoopStep, shards: Shards) -> str:
    """Returns which iteration of a loop it is, such as "layers 3 of 12", from 0 on."""
    index = next(int(x) for x in shards if x is not None)
    dim = loop.op.dim
    return f"{index}" if dim is None else f"{dim.name} {index} of {dim.size}"


def _arrays(shards: Shards) -> Iterator[Any]:
    """Yields the distinct shards as numpy arrays; real floats as float64, since numpy has
    no bfloat16.
    """
    distinct = {id(x): x for x in shards if tf.is_tensor(x)}
    for x in distinct.values():
        if not x.dtype.is_complex:
            x = tf.cast(x, tf.float64)
        yield np.asarray(x)


def _count_of_first(shards: Shards, test: Callable[[Any], Any]) -> str:
    """Returns how many elements satisfy a test, such as "3 of 8", in the first shard with
    such elements; "" if there are none.
    """
    for array in _arrays(shards):
        if test(array).any():
            return f"{test(array).sum()} of {array.size}"
    return ""


def _range(spec: Spec, shards: Shards) -> str:
    arrays = [array for array in _arrays(shards) if array.size]
    if not arrays or np.iscomplexobj(arrays[0]):
        return f"{spec.dtype} {spec.shape!r}"
    return (
        f"{spec.dtype} {spec.shape!r} from {min(a.min() for a in arrays):.4g} to "
        f"{max(a.max() for a in arrays):.4g}"
    )
