"""One replica's part of a program: every device runs this, and knows its place by its number.

Moves are collectives of XLA among groups of replicas, coordinates come from the replica's number,
and a variable is the slice that this replica holds. So one program serves any number of them.

    results = Replica(program, variables, inputs).run()
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from meshtf.graph import Store
from meshtf.mesh import Pending, Split
from meshtf.partition import (
  Compute,
  Load,
  MoveStep,
  Program,
  Put,
  Step,
  Tell,
  Value,
  WindowStep,
  schedule,
  walked_only,
)
from meshtf.runtime.at import Coordinates
from meshtf.runtime.carrier import Carrier
from meshtf.runtime.segments import run_compute
from meshtf.runtime.spmd import collectives
from meshtf.runtime.spmd.windows import exchange
from meshtf.runtime.tf_private import optimization_barrier, replica_id


class Replica(Carrier):
  """Carries out a program on one replica, while it is traced.

  Args:
    program: what to run.
    variables: this replica's tf.Variable of each variable.
    inputs: this replica's slice of each other store.
  """

  def __init__(self, program: Program, variables: Mapping[Store, tf.Variable],
               inputs: Mapping[Store, Any]) -> None:
    super().__init__(program.mesh)
    self.program = program
    self.variables, self.inputs = variables, inputs
    self.coordinates = Coordinates(self._coordinates())

  def run(self) -> list[Any]:
    """Runs all steps and returns the results."""
    return self.run_body(self.program, {})

  def run_body(self, program: Program, given: dict[Value, Any]) -> list[Any]:
    """Returns the results of a program within this one."""
    around = self.values, self.lists
    self.values = dict(given)
    self.lists = walked_only(program.steps, program.results)
    for segment in schedule(program):
      for step in (*segment.before, *segment.computes):
        with tf.name_scope(scope(step)):
          self._step(step)
    results = [self.values[v] for v in program.results]
    self.values, self.lists = around
    return results

  def homes(self, value: Value) -> list[str | None]:
    """A replica holds one slice."""
    return [None]

  def different(self, value: Value, slices: Any) -> list[Any]:
    """Returns this replica's slice."""
    return [slices]

  def spread(self, value: Value, slices: list[Any]) -> Any:
    """Returns this replica's slice."""
    return slices[0]

  def _coordinates(self) -> dict[str, Any]:
    place, found = replica_id(), {}
    for axis, size in reversed(self.mesh.axes.items()):
      found[axis] = place % size
      place = place // size
    return found

  def _step(self, step: Step) -> None:
    if isinstance(step, Compute):
      run_compute(step, self.mesh, self.coordinates, self.values, jit=True)
    else:
      self.carry_out(step)

  def _load(self, store: Store) -> Any:
    if store in self.variables:
      return self.variables[store].read_value()
    return self.inputs[store] if store in self.inputs else store.read()[0]

  def _put(self, step: Put) -> None:
    slices = [self.variables[store] for store in step.op.stores]
    step.op.update(slices, *(self.values[v] for v in step.values))

  def _move(self, step: MoveStep) -> Any:
    assert step.src.spec is not None
    move, names, x = step.move, step.src.spec.shape.names, self.values[step.src]
    if step.after is not None:
      x = optimization_barrier([x, self.values[step.after]])[0]
    cut = names.index(move.after.dim) if isinstance(move.after, Split) else -1
    join = names.index(move.before.dim) if isinstance(move.before, Split) else -1
    kind = move.before.kind if isinstance(move.before, Pending) else ""
    groups = self.mesh.groups(move.axis)
    if move.kind == "slice":
      return self._slice(x, move.axis, cut)
    if move.kind == "all_reduce":
      return collectives.all_reduce(x, groups, kind)
    if move.kind == "reduce_scatter":
      return collectives.reduce_scatter(x, groups, kind, cut)
    if move.kind == "all_gather":
      return collectives.all_gather(x, groups, join)
    if move.kind == "all_to_all":
      return collectives.all_to_all(x, groups, cut, join)
    return collectives.permute(x, self.mesh.exchanges(move.axis, move.other))

  def _slice(self, x: Any, axis: str, cut: int) -> Any:
    size = x.shape[cut] // self.mesh.axes[axis]
    begin, sizes = [0] * len(x.shape), x.shape.as_list()
    sizes[cut] = size
    start = self.coordinates[axis] * size
    return tf.slice(x, [*begin[:cut], start, *begin[cut + 1:]], sizes)

  def _tell(self, step: Tell) -> tuple[Any, ...]:
    groups = self.mesh.groups(*step.axes)
    return tuple(collectives.stack(x, groups) for x in self.values[step.src])

  def _window(self, step: WindowStep) -> Any:
    assert step.src.spec is not None
    return exchange(self.values[step.src], step.src.spec.shape.index(step.dim), step.window,
                    step.factor_size, step.fill, self.coordinates[step.axis],
                    self.mesh.groups(step.axis))


def scope(step: Step) -> str:
  """Returns the name under which a step's TensorFlow ops stand: its op's title and number."""
  node = None if isinstance(step, Load) else step.node
  return "load" if node is None else f"{node.op.title}.{node.serial}"
