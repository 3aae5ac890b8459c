"""One replica's part of a program: every device runs this, and knows its place by its
number.

Moves are collectives of XLA among groups of replicas, coordinates come from the
replica's number, and a variable is the slice that this replica holds. So one program
serves any number of them.

    results = Replica(program, variables, inputs).run()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Store
from meshtf.mesh import Mesh, Partial, Sharded
from meshtf.partition import (
    GatherStatisticsStep,
    MoveStep,
    Program,
    WindowStep,
    WriteStep,
)
from meshtf.runtime.lowering.local_context import MeshCoordinates
from meshtf.runtime.lowering.single_replica import SingleReplica
from meshtf.runtime.lowering.variable_writes import write
from meshtf.runtime.spmd import stablehlo_collectives
from meshtf.runtime.spmd.window_exchange import exchange
from meshtf.runtime.tf_internals.xla_ops import optimization_barrier, replica_id


class Replica(SingleReplica):
    """Carries out a program on one replica, while it is traced.

    Args:
      program: what to run.
      variables: this replica's tf.Variable of each variable.
      inputs: this replica's slice of each other store.
    """

    def __init__(
        self,
        program: Program,
        variables: Mapping[Store, tf.Variable],
        inputs: Mapping[Store, Any],
    ) -> None:
        super().__init__(program, MeshCoordinates(_coordinates(program.mesh)), jit=True)
        self.variables, self.inputs = variables, inputs

    def _read(self, store: Store) -> Any:
        if store in self.variables:
            return self.variables[store].read_value()
        return self.inputs[store] if store in self.inputs else store.read()[0]

    def _write(self, step: WriteStep) -> Sequence[Any]:
        variables = [self.variables[store] for store in step.variables]
        inputs = [self.values[v] for v in step.values]
        return write(
            step.write_op, variables, inputs, len(step.outs), temporaries=False
        )

    def _reshard(self, step: MoveStep) -> Any:
        assert step.src.spec is not None
        move, names, x = step.move, step.src.spec.shape.names, self.values[step.src]
        if step.after is not None:
            x = optimization_barrier([x, self.values[step.after]])[0]
        cut = names.index(move.after.dim) if isinstance(move.after, Sharded) else -1
        join = names.index(move.before.dim) if isinstance(move.before, Sharded) else -1
        kind = move.before.kind if isinstance(move.before, Partial) else ""
        groups = self.mesh.groups(move.axis)
        if move.kind == "slice":
            return self._slice(x, move.axis, cut)
        if move.kind == "all_reduce":
            return stablehlo_collectives.all_reduce(x, groups, kind)
        if move.kind == "reduce_scatter":
            return stablehlo_collectives.reduce_scatter(x, groups, kind, cut)
        if move.kind == "all_gather":
            return stablehlo_collectives.all_gather(x, groups, join)
        if move.kind == "all_to_all":
            return stablehlo_collectives.all_to_all(x, groups, cut, join)
        return stablehlo_collectives.permute(
            x, self.mesh.exchanges(move.axis, move.other)
        )

    def _slice(self, x: Any, axis: str, cut: int) -> Any:
        size = x.shape[cut] // self.mesh.axes[axis]
        begin, sizes = [0] * len(x.shape), x.shape.as_list()
        sizes[cut] = size
        start = self.coordinates[axis] * size
        return tf.slice(x, [*begin[:cut], start, *begin[cut + 1 :]], sizes)

    def _gather_statistics(self, step: GatherStatisticsStep) -> tuple[Any, ...]:
        groups = self.mesh.groups(*step.axes)
        return tuple(
            stablehlo_collectives.stack(x, groups) for x in self.values[step.src]
        )

    def _exchange_window(self, step: WindowStep) -> Any:
        assert step.src.spec is not None
        return exchange(
            self.values[step.src],
            step.src.spec.shape.index(step.dim),
            step.window,
            step.factor_size,
            step.window.fill,
            self.coordinates[step.axis],
            self.mesh.groups(step.axis),
        )


def _coordinates(mesh: Mesh) -> dict[str, Any]:
    place, found = replica_id(), {}
    for axis, size in reversed(mesh.axes.items()):
        found[axis] = place % size
        place = place // size
    return found
