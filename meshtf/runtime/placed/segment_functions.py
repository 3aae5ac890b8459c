"""Segments as TensorFlow functions: traced once, and called on every device.

A segment is a sequence of computations without communication: a pure function from shards
and mesh coordinates to a list of tensors. It is called on each device with the shards of
that device, so tracing costs O(ops), not O(ops x devices). It is never inlined, except into
the body of a loop on a single device.

    call_segment = Tracer(jit=False, as_branch=True)(segment, mesh)
    outputs, axes_read = call_segment(device, coordinates, shards)
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.partition import Segment
from meshtf.runtime.lowering.local_compute import TensorList, run_segment
from meshtf.runtime.lowering.local_context import MeshCoordinates, Stored
from meshtf.runtime.placed.program.function_calls import GraphFunction, trace
from meshtf.runtime.placed.program.program_writer import ProgramWriter, call_on


class SegmentResult(NamedTuple):
    """The result of running a segment on one device.

    Attributes:
      outputs: the outputs of the segment, on this device.
      axes_read: the mesh axes whose coordinates the segment reads.
    """

    outputs: TensorList
    axes_read: set[str]


# A function (device, coordinates, shards) -> result, which runs a segment on one device.
Caller = Callable[[str, dict[str, Any], TensorList], SegmentResult]
# A function (segment, mesh) -> the function that runs the segment on one device.
MakeCaller = Callable[[Segment, Mesh], Caller]


def run_directly(segment: Segment, mesh: Mesh) -> Caller:
    """Returns a caller that runs the ops one by one, for eager mode."""

    def call(
        device: str, coordinates: dict[str, Any], shards: TensorList
    ) -> SegmentResult:
        mesh_coordinates = MeshCoordinates(coordinates)
        with tf.device(device):
            outputs = run_segment(segment, mesh, mesh_coordinates, shards)
        return SegmentResult(outputs, axes_read=mesh_coordinates.axes_read)

    return call


class TracedSegment:
    """A segment that is traced at its first call, as a TensorFlow function.

    Args:
      segment: the segment.
      mesh: the mesh of the program.
      tracer: the tracer, for its options and the functions that segments share.

    Attributes:
      function: the traced function; None before the first call.
      axes_read: the mesh axes whose coordinates the segment reads, once traced.
      structure: the nested structure of the outputs, with 0 for each tensor, once traced.
    """

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
        self.axes_read: set[str] = set()
        self.structure: Any = None

    def call(
        self,
        program: ProgramWriter | None,
        device: str,
        coordinates: dict[str, Any],
        shards: TensorList,
    ) -> SegmentResult:
        """Calls the segment on a device: in the program that is written or, if `program`
        is None, in the graph that TensorFlow traces. See `Caller`.
        """
        # The shard of a value may be a tuple of tensors, such as statistics.
        tensors = tf.nest.flatten(shards)
        if self.function is None:
            self._trace(shards, tensors)
        sorted_coordinates = [coordinates[axis] for axis in sorted(self.mesh.axes)]
        args = [*tensors, *sorted_coordinates]
        outputs = call_on(self.function, args, device, program)
        # In `structure`, an output that is one tensor is 0.
        is_nested = any(item != 0 for item in self.structure)
        if is_nested:
            outputs = tf.nest.pack_sequence_as(self.structure, outputs)
        return SegmentResult(outputs, axes_read=self.axes_read)

    def _trace(self, shards: TensorList, tensors: TensorList) -> None:
        """Traces the function for inputs like `shards`, which consist of `tensors`; sets
        `function`, `axes_read` and `structure`.
        """
        axes = sorted(self.mesh.axes)
        tracer = self.tracer
        num_tensors = len(tensors)
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in tensors]
        specs += [tf.TensorSpec([], tf.int32) for _ in axes]

        def body(*args: Any) -> list[Any]:
            coordinates = MeshCoordinates(dict(zip(axes, args[num_tensors:])))
            outputs = run_segment(
                self.segment,
                self.mesh,
                coordinates,
                tf.nest.pack_sequence_as(shards, args[:num_tensors]),
                jit=tracer.jit,
                outline=tracer.outline,
                stored=tracer.stored,
            )
            self.axes_read = coordinates.axes_read
            self.structure = tf.nest.map_structure(lambda y: 0, outputs)
            return tf.nest.flatten(outputs)

        self.function = trace(body, specs, as_branch=tracer.as_branch, jit=tracer.jit)


class Tracer:
    """Makes the callers of segments; equal segments, such as those of equal layers, share
    a traced function.

    Args:
      jit: whether XLA compiles segments.
      as_branch: whether functions are called as the only branch of a `Case`; see `trace`.
      program: the program to which calls are written; None: TensorFlow traces the calls.
      stored: see `DeviceContext`; None: XLA may compute a tensor several times.
    """

    def __init__(
        self,
        jit: bool,
        as_branch: bool,
        program: ProgramWriter | None = None,
        stored: Stored | None = None,
    ) -> None:
        self.jit = jit
        self.stored = stored
        self.as_branch = as_branch and not jit
        self.program = program
        # The functions that ops share, by the key of `outline`.
        self._outlined: dict[Any, GraphFunction] = {}
        # The traced segments, by `Segment.key`.
        self._by_key: dict[Any, TracedSegment] = {}
        # Computing and comparing keys takes long, so it is done once for each segment.
        self._by_segment: dict[Segment, TracedSegment] = {}

    def graph_functions(self) -> list[GraphFunction]:
        """Returns all functions that were traced so far."""
        functions = list(self._outlined.values())
        for traced_segment in self._by_key.values():
            if traced_segment.function is not None:
                functions.append(traced_segment.function)
        return functions

    def in_tensorflow(self) -> Tracer:
        """Returns a copy whose calls TensorFlow traces; it shares the traced functions."""
        tracer = copy.copy(self)
        tracer.program = None
        return tracer

    def outline(
        self,
        key: Any,
        body: Callable[..., TensorList],
        specs: Sequence[tf.TensorSpec],
    ) -> GraphFunction:
        """Returns the function with this key, which all segments share. It is traced when
        the key first occurs.

        Args:
          key: a key that is equal for equal functions.
          body: the function of tensors to trace.
          specs: the specs of the arguments.
        """
        if key not in self._outlined:
            self._outlined[key] = trace(body, specs, as_branch=self.as_branch)
        return self._outlined[key]

    def __call__(self, segment: Segment, mesh: Mesh) -> Caller:
        """Returns the caller of a segment."""
        if segment not in self._by_segment:
            self._by_segment[segment] = self._traced_segment(segment, mesh)
        return functools.partial(self._by_segment[segment].call, self.program)

    def _traced_segment(self, segment: Segment, mesh: Mesh) -> TracedSegment:
        """Returns the traced segment that all segments with an equal key share."""
        key = segment.key()
        try:
            hash(key)
        except TypeError:  # an op has an unhashable attribute
            key = id(segment)
        if key not in self._by_key:
            self._by_key[key] = TracedSegment(segment, mesh, self)
        return self._by_key[key]


def inlined(make_caller: MakeCaller) -> MakeCaller:
    """Returns the function that makes callers for the body of a loop on a single device:
    they add the ops of a segment to the body, instead of the call of a function.

    A call takes 0.1 ms in each iteration, and keeps the memory of its arguments in use.
    """
    if isinstance(make_caller, Tracer) and not make_caller.jit:
        return run_directly
    return make_caller
