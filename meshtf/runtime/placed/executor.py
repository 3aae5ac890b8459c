"""The placed runtime: one TensorFlow program drives all devices of a mesh.

Values are lists with one tensor for each position. Moves are plain TensorFlow ops
between devices, and TensorFlow inserts the sends and receives. The same list of calls
runs eagerly, inside a tf.function, and is written as a program. Work that is equal on
positions of one device (equal inputs, coordinates not asked for) is done once: of a
replicated update on eight positions of one CPU, one runs.

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
    MoveStep,
    Program,
    ReadStep,
    Segment,
    Step,
    Value,
    WindowStep,
    WriteStep,
    schedule,
    walked_only,
)
from meshtf.partition.steps import needs
from meshtf.runtime.devices.names import host_cpu
from meshtf.runtime.devices.resolve import devices_of, one_memory
from meshtf.runtime.placed.batched_variables import BatchedVariables
from meshtf.runtime.placed.program.program_writer import ProgramWriter, in_section
from meshtf.runtime.placed.resharding import ReshardExecutor, Shards
from meshtf.runtime.placed.segment_functions import Caller, Tracer, in_line
from meshtf.runtime.placed.variables.read_write_phases import phases_of
from meshtf.runtime.storage.argument_storage import ArrayStore


def schedule_for_devices(program: Program) -> list[Segment]:
    """Returns the segments of a program as they suit the devices of its mesh."""
    mesh, devices = program.mesh, devices_of(program.mesh)
    return schedule(
        program,
        apart=len(set(devices)) < len(devices),
        bucket=0 if one_memory(mesh) else mesh.bucket_bytes,
    )


class Placed(ReshardExecutor):
    """Carries out segments and moves.

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
        self.segments, self.make_caller = segments, make_caller
        self.program = program
        self.batched_variables = BatchedVariables(mesh, self.devices, segments, program)
        # What bodies share, so that a call of one that ran before costs little:
        self._schedules: dict[Program, Sequence[Segment]] = {}
        self._constants: dict[
            tuple[int, str, Any], Any
        ] = {}  # by number, host and graph
        self._known_keys: dict[Placement, list[tuple[Any, ...] | None]] = {}

    def run(self, results: Sequence[Value]) -> list[Shards]:
        """Runs all segments and returns the values of `results` on each position."""
        steps = [step for s in self.segments for step in (*s.before, *s.computes)]
        self.unstacked_values = walked_only(steps, results)
        for segment in self.segments:
            self._all_between(segment.before)
            if segment.outs:
                self._call(segment)
        return [self.values[v] for v in results]

    def run_body(
        self, program: Program, given: dict[Value, Any], once: bool = False
    ) -> list[Shards]:
        """Returns the results of a program within this one."""
        if program not in self._schedules:
            self._schedules[program] = schedule_for_devices(program)
        inner = copy.copy(self)
        inner.segments, inner.values = self._schedules[program], dict(given)
        if once and len(self.devices) == 1:
            inner.make_caller = in_line(self.make_caller)
        return inner.run(program.results)

    def execute(self, step: Step) -> None:
        """Carries out a step; loops and branches of a program that is written are
        traced by TensorFlow.
        """
        if self.program is None or not isinstance(step, (LoopStep, BranchStep)):
            super().execute(step)
            return

        inputs = list(dict.fromkeys(needs(step)))

        def run(given: list[Any]) -> list[Any]:
            traced = self._in_tensorflow()
            traced.values = dict(zip(inputs, given))
            traced.execute(step)
            return [traced.values[v] for v in step.outs]

        results = self._section(run, [self.values[v] for v in inputs])
        self.values.update(zip(step.outs, results))

    def after(self, tensors: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Has what is made within wait until tensors are there."""
        return (
            super().after(tensors)
            if self.program is None
            else self.program.after(tensors)
        )

    def _in_tensorflow(self) -> Placed:
        """Returns what carries out steps within what TensorFlow traces."""
        traced = copy.copy(self)
        traced.program = None
        traced.batched_variables = copy.copy(self.batched_variables)
        traced.batched_variables.program = None
        if isinstance(self.make_caller, Tracer):
            traced.make_caller = self.make_caller.in_tensorflow()
        return traced

    def _section(self, run: Callable[[Any], Any], given: Any) -> Any:
        """Returns what a function of a structure of tensors makes of it."""
        return (
            run(given) if self.program is None else in_section(self.program, run, given)
        )

    def shard_devices(self, value: Value) -> list[str | None]:
        """Returns the device of each slice that can differ."""
        return [key[0] for key in dict.fromkeys(self._keys(value)) if key is not None]

    def distinct_shards(self, value: Value, slices: Shards) -> Shards:
        """Returns of a value's slices those that can differ."""
        first: dict[Any, Any] = {}
        for key, x in zip(self._keys(value), slices):
            if key is not None:
                first.setdefault(key, x)
        return list(first.values())

    def to_positions(self, value: Value, slices: Shards) -> Shards:
        """Returns a slice for each position."""
        keys = self._keys(value)
        held = dict(
            zip((key for key in dict.fromkeys(keys) if key is not None), slices)
        )
        return [None if key is None else held[key] for key in keys]

    def _all_between(self, steps: Sequence[Step]) -> None:
        for reads, cuts, others, writes in phases_of(steps, self.mesh):
            with self._scope("load/"):
                self.values.update(self.batched_variables.read(reads))
            cut = self.batched_variables.cut(cuts, self.values)
            self.values.update(cut or {})
            for step in others if cut else (*cuts, *others):
                self._between(step)
            with self._scope("put/"):
                self.values.update(self.batched_variables.write(writes, self.values))

    def _between(self, step: Any) -> None:
        with self._scope(_scope(step)):
            self.execute(step)

    def _scope(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return tf.name_scope(name) if self.program is None else self.program.scope(name)

    def _read(self, store: Store) -> Shards:
        if self.program is None:
            return store.read()
        if store.kind in ("parameter", "state"):  # it has another value at each call
            return list(self._section(lambda _: store.read(), []))
        if isinstance(store, ArrayStore):
            outside = store.array

            def read(array: Any) -> Shards:
                store.array = array
                try:
                    return store.read()
                finally:
                    store.array = outside

            return list(self._section(read, outside))
        if store.kind == "number":
            return [
                self.program.constant(x.numpy(), x.dtype, device)
                for x, device in zip(store.read(), self.devices)
            ]
        return [None if x is None else self.program.capture(x) for x in store.read()]

    def _write(self, step: WriteStep) -> list[Shards]:
        """Writes each slice once, on the device that holds it; what tells the world
        runs once.
        """
        if step.variables:
            return list(self.batched_variables.write([step], self.values).values())

        def run(values: list[Any]) -> list[Any]:
            with tf.device("/device:CPU:0"):
                step.host_op.run_on_host(*values)
            return []

        self._section(run, [self.values[v][0] for v in step.values])
        return []

    def _call(self, segment: Segment) -> None:
        caller = self.make_caller(segment, self.mesh)
        made: list[tuple[Any, ...]] = []
        done: dict[Any, tuple[Any, ...]] = {}
        used: set[str] = set()
        here = self._at(segment.stage)
        for position, coord in enumerate(self.mesh.coords):
            if not here[position]:
                made.append((None,) * len(segment.outs))
                continue
            xs = [self.values[v][position] for v in segment.ins]
            coords = dict(zip(self.mesh.axes, coord))
            inputs = (self.devices[position], *map(id, tf.nest.flatten(xs)))
            key = (inputs, tuple(coords[a] for a in self.mesh.axes if a in used))
            if not done or key not in done:
                home = host_cpu(self.devices[position])
                ys, used = caller(
                    self.devices[position],
                    {a: self._constant(c, home) for a, c in coords.items()},
                    xs,
                )
                key = (inputs, tuple(coords[a] for a in self.mesh.axes if a in used))
                done[key] = tuple(ys)
            made.append(done[key])
        for k, value in enumerate(segment.outs):
            self.values[value] = self._shared(value, [ys[k] for ys in made])

    def _at(self, stage: int | None) -> list[bool]:
        """Returns for each position whether it is at a stage; None: all of them are."""
        states = [
            OnStage(stage)
            if axis == self.mesh.stages and stage is not None
            else Replicated
            for axis in self.mesh.axes
        ]
        return self.mesh.has(tuple(states))

    def _shared(self, value: Value, slices: Shards) -> Shards:
        """Returns slices with one tensor for all positions of a device that hold the
        same.
        """
        if value.spec is None or len(self.devices) == len(set(self.devices)):
            return slices
        first: dict[Any, Any] = {}
        return [first.setdefault(key, x) for key, x in zip(self._keys(value), slices)]

    def _keys(self, value: Value) -> list[tuple[Any, ...] | None]:
        """Returns for each position its device and which slice it holds; None: it holds
        none.
        """
        placement = value.placement
        if placement not in self._known_keys:
            self._known_keys[placement] = [
                (
                    device,
                    *(0 if s == Replicated else c for s, c in zip(placement, coord)),
                )
                if there
                else None
                for device, coord, there in zip(
                    self.devices, self.mesh.coords, self.mesh.has(placement)
                )
            ]
        return self._known_keys[placement]

    def _constant(self, number: int, home: str) -> Any:
        if self.program is not None:
            return self.program.constant(number, device=home)
        key = number, home, tf.compat.v1.get_default_graph()
        if key not in self._constants:
            with tf.device(home), tf.control_dependencies(None):
                self._constants[key] = tf.constant(number, tf.int32)
        return self._constants[key]


def _scope(step: Any) -> str:
    """Returns under which name a step's TensorFlow ops stand, for profilers and counts
    of bytes.
    """
    step = step.moves[0] if isinstance(step, Bucket) else step
    if isinstance(step, MoveStep):
        return f"move/{step.move.kind}/{step.move.axis}/"
    if isinstance(step, WindowStep):
        return f"move/window/{step.axis}/"
    if isinstance(step, GatherStatisticsStep):
        return f"move/tell/{'.'.join(step.axes)}/"
    if isinstance(step, CallStep):
        return f"call/{step.op.display_name}.{step.op.which.number}/"
    if isinstance(step, (LoopStep, BranchStep)):
        return f"{step.node.op.display_name}/"
    return "load/" if isinstance(step, ReadStep) else "put/"
