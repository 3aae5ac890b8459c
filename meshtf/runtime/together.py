"""Reads and updates of many variables by one call on each device, traced once for all of them.

A model has hundreds of variables on each of many devices, and every op and every input that
TensorFlow is told of makes the first step longer. What devices do alike is one function of
variables' handles; on CPUs all handles of a position come as one tensor.

    together = Together(mesh, devices, segments)
    reads, others, writes = sort_out(segment.before, mesh)
    values.update(together.read(reads))
    together.write(writes, values)
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.graph import Op, Store
from meshtf.mesh import Mesh
from meshtf.partition import BranchStep, CallStep, Load, LoopStep, Put, Segment, Step, Value
from meshtf.runtime.devices import share_memory
from meshtf.runtime.handles import Handles
from meshtf.runtime.segments import call_function
from meshtf.runtime.tf_private import trace, variable_of

Slices = list[Any]


class Writing(NamedTuple):
  """An op that writes variables, on one device."""

  op: Op
  variables: list[tf.Variable]
  inputs: list[Any]


class Together:
  """Reads and writes of variables; functions of equal ones are traced once.

  Args:
    mesh: of the variables.
    devices: of each position.
    segments: all of the program.
  """

  def __init__(self, mesh: Mesh, devices: Sequence[str], segments: Sequence[Segment]) -> None:
    self.mesh, self.devices, self.segments = mesh, devices, segments
    self._functions: dict[Any, Any] = {}

  def read(self, loads: Sequence[Load]) -> dict[Value, Slices]:
    """Returns what variables hold, on each position."""
    held = [list(load.store.slices()) for load in loads]
    read: dict[int, Any] = {}
    for which, positions in self._alike(held):
      for p in positions:
        variables = [held[k][p] for k in which]
        with tf.device(self.devices[p]):
          ys = (self._call(p, *_reading(variables)) if self._pays(which, positions)
                else _values(variables))
        read.update(zip(map(id, variables), ys))
    return {load.out: [read.get(id(v)) for v in slices] for load, slices in zip(loads, held)}

  def write(self, puts: Sequence[Put], values: Mapping[Value, Slices]) -> None:
    """Lets ops write variables, each slice once, on the device that holds it."""
    held = [[list(store.slices()) for store in put.op.stores] for put in puts]
    for which, positions in self._alike([slices[0] for slices in held]):
      for p in positions:
        writings = [Writing(puts[k].op, [slices[p] for slices in held[k]],
                            [values[v][p] for v in puts[k].values]) for k in which]
        with tf.device(self.devices[p]):
          if self._pays(which, positions):
            self._call(p, *_writing(writings))
          else:
            _carry_out(writings)

  def _alike(self, held: Sequence[Slices]) -> Iterator[tuple[list[int], list[int]]]:
    """Yields (which, positions): those of some variables that each of these positions is to handle.

    Args:
      held: each variable's slices, of each position; positions that share one handle it once.
    """
    done: set[tuple[int, int]] = set()
    found: dict[tuple[int, ...], list[int]] = {}
    for position, (_, *slices) in enumerate(zip(self.devices, *held)):
      mine = [k for k, s in enumerate(slices) if s is not None and (k, id(s)) not in done]
      done.update((k, id(slices[k])) for k in mine)
      found.setdefault(tuple(mine), []).append(position)
    yield from ((list(which), positions) for which, positions in found.items() if which)

  @functools.cached_property
  def _handles(self) -> Handles | None:
    """The handles as one tensor for each position, where that may be and pays.

    TensorFlow orders what reads and writes by the tensor that has the handle, so it is all or none.
    """
    stores = _by_calls_alone(self.segments, self.mesh)
    if len(stores) < 2 or not share_memory(self.devices):
      return None
    handles = Handles(self.devices, stores)
    return handles if handles.spread() else None

  def _pays(self, which: Sequence[int], positions: Sequence[int]) -> bool:
    """Whether to trace a function for some variables of some positions; never in eager mode."""
    if tf.executing_eagerly():
      return False
    return self._handles is not None or len(which) > 1 and len(positions) > 1

  def _call(self, position: int, key: Any, body: Callable[..., Any],
            variables: Sequence[tf.Variable], inputs: Sequence[Any]) -> list[Any]:
    """Calls a function of variables and tensors, which is traced at its first call.

    Only what is given tensors writes.
    """
    handles, numbers = [v.handle for v in variables], list(range(len(variables)))
    if self._handles is not None:
      handles = [self._handles.tensor(position)]
      numbers = self._handles.numbers(position, variables)
    key = (*key, *numbers, *(tuple(h.shape) for h in handles))
    if key not in self._functions:
      def traced(*args: Any) -> Any:
        opened = [h for arg in args[:len(handles)] for h in _opened(arg)]
        return body([variable_of(opened[k], v) for k, v in zip(numbers, variables)],
                    args[len(handles):])
      specs = (tf.TensorSpec(x.shape, x.dtype) for x in (*handles, *inputs))
      self._functions[key] = trace(traced, specs, ordered=bool(inputs))
    return call_function(self._functions[key], [*handles, *inputs], stateful=True)


def _opened(handles: Any) -> list[Any]:
  """Returns the handles that a tensor holds."""
  if not handles.shape.rank:
    return [handles]
  return tf.raw_ops.Unpack(value=handles, num=handles.shape[0], axis=0)


def _values(variables: Sequence[tf.Variable]) -> list[Any]:
  return [tf.raw_ops.ReadVariableOp(resource=v.handle, dtype=v.dtype) for v in variables]


def _reading(variables: Sequence[tf.Variable]) -> tuple[Any, ...]:
  """Returns how a function reads variables: what makes it the same, its body, and its arguments."""
  key = tuple((tuple(v.shape), v.dtype) for v in variables)
  return key, lambda inside, _: _values(inside), variables, ()


def _carry_out(writings: Sequence[Writing]) -> None:
  for op, variables, inputs in writings:
    op.update(variables, *inputs)


def _writing(writings: Sequence[Writing]) -> tuple[Any, ...]:
  """Returns how a function writes: what makes it the same, its body, and its arguments.

  A variable that several ops write is one argument, so that they keep their order.
  """
  different = {id(v): v for writing in writings for v in writing.variables}
  number = {name: k for k, name in enumerate(different)}
  which = [[number[id(v)] for v in writing.variables] for writing in writings]

  def body(variables: Sequence[tf.Variable], inputs: Sequence[Any]) -> None:
    rest = iter(inputs)
    _carry_out([Writing(w.op, [variables[k] for k in mine], [next(rest) for _ in w.inputs])
                for w, mine in zip(writings, which)])
  key = tuple((id(w.op), *mine) for w, mine in zip(writings, which))
  return key, body, list(different.values()), [x for w in writings for x in w.inputs]


def sort_out(steps: Sequence[Step], mesh: Mesh) -> tuple[list[Load], list[Step], list[Put]]:
  """Returns steps in an order that they may have too: reads of variables, others, and writes."""
  reads = [s for s in steps if isinstance(s, Load) and s.store.kind in ("parameter", "state")
           and s.store.mesh is mesh]
  writes = [s for s in steps if isinstance(s, Put) and s.op.stores]
  written = {store for s in writes for store in s.op.stores}
  if (any(s.store in written for s in steps if isinstance(s, Load) and writes)
      or any(isinstance(s, (LoopStep, BranchStep, CallStep)) for s in steps)):
    return [], list(steps), []             # a read may follow a write; bodies may do either
  apart = {id(s) for s in (*reads, *writes)}
  return reads, [s for s in steps if id(s) not in apart], writes


def _by_calls_alone(segments: Sequence[Segment], mesh: Mesh) -> list[Store]:
  """Returns the variables of a program if calls alone read and write any, else none."""
  found: dict[Store, None] = {}
  for segment in segments:
    reads, others, writes = sort_out(segment.before, mesh)
    if any(map(_touches_variables, others)):
      return []
    found.update(dict.fromkeys(load.store for load in reads))
    found.update(dict.fromkeys(store for put in writes for store in put.op.stores))
  return list(found)


def _touches_variables(step: Step) -> bool:
  if isinstance(step, Load):
    return step.store.kind in ("parameter", "state")
  return isinstance(step, (LoopStep, BranchStep, CallStep)) or bool(
      isinstance(step, Put) and step.op.stores)
