"""The first tensor that is not finite, by running op by op.

    with mtf.check_numerics():
      loss = train_step(batch, step)              # a mtf.function, or ops outside of any

Programs of functions run with their loops, branches, updates and collectives, but op by
op, outside of TensorFlow's graphs. NaN is refused, and so is infinity if it is made of
finite floats: one that an op makes of no floats, such as a mask, is meant.
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
from meshtf.partition import Bucket, MoveStep, ReadStep, Segment, Step, Value, WriteStep
from meshtf.runtime.placed.executor import Placed
from meshtf.runtime.placed.resharding import Shards
from meshtf.runtime.placed.segment_functions import run_directly
from meshtf.runtime.placed.variables.read_write_phases import (
    phases_of,
    touches_variables,
)


@contextlib.contextmanager
def check_numerics() -> Iterator[None]:
    """Looks at all that ops make, and functions that are called inside; slow.

    Raises:
      NumericsError: an op made NaN, or infinity of finite numbers; with its line and
        module.
      PlanError: it stands inside a mtf.function.
    """
    if isinstance(current_executor(), Graph):
        raise PlanError(
            explain_error(
                "mtf.check_numerics stands inside a mtf.function, which only records "
                "its ops.",
                **{"from": Source.here()},
                way_out="Put it around the call of the function: it looks at all ops "
                "inside.",
            )
        )
    with context(checked=True):
        yield


class Checked(Placed):
    """Runs a program op by op, outside of TensorFlow's graphs, and looks at all that it
    makes.
    """

    def __init__(self, mesh: Mesh, segments: Sequence[Segment]) -> None:
        super().__init__(mesh, segments, run_directly)

    def execute(self, step: Step) -> None:
        """Carries out a step and refuses a sum that is not finite. Raises
        NumericsError.
        """
        super().execute(step)
        moves = (
            step.moves
            if isinstance(step, Bucket)
            else [step]
            if isinstance(step, MoveStep)
            else []
        )
        for move in moves:
            if isinstance(move.move.before, Partial) and move.node is not None:
                what = f"{move.move.kind} over mesh axis {move.move.axis!r}"
                self._check(what, move.node, (move.src,), (move.out,))

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
        for reads, cuts, others, writes in phases_of(steps, self.mesh):
            self.values.update(self.variables.read(reads))
            for load in reads:
                self._check_read(load)
            for step in (*cuts, *others):
                self.execute(step)
            for put in writes:
                self.values.update(self.variables.write([put], self.values))
                self._check_written(put)

    def _check(
        self, what: str, node: Node, ins: Sequence[Value], outs: Sequence[Value]
    ) -> None:
        check(
            what,
            node,
            [(v.spec, self.values[v]) for v in ins if v.spec is not None],
            [(v.spec, self.values[v]) for v in outs if v.spec is not None],
        )

    def _check_read(self, load: ReadStep) -> None:
        bad = _worst(self.values[load.out], np.isnan) if touches_variables(load) else ""
        if bad:
            raise NumericsError(
                explain_error(
                    f"variable {load.store.name!r} holds NaN, {bad}.",
                    variable=f"{load.store.spec.dtype} {load.store.spec.shape!r}",
                    way_out="It did before this call: look at what wrote it, a step or "
                    "a checkpoint.",
                )
            )

    def _check_written(self, put: WriteStep) -> None:
        ins = [(v.spec, self.values[v]) for v in put.values if v.spec is not None]
        self._check(put.op.display_name, put.node, put.values, put.outs)
        for store in put.variables:
            check(
                f"{put.op.display_name} of variable {store.name!r}",
                put.node,
                ins,
                [(store.spec, store.read())],
            )


def check(
    what: str,
    node: Node,
    ins: Sequence[tuple[Spec, Shards]],
    outs: Sequence[tuple[Spec, Shards]],
) -> None:
    """Refuses what an op made if it is not finite.

    Args:
      what: the op, or what else made it.
      node: of the op.
      ins: data type and slices of each input.
      outs: of each output.

    Raises:
      NumericsError: an output has NaN and no input has, or infinity although inputs are
        finite.
    """
    floats = [slices for spec, slices in ins if has_gradient(spec.dtype)]
    if any(_worst(slices, np.isnan) for slices in floats):
        return  # told of where it came from
    finite = bool(floats) and not any(_worst(slices, np.isinf) for slices in floats)
    for spec, slices in outs:
        if has_gradient(spec.dtype):
            nan = _worst(slices, np.isnan)
            infinite = _worst(slices, np.isinf) if finite and not nan else ""
            if nan or infinite:
                raise _error(
                    f"{what} made {'NaN' if nan else 'infinity'}, {nan or infinite}",
                    node,
                    spec,
                    ins,
                )


def _error(
    headline: str, node: Node, spec: Spec, ins: Sequence[tuple[Spec, Shards]]
) -> NumericsError:
    where = {"module": "/".join(node.path)} if node.path else {}
    note = ", in the gradient of the line below" if node.primals else ""
    return NumericsError(
        explain_error(
            f"{headline}{note}.",
            tensor=f"{spec.dtype} {spec.shape!r}",
            inputs="\n".join(_range(*x) for x in ins) or "none",
            **where,
            **{"from": node.source},
        )
    )


def _arrays(slices: Shards) -> Iterator[Any]:
    """Yields the different slices as numpy arrays; half floats as float64, which numpy
    knows.
    """
    for x in {id(x): x for x in slices if tf.is_tensor(x)}.values():
        yield np.asarray(x if x.dtype.is_complex else tf.cast(x, tf.float64))


def _worst(slices: Shards, test: Callable[[Any], Any]) -> str:
    """Returns of how many elements of the first bad slice a test holds; "": of none."""
    for array in _arrays(slices):
        if test(array).any():
            return f"{test(array).sum()} of {array.size}"
    return ""


def _range(spec: Spec, slices: Shards) -> str:
    arrays = [array for array in _arrays(slices) if array.size]
    if not arrays or np.iscomplexobj(arrays[0]):
        return f"{spec.dtype} {spec.shape!r}"
    return (
        f"{spec.dtype} {spec.shape!r} from {min(a.min() for a in arrays):.4g} to "
        f"{max(a.max() for a in arrays):.4g}"
    )
