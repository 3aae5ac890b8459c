"""Reads, slices and updates of many variables by one function call on each device.

A model has hundreds of variables on each of many devices, and each op and each input of a
program makes its first step longer. So all reads, or all updates, of a device are one
function of variable handles. It is traced once for all devices that run the same function.
On CPUs, all handles of a mesh position (an element of the mesh's grid) are passed as one
tensor.

    variables = BatchedVariables(mesh, devices, segments)
    for reads, slices, remaining, writes in phases_of(segment.before, mesh):
        values.update(variables.read(reads))
        values.update(variables.slice(slices, values))
        ...                                            # remaining
        values.update(variables.write(writes, values))

A phase has steps that may run in this order. A slot stores one shard of a variable on one
device, behind a handle. Positions of one device with the same shard share a slot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import RowsWriteOp, Store, WriteOp
from meshtf.mesh import Mesh
from meshtf.ops.common.trace_cache import trace_cache
from meshtf.partition import ReshardStep, Segment, Step, Value
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.resolve import share_memory
from meshtf.runtime.lowering.padding.shard_blocks import ReshardBlocks
from meshtf.runtime.lowering.variable_writes import ShardVariable, first_row
from meshtf.runtime.placed.program.function_calls import GraphFunction, trace
from meshtf.runtime.placed.program.nested_sections import in_section
from meshtf.runtime.placed.program.program_writer import ProgramWriter, call_on
from meshtf.runtime.placed.variables.batched_functions import (
    Update,
    VariableFunction,
    read_function,
    slice_function,
    update_function,
)
from meshtf.runtime.placed.variables.packed_handles import PackedHandles, unpack_handles
from meshtf.runtime.placed.variables.read_write_phases import (
    phases_of,
    touches_variables,
)
from meshtf.runtime.storage.slot import TensorFlowSlot
from meshtf.runtime.storage.variable_slots import tensorflow_slots
from meshtf.runtime.tf_internals.switches import private

Shards = list[Any]  # the shard of each position
Slots = Sequence[TensorFlowSlot | None]  # the slot of each position


class _Batch(NamedTuple):
    """Steps that the same positions execute, each position on its own slots.

    Attributes:
      step_indices: the indices of the steps.
      positions: the mesh positions.
    """

    step_indices: tuple[int, ...]
    positions: list[int]


class BatchedVariables:
    """Reads, slices and updates of variables; each distinct function is traced once.

    Args:
      mesh: the mesh of the variables.
      devices: the device of each position.
      segments: all segments of the program.
      program: the program to which reads and writes are written; None: they run eagerly,
        or TensorFlow traces them.
    """

    def __init__(
        self,
        mesh: Mesh,
        devices: Sequence[str],
        segments: Sequence[Segment],
        program: ProgramWriter | None = None,
    ) -> None:
        self.mesh = mesh
        self.devices = devices
        self.segments = segments
        self.program = program
        self._functions: dict[Any, GraphFunction] = {}

    def graph_functions(self) -> list[GraphFunction]:
        """Returns the traced functions of all reads, slices and updates so far."""
        return list(self._functions.values())

    def read(self, steps: Sequence[Step]) -> dict[Value, Shards]:
        """Returns, for the output of each read, the shard of each position."""
        # slots_of_steps[step index][position]
        slots_of_steps = [list(tensorflow_slots(step.reads[0])) for step in steps]
        shard_of: dict[TensorFlowSlot | None, Any] = {}  # by slot
        for batch in self._batches(slots_of_steps):
            for position in batch.positions:
                slots: list[Any] = [
                    slots_of_steps[step_index][position]
                    for step_index in batch.step_indices
                ]
                device = self.devices[position]
                if self._is_worth_tracing(batch):
                    values = self._call(read_function(slots), device)
                else:
                    values = [self._read_one(slot, device) for slot in slots]
                shard_of.update(zip(slots, values))
        return {
            step.outputs[0]: [shard_of.get(slot) for slot in slots]
            for step, slots in zip(steps, slots_of_steps)
        }

    def slice(
        self, steps: Sequence[ReshardStep], values: Mapping[Value, Shards]
    ) -> dict[Value, Shards] | None:
        """Returns, for the output of each slice, the shard of each position; None if one
        op for each slice is better.

        Args:
          steps: the slices.
          values: for each value, the shard of each position.
        """
        devices_are_shared = len(set(self.devices)) < len(self.devices)
        if len(steps) < 2 or self._runs_now() or devices_are_shared:
            return None
        if any(x is None for step in steps for x in values[step.src]):
            return None
        if any(ReshardBlocks(step, self.mesh).any_padded for step in steps):
            return None
        axes = list(dict.fromkeys(a for step in steps for a in step.reshard.axes))
        shards_of_outputs: list[Shards] = [[] for _ in steps]
        for position, device in enumerate(self.devices):
            coordinates = dict(zip(self.mesh.axes, self.mesh.coords[position]))
            inputs = [values[step.src][position] for step in steps]
            args = [
                self._constant(coordinates[axis], device, tf.int32) for axis in axes
            ]
            args += inputs
            # Equal for all positions whose shards have equal shapes.
            key = tuple((id(step), tuple(x.shape)) for step, x in zip(steps, inputs))
            slice_all = slice_function(steps, axes, self.mesh)
            function = self._traced_function(key, slice_all, args)
            results = call_on(function, args, device, self.program)
            for shards, x in zip(shards_of_outputs, results):
                shards.append(x)
        return {step.out: shards for step, shards in zip(steps, shards_of_outputs)}

    def write(
        self, steps: Sequence[Step], values: Mapping[Value, Shards]
    ) -> dict[Value, Shards]:
        """Executes updates of variables, once for each shard, on the device of the shard.
        Returns, for each output of the updates, the shard of each position.

        Args:
          steps: the updates.
          values: for each value, the shard of each position.
        """
        # slots_of_steps[step index][variable index][position]
        slots_of_steps = [
            [list(tensorflow_slots(store)) for store in step.writes] for step in steps
        ]
        # All variables of a step have one placement, so the slots of the first one
        # determine which positions share a shard.
        first_slots = [slots[0] for slots in slots_of_steps]
        # {(index of a step, slot of its first variable): outputs of the op}
        outputs: dict[tuple[int, TensorFlowSlot], list[Any]] = {}
        for batch in self._batches(first_slots):
            for position in batch.positions:
                updates = [
                    self._update(steps[k], slots_of_steps[k], values, position)
                    for k in batch.step_indices
                ]
                device = self.devices[position]
                # The outputs of all updates, in order.
                if self._is_worth_tracing(batch):
                    all_outputs = self._call(update_function(updates), device)
                else:
                    all_outputs = self._update_each(updates, device)
                remaining_outputs = iter(all_outputs)
                for k in batch.step_indices:
                    key: Any = k, first_slots[k][position]
                    outputs[key] = [next(remaining_outputs) for _ in steps[k].outputs]
        shards_of_outputs: dict[Value, Shards] = {}
        for step_index, step in enumerate(steps):
            slots = first_slots[step_index][: len(self.devices)]
            for output_index, out in enumerate(step.outputs):
                shards_of_outputs[out] = [
                    None if slot is None else outputs[step_index, slot][output_index]
                    for slot in slots
                ]
        return shards_of_outputs

    def _batches(self, slots_of_steps: Sequence[Slots]) -> Iterator[_Batch]:
        """Yields batches of steps with the positions that execute them. If several
        positions share a slot, the first of them executes the step.

        Args:
          slots_of_steps: for each step, the slot of each position.
        """
        # (step index, slot) for the slots on which a position executes the step already.
        assigned_slots: set[tuple[int, TensorFlowSlot]] = set()
        # {indices of steps: the positions that execute exactly these steps}
        positions_of_steps: dict[tuple[int, ...], list[int]] = {}
        for position in range(len(self.devices)):
            step_indices = []
            for step_index, slots in enumerate(slots_of_steps):
                slot = slots[position]
                if slot is not None and (step_index, slot) not in assigned_slots:
                    assigned_slots.add((step_index, slot))
                    step_indices.append(step_index)
            if step_indices:
                positions = positions_of_steps.setdefault(tuple(step_indices), [])
                positions.append(position)
        for batch_indices, positions in positions_of_steps.items():
            yield _Batch(step_indices=batch_indices, positions=positions)

    @functools.cached_property
    def _handles(self) -> PackedHandles | None:
        """The variable handles, packed into one tensor for each position; None: handles
        are passed one by one, since packing is impossible or does not pay.

        TensorFlow orders reads and writes by the tensor of the handle, so either all
        handles are packed or none.
        """
        stores = _batched_stores(self.segments, self.mesh)
        # `private`: whether private symbols of TensorFlow may pack handles.
        if not private("packed_handles"):
            return None
        if len(stores) < 2 or not share_memory(self.devices):
            return None
        handles = PackedHandles(self.devices, stores)
        if not handles.on_several_positions():
            return None
        return handles

    def _runs_now(self) -> bool:
        """Returns whether ops run eagerly."""
        return self.program is None and tf.executing_eagerly()

    def _is_worth_tracing(self, batch: _Batch) -> bool:
        """Returns whether to trace a function for a batch; never in eager mode."""
        if self._runs_now():
            return False
        if self._handles is not None:
            return True
        return len(batch.step_indices) > 1 and len(batch.positions) > 1

    def _call(self, function: VariableFunction, device: str) -> list[Any]:
        """Calls a function of variables and tensors; it is traced at its first call."""
        slots = function.slots
        # The handle of slots[k] is element indices[k] of all `handles` together.
        if self._handles is not None:
            handles, indices = self._handles.locate(slots)
        else:
            handles = [slot.variable.handle for slot in slots]
            indices = list(range(len(slots)))

        def with_handles(*args: Any) -> list[Any]:
            """Returns the outputs for arguments that are handles, then other tensors."""
            unpacked_handles = []
            for x in args[: len(handles)]:
                unpacked_handles += unpack_handles(x)
            shards = [
                ShardVariable(unpacked_handles[k], slot.kind.shape, slot.kind.dtype)
                for k, slot in zip(indices, slots)
            ]
            with trace_cache():
                return function.body(shards, args[len(handles) :])

        shapes = [tuple(handle.shape) for handle in handles]
        key = (*function.key, *indices, *shapes)
        args = [*handles, *function.inputs]
        traced_function = self._traced_function(
            key, with_handles, args, stateful=True, writes=function.writes
        )
        return call_on(traced_function, args, device, self.program)

    def _traced_function(
        self,
        key: Any,
        body: Callable[..., list[Any]],
        args: Sequence[Any],
        stateful: bool = False,
        writes: bool = False,
    ) -> GraphFunction:
        """Returns the function with this key, traced for arguments like `args` when the key
        first occurs. The options are those of `trace`.
        """
        if key not in self._functions:
            self._functions[key] = trace(
                body,
                specs=[tf.TensorSpec(x.shape, x.dtype) for x in args],
                stateful=stateful,
                writes=writes,
                as_branch=only_cpus(self.devices),
            )
        return self._functions[key]

    def _constant(self, value: int, device: str, dtype: Any) -> Any:
        """Returns an integer constant on a device."""
        if self.program is not None:
            return self.program.constant(value, device=device, dtype=dtype)
        with tf.device(device):
            return tf.constant(value, dtype)

    def _read_one(self, slot: TensorFlowSlot, device: str) -> Any:
        """Returns the value of one slot, read by one op."""
        handle = slot.variable.handle
        kind = slot.kind
        if self.program is not None:
            return self.program.read_variable(
                handle, kind.shape, kind.dtype, device=device
            )
        with tf.device(device):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=kind.dtype)

    def _update(
        self,
        step: Step,
        slots: Sequence[Sequence[Any]],
        values: Mapping[Value, Shards],
        position: int,
    ) -> Update:
        """Returns the update that a position executes for a step.

        Args:
          step: the step.
          slots: for each variable of the step, the slot of each position.
          values: for each value, the shard of each position.
          position: the position.
        """
        assert step.node is not None and isinstance(step.node.op, WriteOp)
        inputs = [values[v][position] for v in step.inputs]
        if isinstance(step.node.op, RowsWriteOp):
            coordinates = dict(zip(self.mesh.axes, self.mesh.coords[position]))
            start = first_row(step.writes[0], self.mesh, coordinates)
            inputs.append(self._constant(start, self.devices[position], tf.int64))
        return Update(
            op=step.node.op,
            slots=[slots_of_variable[position] for slots_of_variable in slots],
            inputs=inputs,
            num_outputs=len(step.outputs),
        )

    def _update_each(self, updates: Sequence[Update], device: str) -> list[Any]:
        """Executes updates one by one, without a function, and returns their outputs."""
        function = update_function(updates)
        variables = [slot.variable for slot in function.slots]

        def run(inputs: list[Any]) -> list[Any]:
            with tf.device(device), trace_cache():
                return function.body(variables, inputs)

        if self.program is None:
            return run(function.inputs)
        return list(in_section(self.program, run, function.inputs))


def _batched_stores(segments: Sequence[Segment], mesh: Mesh) -> list[Store]:
    """Returns the variables of a program; [] if a read or write cannot be batched."""
    stores: dict[Store, None] = {}  # an ordered set
    for segment in segments:
        for phase in phases_of(segment.before, mesh):
            if any(touches_variables(step) for step in phase.remaining):
                return []
            stores.update(dict.fromkeys(x for step in phase.reads for x in step.reads))
            for step in phase.writes:
                stores.update(dict.fromkeys(step.writes))
    return list(stores)
