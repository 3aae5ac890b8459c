"""Segments: local work of every device, traced once for all of them.

A segment is a pure function of values and coordinates to a flat list of tensors. It is
never inlined (but in a loop on one device) and is called on each device with that
device's shards, so tracing costs O(ops), not O(ops x devices).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.partition import Segment
from meshtf.runtime.lowering.local_compute import Flat, run_segment
from meshtf.runtime.lowering.local_context import MeshCoordinates
from meshtf.runtime.placed.program.function_calls import GraphFunction, trace
from meshtf.runtime.placed.program.program_writer import ProgramWriter, call_on

# caller(device, coordinates, shards) runs a segment on one device: it returns the
# outputs, and the mesh axes whose coordinates they depend on.
Caller = Callable[[str, dict[str, Any], Flat], tuple[Flat, set[str]]]
MakeCaller = Callable[[Segment, Mesh], Caller]


def run_directly(segment: Segment, mesh: Mesh) -> Caller:
    """Returns a caller that runs the ops one by one, for eager mode."""

    def call(
        device: str, coords: dict[str, Any], shards: Flat
    ) -> tuple[Flat, set[str]]:
        coordinates = MeshCoordinates(coords)
        with tf.device(device):
            outputs = run_segment(segment, mesh, coordinates, shards)
        return outputs, coordinates.used

    return call


class Traced:
    """A segment that is traced at its first call, as a TensorFlow function."""

    def __init__(
        self,
        segment: Segment,
        mesh: Mesh,
        tracer: Tracer,
    ) -> None:
        self.segment = segment
        self.mesh = mesh
        self.tracer = tracer
        self.function: Any = None
        self.axes_used: set[str] = set()
        self.structure: Any = None  # of the outputs, with 0 for each tensor

    def call(
        self,
        program: ProgramWriter | None,
        device: str,
        coords: dict[str, Any],
        shards: Flat,
    ) -> tuple[Flat, set[str]]:
        """Calls the segment on a device, in a program that is written, or while
        TensorFlow traces if `program` is None.
        """
        flat = tf.nest.flatten(shards)
        if self.function is None:
            self._trace(shards, flat)
        coordinates = [coords[axis] for axis in sorted(self.mesh.axes)]
        outputs = call_on(self.function, [*flat, *coordinates], device, program)
        if any(item != 0 for item in self.structure):  # nested
            outputs = tf.nest.pack_sequence_as(self.structure, outputs)
        return outputs, self.axes_used

    def _trace(self, shards: Flat, flat: Flat) -> None:
        axes = sorted(self.mesh.axes)
        tracer = self.tracer
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in flat]
        specs += [tf.TensorSpec([], tf.int32) for _ in axes]

        def body(*args: Any) -> list[Any]:
            tensors = args[: len(flat)]
            coords = args[len(flat) :]
            coordinates = MeshCoordinates(dict(zip(axes, coords)))
            outputs = run_segment(
                self.segment,
                self.mesh,
                coordinates,
                tf.nest.pack_sequence_as(shards, tensors),
                tracer.jit,
                tracer.outline,
            )
            self.axes_used = coordinates.used
            self.structure = tf.nest.map_structure(lambda y: 0, outputs)
            return tf.nest.flatten(outputs)

        self.function = trace(body, specs, as_branch=tracer.as_branch, jit=tracer.jit)


class Tracer:
    """Makes callers that trace; equal segments, such as those of equal layers, share a
    function.

    Args:
      jit: whether XLA compiles segments.
      as_branch: whether devices run what is traced as it is; see `trace`.
      program: the program that calls; None: TensorFlow traces it.
    """

    def __init__(
        self,
        jit: bool,
        as_branch: bool,
        program: ProgramWriter | None = None,
    ) -> None:
        self.jit = jit
        self.as_branch = as_branch and not jit
        self.program = program
        self._outlined: dict[Any, GraphFunction] = {}
        self._by_key: dict[Any, Traced] = {}
        self._by_segment: dict[Segment, Traced] = {}  # keys take long to compare

    def graph_functions(self) -> list[GraphFunction]:
        """Returns all functions that were traced for it to call."""
        segments = [traced.function for traced in self._by_key.values()]
        return [*self._outlined.values(), *filter(None, segments)]

    def in_tensorflow(self) -> Tracer:
        """Returns a copy whose calls TensorFlow traces; it shares the functions."""
        tracer = copy.copy(self)
        tracer.program = None
        return tracer

    def outline(
        self,
        key: Any,
        body: Callable[..., Flat],
        specs: Sequence[tf.TensorSpec],
    ) -> GraphFunction:
        """Returns the function of a key, which all segments share. It is traced when the
        key first occurs.
        """
        if key not in self._outlined:
            self._outlined[key] = trace(body, specs, as_branch=self.as_branch)
        return self._outlined[key]

    def __call__(self, segment: Segment, mesh: Mesh) -> Caller:
        if segment not in self._by_segment:
            self._by_segment[segment] = self._traced(segment, mesh)
        return functools.partial(self._by_segment[segment].call, self.program)

    def _traced(self, segment: Segment, mesh: Mesh) -> Traced:
        key = segment.key()
        try:
            hash(key)
        except TypeError:  # an op with an attribute that cannot be compared
            key = id(segment)
        if key not in self._by_key:
            self._by_key[key] = Traced(segment, mesh, self)
        return self._by_key[key]


def inlined(make_caller: MakeCaller) -> MakeCaller:
    """Returns a maker of callers that put the ops of segments into the body of a loop,
    instead of calling a function. For bodies that only one device runs.

    A call takes 0.1 ms in each iteration, and keeps the memory of its arguments in use.
    """
    if isinstance(make_caller, Tracer) and not make_caller.jit:
        return run_directly
    return make_caller
