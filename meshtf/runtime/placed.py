"""The placed runtime: one TensorFlow program drives all devices of a mesh.

Values are lists with one tensor for each position. Moves are plain TensorFlow ops between devices,
and TensorFlow inserts the sends and receives. The same list of calls runs eagerly and inside a
tf.function. Work that is equal on positions of one device (equal inputs, coordinates not asked for)
is done once: of a replicated update on eight positions of one CPU, one runs.

    results = Placed(mesh, schedule(program), run_directly).run(program.results)
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Store
from meshtf.mesh import At, Mesh, Pending, Placement, Split, Whole
from meshtf.partition import (
  BranchStep,
  CallStep,
  Load,
  LoopStep,
  MoveStep,
  Program,
  Put,
  Segment,
  Tell,
  Value,
  WindowStep,
  schedule,
  walked_only,
)
from meshtf.runtime.carrier import Carrier
from meshtf.runtime.collectives import collectives_for
from meshtf.runtime.collectives.pieces import piece, send
from meshtf.runtime.collectives.rows import rows_of_slices
from meshtf.runtime.devices import devices_of, host_cpu, kept_separate
from meshtf.runtime.segments import Caller, in_line

Slices = list[Any]


class Placed(Carrier):
  """Carries out segments and moves; `make_caller(segment, mesh)` says how a segment is called."""

  def __init__(self, mesh: Mesh, segments: Sequence[Segment],
               make_caller: Callable[[Segment, Mesh], Caller]) -> None:
    super().__init__(mesh)
    self.segments, self.make_caller = segments, make_caller
    self.devices = devices_of(mesh)
    self.separate = kept_separate(mesh)
    # What bodies share, so that a call of one that ran before costs little:
    self._schedules: dict[Program, Sequence[Segment]] = {}
    self._constants: dict[tuple[int, str, Any], Any] = {}     # by number, host and graph
    self._known_keys: dict[Placement, list[tuple[Any, ...] | None]] = {}

  def run(self, results: Sequence[Value]) -> list[Slices]:
    """Runs all segments and returns the values of `results` on each position."""
    steps = [step for s in self.segments for step in (*s.before, *s.computes)]
    self.lists = walked_only(steps, results)
    for segment in self.segments:
      for step in segment.before:
        self._between(step)
      if segment.outs:
        self._call(segment)
    return [self.values[v] for v in results]

  def run_body(self, program: Program, given: dict[Value, Any], once: bool = False) -> list[Slices]:
    """Returns the results of a program within this one."""
    if program not in self._schedules:
      self._schedules[program] = schedule(program, len(set(self.devices)) < len(self.devices))
    inner = copy.copy(self)
    inner.segments, inner.values = self._schedules[program], dict(given)
    if once and len(self.devices) == 1:
      inner.make_caller = in_line(self.make_caller)
    return inner.run(program.results)

  def homes(self, value: Value) -> list[str | None]:
    """Returns the device of each slice that can differ."""
    return [key[0] for key in dict.fromkeys(self._keys(value)) if key is not None]

  def different(self, value: Value, slices: Slices) -> Slices:
    """Returns of a value's slices those that can differ."""
    first: dict[Any, Any] = {}
    for key, x in zip(self._keys(value), slices):
      if key is not None:
        first.setdefault(key, x)
    return list(first.values())

  def spread(self, value: Value, slices: Slices) -> Slices:
    """Returns a slice for each position."""
    keys = self._keys(value)
    held = dict(zip((key for key in dict.fromkeys(keys) if key is not None), slices))
    return [None if key is None else held[key] for key in keys]

  def _between(self, step: Any) -> None:
    with tf.name_scope(_scope(step)):
      self.carry_out(step)

  def _load(self, store: Store) -> Slices:
    return store.read()

  def _put(self, step: Put) -> None:
    """Writes each slice once, on the device that holds it; what tells the world runs once."""
    if not step.op.stores:
      with tf.device("/device:CPU:0"):
        step.op.update((), *(self.values[v][0] for v in step.values))
      return
    stores = [store.slices() for store in step.op.stores]
    done = set()
    for position, device in enumerate(self.devices):
      slices = [held[position] for held in stores]
      if slices[0] is not None and id(slices[0]) not in done:
        done.add(id(slices[0]))
        with tf.device(device):
          step.op.update(slices, *(self.values[v][position] for v in step.values))

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
        with tf.device(self.devices[position]):
          home = host_cpu(self.devices[position])
          ys, used = caller({a: self._constant(c, home) for a, c in coords.items()}, xs)
        key = (inputs, tuple(coords[a] for a in self.mesh.axes if a in used))
        done[key] = tuple(ys)
      made.append(done[key])
    for k, value in enumerate(segment.outs):
      self.values[value] = self._shared(value, [ys[k] for ys in made])

  def _at(self, stage: int | None) -> list[bool]:
    """Returns for each position whether it is at a stage; None: all of them are."""
    states = [At(stage) if axis == self.mesh.stages and stage is not None else Whole
              for axis in self.mesh.axes]
    return self.mesh.has(tuple(states))

  def _shared(self, value: Value, slices: Slices) -> Slices:
    """Returns slices with one tensor for all positions of a device that hold the same."""
    if value.spec is None or len(self.devices) == len(set(self.devices)):
      return slices
    first: dict[Any, Any] = {}
    return [first.setdefault(key, x) for key, x in zip(self._keys(value), slices)]

  def _keys(self, value: Value) -> list[tuple[Any, ...] | None]:
    """Returns for each position its device and which slice it holds; None: it holds none."""
    placement = value.placement
    if placement not in self._known_keys:
      self._known_keys[placement] = [
          (device, *(0 if s == Whole else c for s, c in zip(placement, coord)))
          if there else None for device, coord, there in
          zip(self.devices, self.mesh.coords, self.mesh.has(placement))]
    return self._known_keys[placement]

  def _constant(self, number: int, home: str) -> Any:
    key = number, home, tf.compat.v1.get_default_graph()
    if key not in self._constants:
      with tf.device(home), tf.control_dependencies(None):
        self._constants[key] = tf.constant(number, tf.int32)
    return self._constants[key]

  def _move(self, step: MoveStep) -> Slices:
    before, after = step.move.before, step.move.after
    assert step.src.spec is not None
    names = step.src.spec.shape.names
    cut = names.index(after.dim) if isinstance(after, Split) else -1
    join = names.index(before.dim) if isinstance(before, Split) else -1
    reduction = before.kind if isinstance(before, Pending) else ""
    kind = step.move.kind

    def collective(xs: Slices, devices: Sequence[str]) -> Slices:
      how = collectives_for(devices, self.separate)
      if kind == "all_reduce":
        return how.all_reduce(xs, devices, reduction)
      if kind == "reduce_scatter":
        return how.reduce_scatter(xs, devices, reduction, cut)
      if kind == "all_gather":
        return how.all_gather(xs, devices, join)
      return how.all_to_all(xs, devices, cut, join)

    if kind == "slice":
      return self._slice(step, cut)
    if kind in ("drop", "send", "broadcast"):
      return self._restage(step)
    if kind == "collective_permute":
      return self._permute(step)
    return self._grouped(self._gated(step), (step.move.axis,), collective)

  def _gated(self, step: MoveStep) -> Slices:
    """Returns what is moved, once what the move waits for is there."""
    xs = self.values[step.src]
    if step.after is None:
      return xs
    done: dict[Any, Any] = {}
    for x, after, device in zip(xs, self.values[step.after], self.devices):
      if x is None or after is None:
        done[id(x), id(after)] = x
      elif (id(x), id(after)) not in done:
        with tf.device(device), tf.control_dependencies([after]):
          done[id(x), id(after)] = tf.identity(x)
    return [done[id(x), id(after)] for x, after in zip(xs, self.values[step.after])]

  def _permute(self, step: MoveStep) -> Slices:
    """Returns what two axes exchange: position (i, j) gets what (j, i) has."""
    xs, out = self.values[step.src], list(self.values[step.src])
    for source, target in self.mesh.exchanges(step.move.axis, step.move.other):
      if xs[source] is not None:
        out[target] = send(xs[source], self.devices[source], self.devices[target])
    return out

  def _restage(self, step: MoveStep) -> Slices:
    """Returns what is dropped but at one stage, sent from one to another, or from one to all."""
    xs, before, after = self.values[step.src], step.move.before, step.move.after
    out: Slices = [None] * self.mesh.size
    for group in self.mesh.groups(step.move.axis):
      targets = range(len(group)) if not isinstance(after, At) else [after.coordinate]
      for k in targets:
        source = group[before.coordinate if isinstance(before, At) else k]
        if xs[source] is not None:
          out[group[k]] = send(xs[source], self.devices[source], self.devices[group[k]])
    return out

  def _slice(self, step: MoveStep, cut: int) -> Slices:
    i, parts = self.mesh.axis_index[step.move.axis], self.mesh.axes[step.move.axis]
    done: dict[Any, Any] = {}
    out = []
    for coord, device, x in zip(self.mesh.coords, self.devices, self.values[step.src]):
      key = (id(x), coord[i], device)
      if x is None:
        done[key] = None
      elif key not in done:
        with tf.device(device):
          done[key] = piece(x, cut, coord[i], parts)
      out.append(done[key])
    return out

  def _grouped(self, xs: Slices, axes: tuple[str, ...],
               collective: Callable[[Slices, Sequence[str]], Slices]) -> Slices:
    """Runs a collective in each group along `axes`, once for groups that hold the same."""
    out: Slices = [None] * self.mesh.size
    done: dict[Any, Slices] = {}
    for group in self.mesh.groups(*axes):
      if any(xs[p] is None for p in group):      # it lies at another stage
        continue
      devices = tuple(self.devices[p] for p in group)
      key = (*(id(y) for p in group for y in tf.nest.flatten(xs[p])), *devices)
      if key not in done:
        done[key] = collective([xs[p] for p in group], devices)
      for position, y in zip(group, done[key]):
        out[position] = y
    return out

  def _tell(self, step: Tell) -> Slices:
    def stack(told: Slices, devices: Sequence[str]) -> Slices:
      how = collectives_for(devices, self.separate)
      return list(zip(*(how.stack(ts, devices) for ts in zip(*told))))
    return self._grouped(self.values[step.src], step.axes, stack)

  def _window(self, step: WindowStep) -> Slices:
    assert step.src.spec is not None
    axis = step.src.spec.shape.index(step.dim)
    rows = step.factor_size // self.mesh.axes[step.axis]
    ends = [(step.window.low(j * rows), step.window.high((j + 1) * rows))
            for j in range(self.mesh.axes[step.axis])]
    length = max(high - low for low, high in ends)       # one trace: equal lengths on all devices

    def exchange(xs: Slices, devices: Sequence[str]) -> Slices:
      return [rows_of_slices(xs, devices, j, axis, low, low + length, step)
              for j, (low, _) in enumerate(ends)]
    return self._grouped(self.values[step.src], (step.axis,), exchange)


def _scope(step: Any) -> str:
  """Returns under which name a step's TensorFlow ops stand, for profilers and counts of bytes."""
  if isinstance(step, MoveStep):
    return f"move/{step.move.kind}/{step.move.axis}/"
  if isinstance(step, WindowStep):
    return f"move/window/{step.axis}/"
  if isinstance(step, Tell):
    return f"move/tell/{'.'.join(step.axes)}/"
  if isinstance(step, CallStep):
    return f"call/{step.op.title}.{step.op.which.number}/"
  if isinstance(step, (LoopStep, BranchStep)):
    return f"{step.node.op.title}/"
  return "load/" if isinstance(step, Load) else "put/"
