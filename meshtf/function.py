"""`mtf.function`: a Python function becomes one program for all devices of a mesh.

    @mtf.function(x="batch;d_model")
    def step(x):
      h = mtf.relu(mtf.einsum([x, w], "batch;d_ff"))
      return mtf.reduce_mean(h)

    step(array)        # traced, planned and run; run alone from the second call on

It is traced again only when names, shapes, data types, mesh, layout or Python values change.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import LayoutError, LayoutWarning, MeshError, PlanError, explain_error
from meshtf.graph import Graph, Spec, Tensor, apply, context, current, current_executor, executing
from meshtf.graph.apply import set_eager_executor
from meshtf.mesh import Mesh
from meshtf.ops.state import Read
from meshtf.runtime.compiled import Compiled
from meshtf.runtime.eager import Eager
from meshtf.runtime.stores import ArrayStore, SlicesStore, as_array, distinct, named_shape

set_eager_executor(Eager())


def function(fn: Callable[..., Any] | None = None, *, mesh: Mesh | None = None, jit: bool = False,
             **names: str) -> Any:
  """Turns a Python function on named tensors into one planned program.

  Args:
    fn: the function; without it, a decorator is returned.
    mesh: where it runs; needed only if no argument and no variable in it tells.
    jit: whether XLA compiles the local work. Pays off where a program runs for long.
    **names: the dimensions of arguments that are arrays: x="batch;d_model" (x="": a scalar).

  Returns:
    A callable that takes Tensors, the named arrays and Python values, in any nesting, and returns
    Tensors. Python values are part of the program: another value, another trace.
  """
  if fn is None:
    return lambda f: Function(f, mesh, jit, names)
  return Function(fn, mesh, jit, names)


class Function:
  """What `mtf.function` returns."""

  def __init__(self, fn: Callable[..., Any], mesh: Mesh | None, jit: bool,
               names: dict[str, str]) -> None:
    self._fn, self._mesh, self._jit, self._names = fn, mesh, jit, names
    self._signature = inspect.signature(fn)
    self._compiled: dict[Any, tuple[Compiled, Any]] = {}
    functools.update_wrapper(self, fn)
    unknown = set(names) - set(self._signature.parameters)
    if unknown:
      raise PlanError(f"mtf.function names the dimensions of {sorted(unknown)}, but "
                      f"{fn.__name__}{self._signature} has no such argument.")

  def __get__(self, instance: Any, owner: Any = None) -> Any:
    return self if instance is None else functools.partial(self, instance)

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    if isinstance(current_executor(), Graph):          # within another function: its part
      return self._fn(*args, **kwargs)
    call = self._bind(args, kwargs)
    compiled, structure = self._get(call)
    results = iter(compiled(call.flat))
    return tf.nest.map_structure(lambda y: next(results) if y is _RESULT else y, structure)

  def lower(self, *args: Any, **kwargs: Any) -> Compiled:
    """Returns the planned program for these arguments, without running it."""
    return self._get(self._bind(args, kwargs))[0]

  @property
  def traces(self) -> int:
    """The number of programs made so far."""
    return len(self._compiled)

  def _get(self, call: _Call) -> tuple[Compiled, Any]:
    if call.key not in self._compiled:
      self._compiled[call.key] = self._trace(call)
    return self._compiled[call.key]

  def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    bound = self._signature.bind(*args, **kwargs)
    bound.apply_defaults()
    call = _Call(self._mesh)
    for name, value in bound.arguments.items():
      if name in self._names:
        call.add_array(name, value, self._names[name])
      else:
        call.add_structure(name, value)
    call.key = (*call.key, current().layout)
    return call

  def _trace(self, call: _Call) -> tuple[Compiled, Any]:
    graph = Graph(call.mesh)
    with executing(graph), context(seeds=None, path=(), primals=(), group=None, after=None):
      arguments = call.arguments()
      bound = self._signature.bind_partial()
      bound.arguments.update(arguments)
      returned = self._fn(*bound.args, **bound.kwargs)
      flat = tf.nest.flatten(returned)
      results = [self._result(y) for y in flat if hasattr(y, "spec")]     # variables are read here
    if graph.mesh is None:
      raise MeshError(explain_error(
          f"nothing in {self._fn.__name__} tells on which mesh it runs.",
          way_out="Write @mtf.function(mesh=mesh, ...), or pass or use a tensor or variable."))
    compiled = Compiled(graph.nodes, results, call.stores, graph.mesh, self._jit)
    warn_of_unmatched_rules(graph.mesh, any(n.op.effect == "write" for n in graph.nodes))
    marks = [_RESULT if hasattr(y, "spec") else y for y in flat]
    return compiled, tf.nest.pack_sequence_as(returned, marks)

  def _result(self, y: Any) -> Tensor:
    return y if isinstance(y, Tensor) else y.tensor()


class _Result:
  """Stands for a tensor in the structure that a function returns."""


_RESULT = _Result()


class _Call:
  """The arguments of one call: a key for the cache, stores to trace with, tensors to run with."""

  def __init__(self, mesh: Mesh | None) -> None:
    self.mesh = mesh
    self.key: tuple[Any, ...] = ()
    self.stores: list[Any] = []
    self.flat: list[Any] = []
    self._makers: dict[str, Callable[[], Any]] = {}

  def add_array(self, name: str, value: Any, dims: str) -> None:
    if value is None or isinstance(value, Tensor) or hasattr(value, "tensor"):
      self.add_structure(name, value)
      return
    source = f"argument {name!r}"
    array = as_array(value)
    spec = Spec(named_shape(array, dims, source), array.dtype.name)
    store = ArrayStore(name, spec, self.mesh, current().layout, source)
    self._add(store, (name, spec), [array])
    if self.mesh is not None:
      _ = store.placement                   # refuses what the layout cannot hold
    self._makers[name] = lambda: apply(Read(store), mesh=store.mesh)

  def add_structure(self, name: str, value: Any) -> None:
    leaves = tf.nest.flatten(value)
    makers = [self._leaf(name, leaf) for leaf in leaves]
    self._makers[name] = lambda: tf.nest.pack_sequence_as(value, [make() for make in makers])
    if len(leaves) != 1 or leaves[0] is not value:
      self.key += (name, repr(tf.nest.map_structure(lambda x: 0, value)))

  def arguments(self) -> dict[str, Any]:
    """Returns what the function is traced with."""
    return {name: make() for name, make in self._makers.items()}

  def _leaf(self, name: str, leaf: Any) -> Callable[[], Any]:
    if isinstance(leaf, (np.ndarray, tf.Tensor, tf.Variable)):
      raise PlanError(explain_error(
          f"argument {name!r} is an array without named dimensions.", array=list(leaf.shape),
          way_out=f'Name them: @mtf.function({name}="batch;...").'))
    if not isinstance(leaf, Tensor):
      self.key += (name, _static(leaf), type(leaf))
      return lambda: leaf
    if leaf.held is None:
      raise PlanError(explain_error(
          "a recorded tensor cannot be passed to a function from outside.",
          tensor=repr(leaf), **{"made by": leaf.node.source}))
    if self.mesh is not None and leaf.mesh is not self.mesh:
      raise MeshError(explain_error(
          "the arguments of one function lie on two meshes.", argument=name,
          meshes=f"{self.mesh!r} and {leaf.mesh!r}",
          way_out="Make all of them on one Mesh object."))
    assert leaf.mesh is not None
    self.mesh = leaf.mesh
    different, pattern = distinct(leaf.held.values)
    store = SlicesStore(name, leaf.spec, leaf.mesh, leaf.held.placement, pattern)
    self._add(store, (name, leaf.spec, leaf.held.placement, pattern, leaf.mesh), different)
    return lambda: apply(Read(store), mesh=store.mesh)

  def _add(self, store: Any, key: tuple[Any, ...], tensors: list[Any]) -> None:
    self.stores.append(store)
    self.key += key
    self.flat += tensors


class _Itself:
  """A Python value that cannot be hashed: equal to itself alone, and kept while its trace is."""

  def __init__(self, value: Any) -> None:
    self.value = value

  def __hash__(self) -> int:
    return id(self.value)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Itself) and self.value is other.value


def _static(value: Any) -> Any:
  """Returns what stands for a Python value in a key: 0.0 and -0.0 are two, nan is one."""
  if isinstance(value, float):
    return repr(value)
  return value if value.__hash__ is not None else _Itself(value)


def warn_of_unmatched_rules(mesh: Mesh, writes: bool) -> None:
  """Warns of layout rules whose dimension no program had so far. Raises LayoutError if strict.

  A program that writes nothing is perhaps but a small part of what the layout is for: of such a one
  only rules are told that look like misspellings.
  """
  for name, close in mesh.unmatched_rules().items():
    if name in mesh.warned_rules or not (writes or close):
      continue
    text = explain_error(
        f'the layout has a rule for dimension "{name}", which the program never has.',
        layout=mesh.layout, dimensions=", ".join(sorted(mesh.seen_dims)),
        way_out=(f"Did you mean {close}?" if close
                 else "Delete the rule, or look for a misspelling."))
    if mesh.strict:
      raise LayoutError(text)
    mesh.warned_rules.add(name)
    warnings.warn(text, LayoutWarning, stacklevel=5)
