"""A whole program as one TensorFlow function.

The outer function is a list of calls of segments and of moves between them. It runs
without the graph optimiser, which costs start-up and finds nothing to do between
segments.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Held, Node, Tensor
from meshtf.graph.context import current
from meshtf.graph.tensor import tensor_of_value
from meshtf.mesh import Mesh
from meshtf.partition import MoveStep, build, walk
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.placed.executor import Placed, arrange
from meshtf.runtime.placed.failure_report import explained
from meshtf.runtime.placed.function_calls import CPU_CONFIG, PLAIN_CONFIG
from meshtf.runtime.placed.numerics_check import Checked
from meshtf.runtime.placed.segment_functions import Tracer
from meshtf.runtime.storage.sharding import distinct
from meshtf.runtime.tf_internals.call_options import call_with
from meshtf.runtime.tf_internals.callee_search import spare_callees
from meshtf.runtime.tf_internals.fast_tracing import quick_ops

_PROGRAMS = itertools.count()


class Compiled:
    """A recorded function for one combination of argument specs, ready to run.

    Args:
      nodes: what was recorded.
      results: the tensors to return.
      stores: the arguments, in order; they are filled from the flat list of tensors at
        each call.
      mesh: where it runs.
      jit: whether XLA compiles the segments.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        results: Sequence[Tensor],
        stores: Sequence[Any],
        mesh: Mesh,
        jit: bool,
    ) -> None:
        self.mesh, self.stores, self.jit = mesh, stores, jit
        self.program = build(nodes, results, mesh)
        self.segments = arrange(self.program)
        self.specs = [r.spec for r in results]
        self.patterns: list[tuple[int, ...]] = []
        self.function: Any = None
        self.config = PLAIN_CONFIG

    def __call__(self, flat: Sequence[Any]) -> list[Tensor]:
        """Runs the program on the arguments' tensors and returns the results."""
        if current().checked:
            self._fill(flat)
            return self._held(
                Checked(self.mesh, self.segments).run(self.program.results)
            )
        if self.function is None:
            with _passing_over():
                self.function = self._traced(
                    [tf.TensorSpec(x.shape, x.dtype) for x in flat]
                )
        try:
            return self._wrap(call_with(self.config, self.function, flat))
        except tf.errors.OpError as error:
            self._fill(flat)
            problem = explained(error, self.mesh, self.segments, self.program.results)
            if problem is error:
                raise
            raise problem from error

    @property
    def moves(self) -> list[str]:
        """All communication of one call, such as "all_reduce over model of [batch:64
        d_model:16]".
        """
        return [
            f"{s.move.kind} over {s.move.axis} of {s.src.spec.shape!r}"
            for s, times in walk(self.program)
            for _ in range(times)
            if isinstance(s, MoveStep) and s.move.kind != "slice" and s.src.spec
        ]

    def _traced(self, specs: Sequence[tf.TensorSpec]) -> Any:
        """Returns the concrete function of a program."""
        cpus = only_cpus(devices_of(self.mesh))
        self.config = CPU_CONFIG if cpus and not self.jit else PLAIN_CONFIG
        placed = Placed(self.mesh, self.segments, Tracer(self.jit, cpus))
        attributes = {"_disable_acd": True} if placed.together.keeps_order else {}
        function = tf.function(
            lambda *flat: self._body(placed, flat),
            autograph=False,
            experimental_attributes=attributes,
        )
        return function.get_concrete_function(*specs)

    def _body(self, placed: Placed, flat: Sequence[Any]) -> list[Any]:
        self._fill(flat)
        out = []
        with quick_ops():
            values = placed.run(self.program.results)
            if not self.jit:
                spare_callees()
        for slices in values:
            different, pattern = distinct(slices)
            out.extend(different)
            self.patterns.append(pattern)
        return out

    def _fill(self, flat: Sequence[Any]) -> None:
        left = list(flat)
        for store in self.stores:
            store.fill(left)

    def _wrap(self, ys: list[Any]) -> list[Tensor]:
        values = []
        for pattern in self.patterns:
            values.append([None if k < 0 else ys[k] for k in pattern])
            del ys[: max(pattern) + 1]
        return self._held(values)

    def _held(self, values: Sequence[list[Any]]) -> list[Tensor]:
        """Returns tensors that hold these slices."""
        return [
            tensor_of_value(spec, Held(value.placement, slices), self.mesh)
            for spec, value, slices in zip(
                self.specs, self.program.results, values, strict=True
            )
        ]


@contextlib.contextmanager
def _passing_over() -> Iterator[None]:
    """Lets garbage collections pass over what was there before, while a first program
    is traced.

    A trace makes so many objects that Python looks through all that there are: 0.2 s
    for the million of TensorFlow, none of them garbage. Before later programs there is
    garbage among them.
    """
    if next(_PROGRAMS) or gc.get_freeze_count():  # what the user froze stays so
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def on_another_mesh(x: Any, mesh: Mesh) -> Any:
    """Returns what stands for an argument, a tensor or anything, on another mesh."""
    if not isinstance(x, Tensor):
        return x
    return tensor_of_value(x.spec, Held(mesh.whole, [None] * mesh.size), mesh)
