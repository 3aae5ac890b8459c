"""Loops, branches, regions, stages, seeds and calls of which programs are drawn.

Each function writes one construct, with statements drawn within, or returns None if none fits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from hypothesis import strategies as st

from tests.fuzz.batches import seeded
from tests.fuzz.catalogue import OPS, noise, unary
from tests.fuzz.program import Assign, Inside
from tests.fuzz.writer import DEEP, ITERATIONS, Writer

Rule = Callable[[Writer], "str | None"]


def statements(w: Writer, most: int) -> None:
  """Writes up to `most` statements."""
  for i in range(w.draw(st.integers(1, most))):
    if i and w.left <= 0:
      return
    w.left -= 1
    deeper = CONSTRUCTS if w.depth < DEEP and w.left > 0 else ()
    staged = (stage, stage) if deeper and w.stages > 1 else ()
    rule = w.pick([*OPS, *deeper, *deeper, *staged])
    if rule(w) is None:
      unary(w)


def scan(w: Writer) -> str | None:
  """A loop along a dimension of a value, or a number of times."""
  rows = w.value(lambda x: bool(w.mixable(x))) if w.maybe() else None
  dim = w.pick(w.mixable(rows)) if rows else w.name("n")
  if not rows:
    w.sizes[dim] = w.pick([2, 3])
  carry = w.value(lambda x: dim not in w.dims(x))
  if carry is None or w.iterations * w.sizes[dim] > ITERATIONS:
    return None
  name, h, row, dims = w.name("body"), w.name("h"), w.name("r"), w.dims(carry)
  with w.block(w.sizes[dim]) as body:
    w.see(h, dims)
    if rows:
      w.see(row, [d for d in w.dims(rows) if d != dim])
    statements(w, 3)
    new = w.brought(h)
    out = w.value(lambda x: dim not in w.dims(x) and w.size(w.dims(x)) <= 64) if w.maybe() else None
    stack = (dim, *w.dims(out)) if out else ()
  define = w.define(name, [h, row], body, f"{new}, {out}")
  w.body.append(define)
  y, ys = w.name(), w.name()
  how = f"{rows}, {dim!r}" if rows else f"None, {dim!r}, {w.sizes[dim]}"
  body_name = f"mtf.recompute({name})" if w.maybe() else name
  more = ", reverse=True" if w.maybe() else ""
  w.body.append(Assign(f"{y}, {ys}", f"mtf.scan({body_name}, {carry}, {how}{more})"))
  if out:
    w.see(ys, stack)
  return w.see(y, dims)


def summed(w: Writer) -> str | None:
  """A loop that adds up what its turns make."""
  rows = w.value(lambda x: bool(w.mixable(x)))
  if not rows:
    return None
  dim = w.pick(w.mixable(rows))
  if w.iterations * w.sizes[dim] > ITERATIONS:
    return None
  name, row = w.name("body"), w.name("r")
  with w.block(w.sizes[dim]) as body:
    w.see(row, [d for d in w.dims(rows) if d != dim])
    statements(w, 2)
    y = w.brought(row)
    dims = w.dims(y)
  w.body.append(w.define(name, ["h", row], body, f"None, {y}, None"))
  return w.emit(f"mtf.scan_and_sum({name}, None, {rows}, {dim!r})[1]", dims)


def walk(w: Writer) -> str | None:
  """A loop along a batch whose rows stay by themselves: nothing is carried."""
  x = w.value(lambda x: "batch" in w.dims(x))
  if not x or w.iterations * w.sizes["batch"] > ITERATIONS:
    return None
  name, row, dims = w.name("body"), w.name("r"), [d for d in w.dims(x) if d != "batch"]
  apart, ids, shown, base = w.apart, w.ids, w.scope, w.base
  w.apart, w.ids, w.base = (), {}, tuple(d for d in base if d != "batch")
  w.scope = {x: own for x, own in shown.items() if "batch" not in own}
  with w.block(w.sizes["batch"]) as body:
    w.see(row, dims)
    with seeded(w) if w.maybe() else contextlib.nullcontext():
      statements(w, 2)
      noise(w)
    y = w.brought(row)
  w.apart, w.ids, w.scope, w.base = apart, ids, shown, base
  w.body.append(w.define(name, ["h", row], body, f"h, {y}"))
  made = w.name()
  body_name = f"mtf.recompute({name})" if w.maybe() else name
  more = ", reverse=True" if w.maybe() else ""
  w.body.append(Assign(f"{w.name('h')}, {made}",
                       f"mtf.scan({body_name}, None, {x}, 'batch'{more})"))
  return w.see(made, ("batch", *dims))


def cond(w: Writer) -> str | None:
  """A branch by the numbers of a value."""
  judge = None if w.rough else w.value(lambda x: not set(w.dims(x)) & set(w.apart))
  base = w.value()
  if not judge or not base:
    return None
  names = []
  for _ in range(2):
    with w.block() as body:
      statements(w, 2)
      y = w.brought(base)
    names.append(w.name("branch"))
    w.body.append(w.define(names[-1], [], body, y))
  return w.emit(f"mtf.cond(mtf.reduce_sum({judge}) > 0.1, {', '.join(names)})", w.dims(base))


def recompute(w: Writer) -> str | None:
  """A function that the backward pass computes again."""
  x = w.value()
  if not x:
    return None
  name, h, dims = w.name("again"), w.name("h"), w.dims(x)
  with w.block() as body:
    w.see(h, dims)
    statements(w, 3)
    y = w.brought(h)
  w.body.append(w.define(name, [h], body, y))
  return w.emit(f"mtf.recompute({name})({x})", dims)


def region(w: Writer) -> str | None:
  """Statements that are laid out otherwise."""
  known = dict(w.shapes)
  w.shapes.clear()
  outer, w.body = w.body, []
  statements(w, 3)
  for x in w.values():
    w.note(w.dims(x))             # what comes from outside
  inner, w.body = w.body, outer
  w.shapes.update(known)
  context = w.region(w.shapes)
  w.body.append(Inside(context, tuple(inner)))
  return "done"


def stage(w: Writer) -> str | None:
  """Statements of a stage."""
  if w.stages == 1:
    return None
  with w.inside(f"mtf.stage({w.pick(range(w.stages))})"):
    statements(w, 3)
  return "done"


def seed(w: Writer) -> str | None:
  """Statements with a seed of their own."""
  seeded, w.seeded = w.seeded, True
  with w.inside(f"mtf.seed({w.name('')})"):
    statements(w, 3)
    OPS[-1](w)
  w.seeded = seeded
  return "done"


def call(w: Writer) -> str | None:
  """A call of a `mtf.function`, a new one or one that was called before."""
  fitting = [(f, x) for f, dims in w.functions.items() for x in w.values() if w.dims(x) == dims]
  if fitting and w.maybe():
    f, x = w.pick(fitting)
    w.unused.pop(x, None)
    return w.emit(f"{f}({x})", w.dims(x))
  x = w.value()
  if not x:
    return None
  f, h, dims = w.name("f"), w.name("h"), w.dims(x)
  random, outer = w.random, w.functions
  w.functions = dict(outer)
  with w.alone({h: dims}) as body:
    statements(w, 3)
    y = w.brought(h)
  noisy, w.random = w.random and not random, w.random or random
  w.functions = outer
  w.modules += [w.define(f + "_", [h], body, y), Assign(f, f"mtf.function({f}_, mesh=mesh)")]
  if not noisy:
    w.functions[f] = dims
  return w.emit(f"{f}({x})", dims)


def repeat(w: Writer) -> str | None:
  """Layers, each with weights of its own."""
  x = w.value()
  if not x or 2 * w.iterations > ITERATIONS:
    return None
  name, dims = w.name("repeat"), w.dims(x)
  source, parts = repeated(w, dims, ())
  w.modules.append(Assign(name, source))
  w.variables += [name + part for part in parts]
  return w.emit(f"{name}({x})", dims)


def repeated(w: Writer, dims: tuple[str, ...], stacks: tuple[str, ...]) -> tuple[str, list[str]]:
  """Returns the source that makes a Repeat, and the attributes of its variables."""
  dim = w.name("layers")
  w.sizes[dim] = w.pick([2, 3] if 3 * w.iterations <= ITERATIONS else [2])
  w.iterations *= w.sizes[dim]
  layer, parts = layer_of(w, dims, (*stacks, dim))
  w.iterations //= w.sizes[dim]
  more = ", recomputed=True" if w.maybe() else ""
  name = w.name("stack")
  return (f"mtf.layers.Repeat(lambda: {layer}, '{dim}:{w.sizes[dim]}', name={name!r}{more})",
          [f".layer{part}" for part in parts])


def layer_of(w: Writer, dims: tuple[str, ...], stacks: tuple[str, ...] = (),
             tied: str | None = None) -> tuple[str, list[str]]:
  """Returns the source that makes a layer from `dims` to `dims`, and its variables' attributes."""
  name, h = w.name("layer"), w.name("h")
  makers, parameters, attributes, inner = [], {h: dims}, [], None
  fitting = [d for d in w.base if d not in w.apart]
  own = tuple(w.draw(st.permutations(fitting))[:w.pick([1, 2])])
  parameters[w.name("p")] = own
  makers.append(f"lambda: {w.variable(own, stacks)}")
  attributes.append(".parts[0]")
  if tied:
    parameters[w.name("p")] = w.globals[tied]
    makers.append(f"lambda: {tied}")
  if stacks and w.depth < DEEP and 2 * w.iterations <= ITERATIONS and w.maybe():
    inner = w.name("p")
    with w.block():
      source, parts = repeated(w, dims, stacks)
    attributes += [f".parts[{len(makers)}]{part}" for part in parts]
    makers.append(f"lambda: {source}")
  with w.alone(parameters) as body:
    if inner:
      w.emit(f"{inner}({h})", dims)
    statements(w, 2)
    y = w.brought(w.brought(h))
  names = [*parameters, *([inner] if inner else [])]
  w.modules.append(w.define(name, names, body, y))
  kind = "RecordedLayer" if w.maybe() else "Layer"
  return f"{kind}({name!r}, {', '.join([name, *makers])})", attributes


CONSTRUCTS: tuple[Rule, ...] = (scan, summed, walk, cond, recompute, region, stage, seed, call,
                                repeat)
