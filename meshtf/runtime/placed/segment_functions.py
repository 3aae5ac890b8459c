"""Segments: local work that every device runs, traced once for all of them.

A segment is a pure function of (values, coordinates) to a flat list of tensors. It is
never inlined (but in a loop on one device) and is called on each device with that
device's slices, so tracing costs O(ops), not O(ops x devices). Calls with equal inputs
on one device are made once and their results are shared.
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

# fn(device, coordinates, values) -> values: one device's work, and the mesh axes whose
# coordinates it used
Caller = Callable[[str, dict[str, Any], Flat], tuple[Flat, set[str]]]


def run_directly(segment: Segment, mesh: Mesh) -> Caller:
    """Returns a caller that runs the ops one by one, for eager mode."""

    def call(
        device: str, coords: dict[str, Any], values: Flat
    ) -> tuple[Flat, set[str]]:
        coordinates = MeshCoordinates(coords)
        with tf.device(device):
            return run_segment(segment, mesh, coordinates, values), coordinates.used

    return call


class Traced:
    """A segment that is traced at its first call, as a TensorFlow function."""

    def __init__(self, segment: Segment, mesh: Mesh, tracer: Tracer) -> None:
        self.segment, self.mesh, self.tracer = segment, mesh, tracer
        self.function: Any = None
        self.used: set[str] = set()
        self.structure: Any = None  # of the outputs, with 0 for each tensor

    def call(
        self,
        program: ProgramWriter | None,
        device: str,
        coords: dict[str, Any],
        values: Flat,
    ) -> tuple[Flat, set[str]]:
        """Calls it on a device, in a program that is written or TensorFlow traces."""
        flat = tf.nest.flatten(values)
        if self.function is None:
            self._trace(values, flat)
        args = [*flat, *(coords[a] for a in sorted(self.mesh.axes))]
        ys = call_on(self.function, args, device, program)
        nested = any(part != 0 for part in self.structure)
        return tf.nest.pack_sequence_as(self.structure, ys) if nested else ys, self.used

    def _trace(self, values: Flat, flat: Flat) -> None:
        axes, tracer = sorted(self.mesh.axes), self.tracer
        specs = [
            *(tf.TensorSpec(x.shape, x.dtype) for x in flat),
            *(tf.TensorSpec([], tf.int32) for _ in axes),
        ]

        def body(*args: Any) -> list[Any]:
            coordinates = MeshCoordinates(dict(zip(axes, args[len(flat) :])))
            ys = run_segment(
                self.segment,
                self.mesh,
                coordinates,
                tf.nest.pack_sequence_as(values, args[: len(flat)]),
                tracer.jit,
                tracer.outline,
            )
            self.used, self.structure = (
                coordinates.used,
                tf.nest.map_structure(lambda y: 0, ys),
            )
            return tf.nest.flatten(ys)

        self.function = trace(body, specs, alone=tracer.alone, jit=tracer.jit)


class Tracer:
    """Makes callers that trace; equal segments, such as those of equal layers, share
    one.

    Args:
      jit: whether XLA compiles segments.
      alone: whether devices run what is traced alone: see `trace`.
      program: the program that calls; None: TensorFlow traces it.
    """

    def __init__(
        self, jit: bool, alone: bool, program: ProgramWriter | None = None
    ) -> None:
        self.jit, self.alone, self.program = jit, alone and not jit, program
        self._outlined: dict[Any, GraphFunction] = {}
        self._traced: dict[Any, Traced] = {}
        self._found: dict[
            Segment, Traced
        ] = {}  # so that what runs often is compared once

    def callees(self) -> list[GraphFunction]:
        """Returns all functions that were traced for it to call."""
        segments = [traced.function for traced in self._traced.values()]
        return [*self._outlined.values(), *filter(None, segments)]

    def in_tensorflow(self) -> Tracer:
        """Returns one whose calls TensorFlow traces, with the same functions."""
        tracer = copy.copy(self)
        tracer.program = None
        return tracer

    def outline(
        self, key: Any, body: Callable[..., Flat], specs: Sequence[tf.TensorSpec]
    ) -> GraphFunction:
        """Returns a part of segments, traced when its key is first seen."""
        if key not in self._outlined:
            self._outlined[key] = trace(body, specs, alone=self.alone)
        return self._outlined[key]

    def __call__(self, segment: Segment, mesh: Mesh) -> Caller:
        if segment not in self._found:
            self._found[segment] = self._find(segment, mesh)
        return functools.partial(self._found[segment].call, self.program)

    def _find(self, segment: Segment, mesh: Mesh) -> Traced:
        key = segment.key()
        try:
            hash(key)
        except TypeError:  # an op with an attribute that cannot be compared
            key = id(segment)
        if key not in self._traced:
            self._traced[key] = Traced(segment, mesh, self)
        return self._traced[key]


def in_line(
    make_caller: Callable[[Segment, Mesh], Caller],
) -> Callable[[Segment, Mesh], Caller]:
    """Returns what makes callers for a place that one device passes, as the body of a
    loop: ops stand there themselves. A call costs a turn 0.1 ms, and holds its
    arguments, so that none is reused."""
    return (
        run_directly
        if isinstance(make_caller, Tracer) and not make_caller.jit
        else make_caller
    )
