"""Batches that each host reads for itself: the process that drives never holds them.

    reader = HostReader(mesh, {"tokens": "batch; length"}, 64, open_part)
    batch = next(reader)          # {"tokens": a Tensor whose slices lie where they are needed}

`open_part(w, n)` returns a dataset of rows w * 64 / n and on, 64 / n of them, of each batch. It is
called with the CPU of a host as TensorFlow's device, so what it makes of TensorFlow's ops lies and
runs there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import LayoutError, explain_error
from meshtf.graph import Held, Spec, Tensor
from meshtf.mesh import Mesh
from meshtf.names import Dimension, Shape, parse_pairs
from meshtf.runtime.compiled import held_tensor
from meshtf.runtime.devices import devices_of, host_cpu
from meshtf.runtime.stores import named_shape, region, slice_keys


class _Part(NamedTuple):
  """What one host reads: its CPU, its first row of a batch, and an iterator."""

  home: str
  first: int
  rows: Iterator[Any]


class HostReader:
  """An iterator of dicts of tensors, each host's rows read by itself.

  Args:
    mesh: where the tensors lie.
    dims: names of the dimensions of all that a batch may have; the first is that of its rows.
    rows: how many a batch has.
    open_part: called with (w, n); returns a dataset of a part of each batch.

  Raises:
    LayoutError: the layout cannot cut the rows.
  """

  def __init__(self, mesh: Mesh, dims: Mapping[str, str], rows: int,
               open_part: Callable[[int, int], Any]) -> None:
    self._mesh, self._dims, self._devices = mesh, dims, devices_of(mesh)
    first = parse_pairs(next(iter(dims.values())), what="shape", values=False)[0][0]
    self._batch = Dimension(first, rows)
    self._parts = {home: self._open(home, spans, open_part)
                   for home, spans in self._wanted().items()}

  def __iter__(self) -> HostReader:
    return self

  def __next__(self) -> dict[str, Tensor]:
    read = {}
    for home, part in self._parts.items():
      with tf.device(home):
        read[home] = next(part.rows)
    names = next(iter(read.values()))
    return {name: self._tensor(name, {home: some[name] for home, some in read.items()})
            for name in names}

  def _wanted(self) -> dict[str, list[tuple[int, int]]]:
    """Returns for each host the first and last rows of the slices that its positions hold."""
    spec = Spec(Shape([self._batch]), "int32")
    placement, clashes = self._mesh.place(spec.shape)
    if clashes:
      raise LayoutError(explain_error("the layout cannot cut the rows of a batch.", rows=spec.shape,
                                      mesh=self._mesh, layout=self._mesh.layout))
    found: dict[str, list[tuple[int, int]]] = {}
    for device, key in zip(self._devices, slice_keys(placement, self._mesh)):
      (rows,) = region(spec.shape, placement, key, self._mesh)
      found.setdefault(host_cpu(device), []).append((rows.start, rows.stop))
    return found

  def _open(self, home: str, spans: list[tuple[int, int]], open_part: Callable[[int, int], Any]
            ) -> _Part:
    """Opens the least part of equal ones that holds all of these rows."""
    first, last = min(a for a, _ in spans), max(b for _, b in spans)
    size = last - first
    while self._batch.size % size or first // size != (last - 1) // size:
      size += 1
    with tf.device(home):
      dataset = open_part(first // size, self._batch.size // size)
      return _Part(home, first // size * size, iter(dataset))

  def _tensor(self, name: str, read: Mapping[str, Any]) -> Tensor:
    """Returns the tensor whose rows the hosts have read."""
    some = next(iter(read.values()))
    sizes = [self._batch.size, *some.shape[1:]]
    spec = Spec(named_shape(tf.TensorSpec(sizes, some.dtype), self._dims[name], "a batch"),
                some.dtype.name)
    placement = self._mesh.place(spec.shape)[0]
    done: dict[Any, Any] = {}
    for device, key in zip(self._devices, slice_keys(placement, self._mesh)):
      if (device, key) not in done:
        home = host_cpu(device)
        done[device, key] = _cut(read[home], self._parts[home],
                                 region(spec.shape, placement, key, self._mesh), device)
    slices = [done[pair] for pair in zip(self._devices, slice_keys(placement, self._mesh))]
    return held_tensor(spec, Held(placement, slices), self._mesh)


def _cut(x: Any, part: _Part, where: tuple[slice, ...], device: str) -> Any:
  """Returns a region of a batch, on a device, of the rows that its host has."""
  rows = slice(where[0].start - part.first, where[0].stop - part.first)
  inside = (rows, *where[1:])
  if any((s.start, s.stop) != (0, size) for s, size in zip(inside, x.shape)):
    with tf.device(part.home):
      x = x[inside]
  with tf.device(device):
    return tf.identity(x)

