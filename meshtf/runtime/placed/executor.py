"""The placed runtime's executor: one TensorFlow program drives all devices of a mesh.

Values are lists with one tensor for each position. Collectives are plain TensorFlow ops
between devices, and TensorFlow inserts the sends and receives. The same code runs
eagerly, inside a tf.function, and writes a program. Work that is equal on positions of
one device (equal inputs, coordinates not used) is done once: a replicated update on
eight positions of one CPU runs once.

    results = Placed(mesh, schedule(program), run_directly).run(program.results)
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Store
from meshtf.mesh import Mesh, OnStage, Placement, Replicated
from meshtf.partition import (
    BranchStep,
    Bucket,
    CallStep,
    GatherStatisticsStep,
    LoopStep,
    Program,
    ReadStep,
    ReshardStep,
    Segment,
    Step,
    Value,
    WindowStep,
    WriteStep,
    schedule,
)
from meshtf.partition.steps import dependencies_of
from meshtf.runtime.devices.names import host_cpu
from meshtf.runtime.devices.resolve import devices_of, one_memory
from meshtf.runtime.lowering.op_names import common_path, scope_of
from meshtf.runtime.lowering.unstacked_values import unstacked_values
from meshtf.runtime.placed.batched_variables import BatchedVariables
from meshtf.runtime.placed.program.nested_sections import in_section
from meshtf.runtime.placed.program.program_writer import ProgramWriter
from meshtf.runtime.placed.resharding import ReshardExecutor, Shards
from meshtf.runtime.placed.segment_functions import Caller, Tracer, inlined
from meshtf.runtime.placed.variables.read_write_phases import phases_of
from meshtf.runtime.storage.argument_storage import ArrayStore


def schedule_for_devices(program: Program) -> list[Segment]:
    """Returns the segments of a program as they suit the devices of its mesh."""
    mesh = program.mesh
    devices = devices_of(mesh)
    return schedule(
        program,
        split_by_axes=len(set(devices)) < len(devices),
        bucket_bytes=0 if one_memory(mesh) else mesh.bucket_bytes,
    )


class Placed(ReshardExecutor):
    """Executes segments and the steps between them.

    Args:
      mesh: of the program.
      segments: the program, as `schedule_for_devices` returns it.
      make_caller: of a segment and the mesh, returns what calls it.
      program: what is written; None: all runs at once, or TensorFlow traces it.
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
        self.variables = BatchedVariables(mesh, self.devices, segments, program)
        # Caches that bodies share, so that another run of one costs little:
        self._schedules: dict[Program, Sequence[Segment]] = {}
        self._constants: dict[Any, Any] = {}  # by value, host and graph
        self._shard_keys_cache: dict[Placement, list[tuple[Any, ...] | None]] = {}

    def run(self, results: Sequence[Value]) -> list[Shards]:
        """Runs all segments and returns the values of `results` on each position."""
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
        once: bool = False,
    ) -> list[Shards]:
        """Returns the results of the body of a loop, branch or call.

        Args:
          program: the program of the body.
          inputs: the shards of its inputs and captured values.
          once: whether the body occurs only once in the program.
        """
        if program not in self._schedules:
            self._schedules[program] = schedule_for_devices(program)
        inner = copy.copy(self)
        inner.segments = self._schedules[program]
        inner.values = dict(inputs)
        if once and len(self.devices) == 1:
            inner.make_caller = inlined(self.make_caller)
        return inner.run(program.results)

    def execute(self, step: Step) -> None:
        """Executes a step. While a program is written, TensorFlow traces its loops and
        branches.
        """
        if self.program is None or not isinstance(step, (LoopStep, BranchStep)):
            super().execute(step)
            return
        inputs = list(dict.fromkeys(dependencies_of(step)))

        def run(shards: list[Any]) -> list[Any]:
            traced = self._in_tensorflow()
            traced.values = dict(zip(inputs, shards))
            traced.execute(step)
            return [traced.values[v] for v in step.outs]

        results = self._section(run, [self.values[v] for v in inputs])
        self.values.update(zip(step.outs, results))

    def after(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Within the context, new ops run only after `tensors` are computed."""
        if self.program is None:
            return super().after(tensors)
        return self.program.after(tensors)

    def _in_tensorflow(self) -> Placed:
        """Returns a copy that executes steps while TensorFlow traces them."""
        traced = copy.copy(self)
        traced.program = None
        traced.variables = copy.copy(self.variables)
        traced.variables.program = None
        if isinstance(self.make_caller, Tracer):
            traced.make_caller = self.make_caller.in_tensorflow()
        return traced

    def _section(self, run: Callable[[Any], Any], inputs: Any) -> Any:
        """Returns run(inputs), where both are nested structures of tensors. While a
        program is written, TensorFlow traces `run`, and its nodes are added.
        """
        if self.program is None:
            return run(inputs)
        return in_section(self.program, run, inputs)

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each distinct shard."""
        distinct = dict.fromkeys(self._shard_keys(value))
        return [key[0] for key in distinct if key is not None]

    def distinct_shards(self, value: Value, shards: Shards) -> Shards:
        """Returns the distinct shards among the shards of all positions."""
        distinct: dict[Any, Any] = {}
        for key, x in zip(self._shard_keys(value), shards):
            if key is not None:
                distinct.setdefault(key, x)
        return list(distinct.values())

    def to_positions(self, value: Value, shards: Shards) -> Shards:
        """Returns the shard of each position, given the distinct shards."""
        keys = self._shard_keys(value)
        distinct = [key for key in dict.fromkeys(keys) if key is not None]
        shard_of = dict(zip(distinct, shards))
        return [None if key is None else shard_of[key] for key in keys]

    def _execute_before(self, steps: Sequence[Step]) -> None:
        """Executes the steps before a segment."""
        for reads, slices, remaining, writes in phases_of(steps, self.mesh):
            with self._scope("load/"):
                self.values.update(self.variables.read(reads))
            sliced = self.variables.slice(slices, self.values)
            self.values.update(sliced or {})
            for step in remaining if sliced else (*slices, *remaining):
                self._execute_in_scope(step)
            with self._scope("put/"):
                self.values.update(self.variables.write(writes, self.values))

    def _execute_in_scope(self, step: Any) -> None:
        if self.program is None and tf.executing_eagerly():  # then ops have no names
            self.execute(step)
            return
        with self._scope(_scope(step)):
            self.execute(step)

    def _scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return tf.name_scope(name) if self.program is None else self.program.scope(name)

    def _read(self, store: Store) -> Shards:
        program = self.program
        if program is None:
            return store.read()
        if store.kind in ("parameter", "state"):  # it has another value at each call
            return list(self._section(lambda _: store.read(), []))
        if isinstance(store, ArrayStore):
            return self._shard_array(store)
        if store.kind == "number":
            return [
                program.constant(x.numpy(), x.dtype, device)
                for x, device in zip(store.read(), self.devices)
            ]
        return [None if x is None else program.capture(x) for x in store.read()]

    def _shard_array(self, store: ArrayStore) -> Shards:
        """Returns the shards of an array: an argument of the program, or a captured
        tensor.
        """
        array = store.array

        def read(traced_array: Any) -> Shards:
            store.array = traced_array
            try:
                return store.read()
            finally:
                store.array = array

        return list(self._section(read, array))

    def _write(self, step: WriteStep) -> list[Shards]:
        """Writes each shard once, on the device that has it; host effects run once."""
        if step.variables:
            return list(self.variables.write([step], self.values).values())

        def run(values: list[Any]) -> list[Any]:
            with tf.device("/device:CPU:0"):
                step.host_op.run_on_host(*values)
            return []

        self._section(run, [self.values[v][0] for v in step.values])
        return []

    def _call(self, segment: Segment) -> None:
        """Calls a segment on each position; once for positions that would compute the
        same on the same device.

        Two positions compute the same if they have equal inputs, and equal coordinates
        along the mesh axes that the segment reads.
        """
        if self.program is None:
            self._call_on_positions(segment)
            return
        path = common_path(compute.node for compute in segment.computes)
        with self.program.inner_scope(f"{path}/" if path else ""):
            self._call_on_positions(segment)

    def _call_on_positions(self, segment: Segment) -> None:
        caller = self.make_caller(segment, self.mesh)
        results: list[tuple[Any, ...]] = []
        computed: dict[Any, tuple[Any, ...]] = {}
        axes_used: set[str] = set()  # axes that the segment reads; known after a call
        on_stage = self._on_stage(segment.stage)
        for position, device in enumerate(self.devices):
            if not on_stage[position]:
                results.append((None,) * len(segment.outs))
                continue
            shards = [self.values[v][position] for v in segment.ins]
            inputs = (device, *map(id, tf.nest.flatten(shards)))
            key = (inputs, self._coordinates_along(axes_used, position))
            if not computed or key not in computed:
                outputs, axes_used = caller(device, self._coordinates(position), shards)
                key = (inputs, self._coordinates_along(axes_used, position))
                computed[key] = tuple(outputs)
            results.append(computed[key])
        for k, value in enumerate(segment.outs):
            shards = [outputs[k] for outputs in results]
            self.values[value] = self._aliased(value, shards)

    def _coordinates(self, position: int) -> dict[str, Any]:
        """Returns the coordinates of a position as tensors on its host."""
        host = host_cpu(self.devices[position])
        coordinates = zip(self.mesh.axes, self.mesh.coords[position])
        return {axis: self._constant(c, host) for axis, c in coordinates}

    def _coordinates_along(self, axes: set[str], position: int) -> tuple[int, ...]:
        coordinates = self.mesh.coords[position]
        selected = []
        for axis, coordinate in zip(self.mesh.axes, coordinates):
            if axis in axes:
                selected.append(coordinate)
        return tuple(selected)

    def _on_stage(self, stage: int | None) -> list[bool]:
        """Returns for each position whether it is on a stage; all are if it is None."""
        states = [
            OnStage(stage)
            if axis == self.mesh.stages and stage is not None
            else Replicated
            for axis in self.mesh.axes
        ]
        return self.mesh.has(tuple(states))

    def _aliased(self, value: Value, shards: Shards) -> Shards:
        """Returns the shards with one tensor object for all positions of a device that
        have the same shard.
        """
        if value.spec is None or len(self.devices) == len(set(self.devices)):
            return shards
        tensors: dict[Any, Any] = {}
        keys = self._shard_keys(value)
        return [tensors.setdefault(key, x) for key, x in zip(keys, shards)]

    def _shard_keys(self, value: Value) -> list[tuple[Any, ...] | None]:
        """Returns for each position a key, equal for positions with the same shard on
        the same device; None: it has no shard.
        """
        placement = value.placement
        if placement not in self._shard_keys_cache:
            self._shard_keys_cache[placement] = [
                self._shard_key(placement, position) if is_present else None
                for position, is_present in enumerate(self.mesh.has(placement))
            ]
        return self._shard_keys_cache[placement]

    def _shard_key(self, placement: Placement, position: int) -> tuple[Any, ...]:
        coordinates = [
            0 if state == Replicated else c
            for state, c in zip(placement, self.mesh.coords[position])
        ]
        return self.devices[position], *coordinates

    def _constant(self, value: int, host: str) -> Any:
        if self.program is not None:
            return self.program.constant(value, device=host)
        key = value, host, tf.compat.v1.get_default_graph()
        if key not in self._constants:
            with tf.device(host), tf.control_dependencies(None):
                self._constants[key] = tf.constant(value, tf.int32)
        return self._constants[key]


def _scope(step: Any) -> str:
    """Returns the name scope of a step's TensorFlow ops, for profilers and counts of
    bytes: a collective, its mesh axis, and the module and op that need it.
    """
    step = step.reductions[0] if isinstance(step, Bucket) else step
    node = None if isinstance(step, ReadStep) else step.node
    origin = f"{scope_of(node)}/" if node is not None else ""
    if isinstance(step, ReshardStep):
        return f"move/{step.reshard.kind}/{step.reshard.axis}/{origin}"
    if isinstance(step, WindowStep):
        return f"move/window/{step.axis}/{origin}"
    if isinstance(step, GatherStatisticsStep):
        return f"move/gather_statistics/{'.'.join(step.axes)}/{origin}"
    if isinstance(step, CallStep):
        return f"call/{step.op.display_name}.{step.op.call_id.microbatch}/"
    if isinstance(step, (LoopStep, BranchStep)):
        return origin
    return "load/" if isinstance(step, ReadStep) else "put/"
