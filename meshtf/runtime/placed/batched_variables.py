"""Reads, cuts and updates of many variables by one call on each device, traced once for
all.

A model has hundreds of variables on each of many devices, and every op and every input
that TensorFlow is told of makes the first step longer. What devices do alike is one
function of variables' handles; on CPUs all handles of a position come as one tensor.

    together = Together(mesh, devices, segments)
    for reads, cuts, others, writes in sort_out(segment.before, mesh):
      values.update(together.read(reads))
      values.update(together.cut(cuts, values))
      ...                                            # others
      values.update(together.write(writes, values))
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import Store, WriteOp
from meshtf.mesh import Mesh, Sharded
from meshtf.ops.common.traced_once import traced_once
from meshtf.partition import MoveStep, ReadStep, Segment, Value, WriteStep
from meshtf.runtime.devices.names import only_cpus
from meshtf.runtime.devices.resolve import share_memory
from meshtf.runtime.lowering.variable_writes import ShardVariable, write
from meshtf.runtime.placed.program.function_calls import GraphFunction, trace
from meshtf.runtime.placed.program.program_writer import (
    ProgramWriter,
    call_on,
    in_section,
)
from meshtf.runtime.placed.variables.packed_handles import Handles, unpack_handles
from meshtf.runtime.placed.variables.read_write_phases import (
    phases_of,
    touches_variables,
)
from meshtf.runtime.storage.slot import TensorFlowSlot
from meshtf.runtime.storage.variable_slots import tensorflow_slots
from meshtf.runtime.tf_internals.switches import private

Shards = list[Any]


class Writing(NamedTuple):
    """An op that writes variables, on one device."""

    op: WriteOp
    cells: list[TensorFlowSlot]
    inputs: list[Any]
    outputs: int


class BatchedVariables:
    """Reads, cuts and writes of variables; functions of equal ones are traced once.

    Args:
      mesh: of the variables.
      devices: of each position.
      segments: all of the program.
      program: what the program is written to; None: it runs, or TensorFlow traces it.
    """

    def __init__(
        self,
        mesh: Mesh,
        devices: Sequence[str],
        segments: Sequence[Segment],
        program: ProgramWriter | None = None,
    ) -> None:
        self.mesh, self.devices, self.segments = mesh, devices, segments
        self.program = program
        self._functions: dict[Any, GraphFunction] = {}

    def callees(self) -> list[GraphFunction]:
        """Returns all functions that were traced for it to call."""
        return list(self._functions.values())

    def read(self, loads: Sequence[ReadStep]) -> dict[Value, Shards]:
        """Returns what variables hold, on each position."""
        held = [list(tensorflow_slots(load.store)) for load in loads]
        read: dict[TensorFlowSlot | None, Any] = {}
        for which, positions in self._alike(held):
            for p in positions:
                cells = [held[k][p] for k in which]
                if self._pays(which, positions):
                    ys = self._call(self.devices[p], *_reading(cells))
                else:
                    ys = [self._read_one(cell, self.devices[p]) for cell in cells]
                read.update(zip(cells, ys))
        return {
            load.out: [read.get(cell) for cell in cells]
            for load, cells in zip(loads, held)
        }

    def cut(
        self, moves: Sequence[MoveStep], values: Mapping[Value, Shards]
    ) -> dict[Value, Shards] | None:
        """Returns what each position keeps of what it has; None: better cut by as many
        ops as values.

        Positions of one device share ops.
        """
        if (
            len(moves) < 2
            or self._runs_now()
            or len(set(self.devices)) < len(self.devices)
            or any(x is None for move in moves for x in values[move.src])
        ):
            return None
        axes = list(dict.fromkeys(move.move.axis for move in moves))
        made = []
        for device, coord, *xs in zip(
            self.devices, self.mesh.coords, *(values[m.src] for m in moves)
        ):
            coords = dict(zip(self.mesh.axes, coord))
            args = [*(self._constant(coords[axis], device) for axis in axes), *xs]
            key = tuple((id(m), tuple(x.shape)) for m, x in zip(moves, xs))
            function = self._traced(key, _cutting(moves, axes, self.mesh), args)
            made.append(call_on(function, args, device, self.program))
        return {move.out: list(slices) for move, slices in zip(moves, zip(*made))}

    def write(
        self, puts: Sequence[WriteStep], values: Mapping[Value, Shards]
    ) -> dict[Value, Shards]:
        """Lets ops write variables, each slice once, on the device that holds it;
        returns outputs.
        """
        held = [
            [list(tensorflow_slots(store)) for store in put.variables] for put in puts
        ]
        made: dict[tuple[int, TensorFlowSlot], list[Any]] = {}
        for which, positions in self._alike([cells[0] for cells in held]):
            for p in positions:
                writings = [
                    Writing(
                        puts[k].write_op,
                        [cells[p] for cells in held[k]],
                        [values[v][p] for v in puts[k].values],
                        len(puts[k].outs),
                    )
                    for k in which
                ]
                if self._pays(which, positions):
                    ys = iter(self._call(self.devices[p], *_writing(writings)))
                else:
                    ys = iter(self._carry_out(writings, self.devices[p]))
                made.update(
                    ((k, held[k][0][p]), [next(ys) for _ in puts[k].outs])
                    for k in which
                )
        return {
            out: [
                None if cell is None else made[k, cell][j]
                for _, cell in zip(self.devices, held[k][0])
            ]
            for k, put in enumerate(puts)
            for j, out in enumerate(put.outs)
        }

    def _alike(
        self, held: Sequence[Sequence[TensorFlowSlot | None]]
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Yields (which, positions): those of some variables that each of these
        positions is to handle.

        Args:
          held: each variable's cells, of each position; positions that share one handle
            it once.
        """
        done: set[tuple[int, TensorFlowSlot | None]] = set()
        found: dict[tuple[int, ...], list[int]] = {}
        for position, (_, *cells) in enumerate(zip(self.devices, *held)):
            mine = [
                k for k, c in enumerate(cells) if c is not None and (k, c) not in done
            ]
            done.update((k, cells[k]) for k in mine)
            found.setdefault(tuple(mine), []).append(position)
        yield from (
            (list(which), positions) for which, positions in found.items() if which
        )

    @functools.cached_property
    def _handles(self) -> Handles | None:
        """The handles as one tensor for each position, where that may be and pays.

        What reads and writes is ordered by the tensor that has the handle, so it is all
        or none.
        """
        stores = _by_calls_alone(self.segments, self.mesh)
        if not private("packed_handles"):
            return None
        if len(stores) < 2 or not share_memory(self.devices):
            return None
        handles = Handles(self.devices, stores)
        return handles if handles.spread() else None

    def _runs_now(self) -> bool:
        return self.program is None and tf.executing_eagerly()

    def _pays(self, which: Sequence[int], positions: Sequence[int]) -> bool:
        """Whether to trace a function for some variables of some positions; never in
        eager mode.
        """
        if self._runs_now():
            return False
        return self._handles is not None or len(which) > 1 and len(positions) > 1

    def _call(
        self,
        device: str,
        key: Any,
        body: Callable[..., Any],
        cells: Sequence[TensorFlowSlot],
        inputs: Sequence[Any],
    ) -> list[Any]:
        """Calls a function of variables and tensors, which is traced at its first call.

        Only what is given tensors writes.
        """
        if self._handles is not None:
            handles, numbers = self._handles.of(cells)
        else:
            handles = [cell.variable.handle for cell in cells]
            numbers = list(range(len(cells)))

        def with_handles(*args: Any) -> list[Any]:
            unpacked = [h for arg in args[: len(handles)] for h in unpack_handles(arg)]
            shards = [
                ShardVariable(unpacked[k], cell.kind.shape, cell.kind.dtype)
                for k, cell in zip(numbers, cells)
            ]
            with traced_once():
                return body(shards, args[len(handles) :])

        key = (*key, *numbers, *(tuple(h.shape) for h in handles))
        args = [*handles, *inputs]
        function = self._traced(key, with_handles, args, True, bool(inputs))
        return call_on(function, args, device, self.program)

    def _traced(
        self,
        key: Any,
        body: Callable[..., list[Any]],
        args: Sequence[Any],
        stateful: bool = False,
        writes: bool = False,
    ) -> GraphFunction:
        if key not in self._functions:
            specs = (tf.TensorSpec(x.shape, x.dtype) for x in args)
            alone = only_cpus(self.devices)
            self._functions[key] = trace(body, specs, stateful, writes, alone)
        return self._functions[key]

    def _constant(self, number: int, device: str) -> Any:
        if self.program is not None:
            return self.program.constant(number, device=device)
        with tf.device(device):
            return tf.constant(number, tf.int32)

    def _read_one(self, slot: TensorFlowSlot, device: str) -> Any:
        handle, kind = slot.variable.handle, slot.kind
        if self.program is not None:
            return self.program.read_variable(handle, kind.shape, kind.dtype, device)
        with tf.device(device):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=kind.dtype)

    def _carry_out(self, writings: Sequence[Writing], device: str) -> list[Any]:
        """Returns the outputs of ops that write, each an op of its own."""

        def run(inputs: list[Any]) -> list[Any]:
            rest = iter(inputs)
            outputs: list[Any] = []
            with tf.device(device), traced_once():
                for op, cells, xs, number in writings:
                    variables = [cell.variable for cell in cells]
                    values = [next(rest) for _ in xs]
                    outputs += write(op, variables, values, number)
            return outputs

        inputs = [x for writing in writings for x in writing.inputs]
        return (
            run(inputs)
            if self.program is None
            else in_section(self.program, run, inputs)
        )


def _reading(cells: Sequence[TensorFlowSlot]) -> tuple[Any, ...]:
    """Returns how a function reads variables: what makes it the same, its body, and its
    arguments.
    """
    key = tuple((cell.shape, cell.dtype) for cell in cells)
    return key, lambda shards, _: [shard.value() for shard in shards], cells, ()


def _writing(writings: Sequence[Writing]) -> tuple[Any, ...]:
    """Returns how a function writes: what makes it the same, its body, and its
    arguments.

    A variable that several ops write is one argument, so that they keep their order.
    """
    number = {
        cell: k
        for k, cell in enumerate(dict.fromkeys(c for w in writings for c in w.cells))
    }
    which = [[number[cell] for cell in writing.cells] for writing in writings]

    def body(variables: Sequence[ShardVariable], inputs: Sequence[Any]) -> list[Any]:
        rest = iter(inputs)
        return [
            y
            for w, mine in zip(writings, which)
            for y in write(
                w.op,
                [variables[k] for k in mine],
                [next(rest) for _ in w.inputs],
                w.outputs,
            )
        ]

    key = tuple((id(w.op), *mine) for w, mine in zip(writings, which))
    return key, body, list(number), [x for w in writings for x in w.inputs]


def _cutting(
    moves: Sequence[MoveStep], axes: Sequence[str], mesh: Mesh
) -> Callable[..., list[Any]]:
    """Returns a function of coordinates along axes, and of what moves cut."""

    def cut(*args: Any) -> list[Any]:
        coords, pieces = dict(zip(axes, args)), []
        starts: dict[str, dict[Any, Any]] = {axis: {} for axis in axes}
        for step, x in zip(moves, args[len(axes) :]):
            assert isinstance(step.move.after, Sharded) and step.src.spec is not None
            along, axis = step.src.spec.shape.index(step.move.after.dim), step.move.axis
            size, number = x.shape[along] // mesh.axes[axis], len(x.shape)
            key = along, size, number
            if key not in starts[axis]:
                starts[axis][key] = tf.stack(
                    [coords[axis] * size if a == along else 0 for a in range(number)]
                )
            sizes = [size if a == along else n for a, n in enumerate(x.shape)]
            pieces.append(tf.slice(x, starts[axis][key], sizes))
        return pieces

    return cut


def _by_calls_alone(segments: Sequence[Segment], mesh: Mesh) -> list[Store]:
    """Returns the variables of a program if calls alone read and write any,
    else none.
    """
    found: dict[Store, None] = {}
    for reads, _, others, writes in (
        p for s in segments for p in phases_of(s.before, mesh)
    ):
        if any(map(touches_variables, others)):
            return []
        found.update(dict.fromkeys(load.store for load in reads))
        found.update(dict.fromkeys(store for put in writes for store in put.variables))
    return list(found)
