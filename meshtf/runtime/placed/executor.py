"""The placed runtime's executor: one TensorFlow program drives all devices of a mesh.

A program consists of segments, which are sequences of computations without communication,
and of the steps between them, such as reads and collectives. A value of the program is a
list with the shard of each mesh position (an element of the mesh's grid). Collectives are
plain TensorFlow ops on tensors of different devices; TensorFlow inserts the sends and
receives. The same code runs steps eagerly, or while TensorFlow traces a function, or writes
them to a `ProgramWriter`. A computation that is equal on several positions of one device
(equal inputs, and equal coordinates as far as it uses them) runs once: on eight positions of
one CPU, a replicated update runs once.

    results = PlacedExecutor(mesh, schedule(program), run_directly).run(program.results)
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import Store, is_variable
from meshtf.mesh import Mesh, Placement
from meshtf.partition import (
    Program,
    Segment,
    Step,
    Value,
    WriteStep,
    schedule,
)
from meshtf.runtime.devices.names import host_cpu
from meshtf.runtime.devices.resolve import devices_of, one_memory
from meshtf.runtime.lowering.op_names import common_path, step_scope
from meshtf.runtime.lowering.stacks import unstacked_values
from meshtf.runtime.placed.batched_variables import BatchedVariables
from meshtf.runtime.placed.program.nested_sections import in_section
from meshtf.runtime.placed.program.program_writer import ProgramWriter
from meshtf.runtime.placed.resharding import ReshardExecutor, Shards
from meshtf.runtime.placed.segment_functions import Caller, Tracer, inlined
from meshtf.runtime.placed.variables.read_write_phases import phases_of
from meshtf.runtime.storage.argument_storage import ArrayStore
from meshtf.runtime.storage.sharding import coordinates_along


def schedule_for_devices(program: Program) -> list[Segment]:
    """Returns the segments of a program, scheduled for the devices of its mesh.

    If positions share a device, computations that vary along different mesh axes are in
    different segments, so that each runs once for all positions with equal results. If
    devices have separate memories, several reductions are one collective (a bucket).
    """
    mesh = program.mesh
    devices = devices_of(mesh)
    positions_share_devices = len(set(devices)) < len(devices)
    bucket_bytes = 0 if one_memory(mesh) else mesh.bucket_bytes
    return schedule(
        program, split_by_axes=positions_share_devices, bucket_bytes=bucket_bytes
    )


class _ShardKey(NamedTuple):
    """Identifies a shard of a value on a device; positions with equal keys have the same
    shard on the same device.

    Attributes:
      device: the device.
      coordinates: the mesh coordinates; 0 along axes where the value is replicated.
    """

    device: str
    coordinates: tuple[int, ...]


class PlacedExecutor(ReshardExecutor):
    """Executes segments and the steps between them.

    Args:
      mesh: the mesh of the program.
      segments: the segments that `schedule_for_devices` returns for the program.
      make_caller: a function (segment, mesh) -> the function that calls the segment on a
        device.
      program: the program to which steps are written; None: the steps run eagerly, or
        TensorFlow traces them.
    """

    def __init__(
        self,
        mesh: Mesh,
        segments: Sequence[Segment],
        make_caller: Callable[[Segment, Mesh], Caller],
        program: ProgramWriter | None = None,
    ) -> None:
        super().__init__(mesh)
        self.segments = segments
        self.make_caller = make_caller
        self.program = program
        self.variables = BatchedVariables(mesh, self.devices, segments, program=program)
        # Three caches, which `run_body` shares with the executors of bodies.
        self._schedules: dict[Program, Sequence[Segment]] = {}
        self._constants: dict[Any, Any] = {}  # by value, host and graph
        self._shard_keys_cache: dict[Placement, list[_ShardKey | None]] = {}

    def run(self, results: Sequence[Value]) -> list[Shards]:
        """Runs all segments; returns for each of `results` the shards of all positions."""
        steps = [
            step
            for segment in self.segments
            for step in (*segment.before, *segment.computes)
        ]
        self.unstacked_values = unstacked_values(steps, results)
        for segment in self.segments:
            self._execute_before(segment.before)
            if segment.outs:
                self._call(segment)
        return [self.values[v] for v in results]

    def run_body(
        self,
        program: Program,
        inputs: dict[Value, Any],
        single_use: bool = False,
    ) -> list[Shards]:
        """Returns the results of the body of a loop, branch or call.

        Args:
          program: the program of the body.
          inputs: the shards of the body's arguments and captured values.
          single_use: whether the program has this body only once, so that tracing its ops
            without a function costs no more.
        """
        if program not in self._schedules:
            self._schedules[program] = schedule_for_devices(program)
        body_executor = copy.copy(self)
        body_executor.segments = self._schedules[program]
        body_executor.values = dict(inputs)
        if single_use and len(self.devices) == 1:
            body_executor.make_caller = inlined(self.make_caller)
        return body_executor.run(program.results)

    def execute(self, step: Step) -> None:
        """Executes a step. A loop, a branch, or what a loop begins with, of a program that is
        written is traced by TensorFlow, and the traced nodes are added to the program.
        """
        if self.program is None or step.call or not (step.bodies or step.begins_loop):
            super().execute(step)
            return
        inputs = list(dict.fromkeys(step.dependencies))

        def run(shards: list[Any]) -> list[Any]:
            """Returns the outputs of the step for the shards of its inputs."""
            tracing_executor = self._copy_for_tracing()
            tracing_executor.values = dict(zip(inputs, shards))
            tracing_executor.execute(step)
            return [tracing_executor.values[v] for v in step.outputs]

        results = self._run_in_section(run, [self.values[v] for v in inputs])
        self.values.update(zip(step.outputs, results))

    def after(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which new ops run only after `tensors` are computed."""
        if self.program is None:
            return super().after(tensors)
        return self.program.after(tensors)

    def _copy_for_tracing(self) -> PlacedExecutor:
        """Returns a copy that executes steps while TensorFlow traces them."""
        executor = copy.copy(self)
        executor.program = None
        executor.variables = copy.copy(self.variables)
        executor.variables.program = None
        if isinstance(self.make_caller, Tracer):
            executor.make_caller = self.make_caller.in_tensorflow()
        return executor

    def _run_in_section(self, run: Callable[[Any], Any], inputs: Any) -> Any:
        """Returns run(inputs); inputs and results are nested structures of tensors. For a
        program that is written, TensorFlow traces `run`, and the traced nodes become a
        section of the program.
        """
        if self.program is None:
            return run(inputs)
        return in_section(self.program, run, inputs)

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each distinct shard."""
        distinct_keys = dict.fromkeys(self._shard_keys(value))
        return [key.device for key in distinct_keys if key is not None]

    def distinct_shards(self, value: Value, shards: Shards) -> Shards:
        """Returns the distinct shards among the shards of all positions."""
        shard_of: dict[Any, Any] = {}
        for key, x in zip(self._shard_keys(value), shards):
            if key is not None:
                shard_of.setdefault(key, x)
        return list(shard_of.values())

    def shard_coordinates(self, value: Value) -> list[dict[str, int]]:
        """Returns the coordinates of each distinct shard, by axis."""
        coordinates: dict[_ShardKey, tuple[int, ...]] = {}
        for key, position in zip(self._shard_keys(value), self.mesh.coords):
            if key is not None:
                coordinates.setdefault(key, position)
        return [dict(zip(self.mesh.axes, x)) for x in coordinates.values()]

    def to_positions(self, value: Value, shards: Shards) -> Shards:
        """Returns the shard of each position, given the distinct shards."""
        keys = self._shard_keys(value)
        distinct_keys = [key for key in dict.fromkeys(keys) if key is not None]
        shard_of = dict(zip(distinct_keys, shards))
        return [None if key is None else shard_of[key] for key in keys]

    def _execute_before(self, steps: Sequence[Step]) -> None:
        """Executes the steps before a segment."""
        for phase in phases_of(steps, self.mesh):
            with self._scope("load/"):
                self.values.update(self.variables.read(phase.reads))
            sliced_values = self.variables.slice(phase.slices, self.values)
            single_steps = phase.remaining
            if sliced_values is None:
                # One op for each slice is better than one function for all slices.
                single_steps = [*phase.slices, *phase.remaining]
            else:
                self.values.update(sliced_values)
            for step in single_steps:
                self._execute_in_scope(step)
            with self._scope("put/"):
                self.values.update(self.variables.write(phase.writes, self.values))

    def _execute_in_scope(self, step: Any) -> None:
        """Executes a step in its name scope; ops that run eagerly have no names."""
        if self.program is None and tf.executing_eagerly():
            self.execute(step)
            return
        with self._scope(step_scope(step)):
            self.execute(step)

    def _scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Returns the context of a name scope, of TensorFlow or of the program."""
        if self.program is None:
            return tf.name_scope(name)
        return self.program.scope(name)

    def _read(self, store: Store) -> Shards:
        """Returns the shard of each position of a store: a variable, an argument, a captured
        tensor or a number.
        """
        program = self.program
        if program is None:
            return store.read()
        if is_variable(store):
            # A variable has another value at each call, so the program itself reads it.
            return list(self._run_in_section(lambda _: store.read(), inputs=[]))
        if isinstance(store, ArrayStore):
            return self._shard_array(store)
        if store.kind == "number":
            return [
                program.constant(x.numpy(), x.dtype, device=device)
                for x, device in zip(store.read(), self.devices)
            ]
        return [None if x is None else program.capture(x) for x in store.read()]

    def _shard_array(self, store: ArrayStore) -> Shards:
        """Returns the shards of an array: an argument of the program, or a captured
        tensor.
        """
        array = store.array

        def read(traced_array: Any) -> Shards:
            # `store.read` shards `store.array`. While TensorFlow traces the read, that is
            # the symbolic tensor of this trace.
            store.array = traced_array
            try:
                return store.read()
            finally:
                store.array = array

        return list(self._run_in_section(read, inputs=array))

    def _write(self, step: WriteStep) -> list[Shards]:
        """Writes each shard once, on the device that has it; a host op runs once."""
        host_op = step.host_op
        if host_op is None:
            return list(self.variables.write([step], self.values).values())

        def run(values: list[Any]) -> list[Any]:
            with tf.device("/device:CPU:0"):
                host_op.run_on_host(*values)
            return []

        self._run_in_section(run, [self.values[v][0] for v in step.values])
        return []

    def _call(self, segment: Segment) -> None:
        """Calls a segment on each position; once for positions of one device whose
        outputs are equal.

        Two positions of one device have equal outputs if they have equal inputs, and equal
        coordinates along the mesh axes whose coordinates the segment reads.
        """
        if self.program is None:
            self._call_on_positions(segment)
            return
        path = common_path(compute.node for compute in segment.computes)
        with self.program.inner_scope(f"{path}/" if path else ""):
            self._call_on_positions(segment)

    def _call_on_positions(self, segment: Segment) -> None:
        """Calls a segment on each position, and stores the outputs in `values`."""
        caller = self.make_caller(segment, self.mesh)
        # The mesh axes whose coordinates the segment reads. They are the same for all
        # positions, and known only after the first call.
        axes_read: set[str] = set()

        def key_of(position: int, shards: Shards) -> Any:
            """Returns a key that is equal for positions with equal outputs."""
            tensors = tf.nest.flatten(shards)
            coordinates = self._coordinates_along(axes_read, position)
            return (self.devices[position], *map(id, tensors), *coordinates)

        outputs_by_key: dict[Any, tuple[Any, ...]] = {}
        outputs_of_positions: list[tuple[Any, ...]] = []
        on_stage = self._on_stage(segment.stage)
        for position, device in enumerate(self.devices):
            if not on_stage[position]:
                outputs_of_positions.append((None,) * len(segment.outs))
                continue
            shards = [self.values[v][position] for v in segment.ins]
            key = key_of(position, shards)
            if key not in outputs_by_key:
                outputs, axes_read = caller(device, self._coordinates(position), shards)
                key = key_of(position, shards)  # again, as `axes_read` is known now
                outputs_by_key[key] = tuple(outputs)
            outputs_of_positions.append(outputs_by_key[key])
        for k, value in enumerate(segment.outs):
            shards = [outputs[k] for outputs in outputs_of_positions]
            self.values[value] = self._with_shared_objects(value, shards)

    def _coordinates(self, position: int) -> dict[str, Any]:
        """Returns the coordinates of a position as tensors on its host."""
        host = host_cpu(self.devices[position])
        coordinates = zip(self.mesh.axes, self.mesh.coords[position])
        return {
            axis: self._constant(coordinate, host) for axis, coordinate in coordinates
        }

    def _coordinates_along(self, axes: set[str], position: int) -> tuple[int, ...]:
        """Returns the coordinates of a position along some axes of the mesh."""
        coordinates = self.mesh.coords[position]
        selected = []
        for axis, coordinate in zip(self.mesh.axes, coordinates):
            if axis in axes:
                selected.append(coordinate)
        return tuple(selected)

    def _on_stage(self, stage: int | None) -> list[bool]:
        """Returns for each position whether it is on a pipeline stage; None: on all
        stages.
        """
        return self.mesh.has(self.mesh.replicated.with_stage(self.mesh.stages, stage))

    def _with_shared_objects(self, value: Value, shards: Shards) -> Shards:
        """Returns the shards with one tensor object for all positions of a device that
        have the same shard, so that later steps recognize equal inputs.
        """
        if value.spec is None or len(self.devices) == len(set(self.devices)):
            return shards
        shard_of: dict[Any, Any] = {}
        keys = self._shard_keys(value)
        return [shard_of.setdefault(key, x) for key, x in zip(keys, shards)]

    def _shard_keys(self, value: Value) -> list[_ShardKey | None]:
        """Returns the shard key of each position; None: the position has no shard."""
        placement = value.placement
        if placement not in self._shard_keys_cache:
            self._shard_keys_cache[placement] = [
                self._shard_key(placement, position) if has_shard else None
                for position, has_shard in enumerate(self.mesh.has(placement))
            ]
        return self._shard_keys_cache[placement]

    def _shard_key(self, placement: Placement, position: int) -> _ShardKey:
        """Returns the key of the shard that a position has."""
        coordinates = self.mesh.coords[position]
        key = coordinates_along(placement.unreplicated, self.mesh, coordinates)
        return _ShardKey(self.devices[position], key)

    def _constant(self, value: int, host: str) -> Any:
        """Returns an int32 constant on a host."""
        if self.program is not None:
            return self.program.constant(value, device=host)
        # A tensor can be used only in the graph in which it was created.
        key = value, host, tf.compat.v1.get_default_graph()
        if key not in self._constants:
            # The constant waits for no op, whatever context first needs it.
            with tf.device(host), tf.control_dependencies(None):
                self._constants[key] = tf.constant(value, tf.int32)
        return self._constants[key]
