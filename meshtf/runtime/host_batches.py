"""Batches that each host reads for itself: the process that drives never holds them.

    reader = HostReader(mesh, {"tokens": "batch; length"}, 64, open_part)
    batch = next(reader)          # {"tokens": a Tensor whose slices lie where they are needed}

`open_part(w, n)` returns a dataset of rows w * 64 / n and on, 64 / n of them, of each
batch. It is called with the CPU of a host as TensorFlow's device, so what it makes of
TensorFlow's ops lies and runs there. A batch is one call of one function: each host is
asked once, not for every slice. Slices of int32 lie in their host's memory, where
TensorFlow puts all such results of functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import LayoutError, explain_error
from meshtf.graph import ShardedValue, Spec, Tensor
from meshtf.graph.arguments import as_mesh
from meshtf.graph.tensor import tensor_of_value
from meshtf.mesh import Mesh, Placement
from meshtf.names import Dimension, Shape, parse_pairs
from meshtf.names.arguments import as_callable, as_mapping
from meshtf.runtime.dataset_options import untuned
from meshtf.runtime.devices.names import host_cpu
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.storage.import_tensor import named_shape
from meshtf.runtime.storage.sharding import distinct, region, shard_keys
from meshtf.runtime.tf_internals.call_options import PLAIN_CONFIG, call_with


class _Part(NamedTuple):
    """What one host reads: its CPU, its first row of a batch, and an iterator."""

    home: str
    first: int
    rows: Any  # a tf.data iterator


class HostReader:
    """An iterator of dicts of tensors, each host's rows read by itself.

    Args:
      mesh: where the tensors lie.
      dims: names of the dimensions of all that a batch may have; the first is that of
        its rows.
      rows: how many a batch has.
      open_part: called with (w, n); returns a dataset of a part of each batch, which is
        read without TensorFlow's autotuner (`untuned`).

    Raises:
      LayoutError: the layout cannot cut the rows.
    """

    def __init__(
        self,
        mesh: Mesh,
        dims: Mapping[str, str],
        rows: int,
        open_part: Callable[[int, int], Any],
    ) -> None:
        as_mesh("mesh", mesh)
        as_mapping(
            "dims", dims, 'names of dimensions by key, such as {"ids": "batch;length"}'
        )
        as_callable("open_part", open_part)
        self._mesh, self._dims, self._devices = mesh, dims, devices_of(mesh)
        first = parse_pairs(next(iter(dims.values())), what="shape", values=False)[0][0]
        self._batch = Dimension(first, rows)
        self._parts = {
            home: self._open(home, spans, open_part)
            for home, spans in self._wanted().items()
        }
        self._found: dict[
            str, tuple[Spec, Placement, tuple[int, ...]]
        ] = {}  # by name, once traced
        self._function: Any = None

    def __iter__(self) -> HostReader:
        return self

    def __next__(self) -> dict[str, Tensor]:
        if self._function is None:
            self._function = tf.function(
                self._read, autograph=False
            ).get_concrete_function()
        try:
            flat = call_with(PLAIN_CONFIG, self._function, ())
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        batch = {}
        for name, (spec, placement, pattern) in self._found.items():
            slices = [flat[k] for k in pattern]
            batch[name] = tensor_of_value(
                spec, ShardedValue(placement, slices), self._mesh
            )
        return batch

    def _read(self) -> list[Any]:
        """Returns the different slices of a batch; what each position takes is kept in
        `_found`.
        """
        read = {}
        for home, part in self._parts.items():
            with tf.device(home):
                read[home] = part.rows.get_next()
        flat: list[Any] = []
        for name in next(iter(read.values())):
            spec, placement, slices = self._cut(
                {home: some[name] for home, some in read.items()}, name
            )
            different, pattern = distinct(slices)
            self._found[name] = spec, placement, tuple(len(flat) + k for k in pattern)
            flat.extend(different)
        return flat

    def _wanted(self) -> dict[str, list[tuple[int, int]]]:
        """Returns for each host the first and last rows of the slices that its
        positions hold.
        """
        spec = Spec(Shape([self._batch]), "int32")
        placement, clashes = self._mesh.place(spec.shape)
        if clashes:
            raise LayoutError(
                explain_error(
                    "the layout cannot cut the rows of a batch.",
                    rows=spec.shape,
                    mesh=self._mesh,
                    layout=self._mesh.layout,
                )
            )
        found: dict[str, list[tuple[int, int]]] = {}
        for device, key in zip(self._devices, shard_keys(placement, self._mesh)):
            (rows,) = region(spec.shape, placement, key, self._mesh)
            found.setdefault(host_cpu(device), []).append((rows.start, rows.stop))
        return found

    def _open(
        self,
        home: str,
        spans: list[tuple[int, int]],
        open_part: Callable[[int, int], Any],
    ) -> _Part:
        """Opens the least part of equal ones that holds all of these rows."""
        first, last = min(a for a, _ in spans), max(b for _, b in spans)
        size = last - first
        while self._batch.size % size or first // size != (last - 1) // size:
            size += 1
        with tf.device(home):
            dataset = open_part(first // size, self._batch.size // size)
            return _Part(home, first // size * size, iter(untuned(dataset)))

    def _cut(
        self, read: Mapping[str, Any], name: str
    ) -> tuple[Spec, Placement, list[Any]]:
        """Returns what a tensor is whose rows the hosts have read, and each position's
        slice.
        """
        some = next(iter(read.values()))
        sizes = [self._batch.size, *some.shape[1:]]
        spec = Spec(
            named_shape(tf.TensorSpec(sizes, some.dtype), self._dims[name], "a batch"),
            some.dtype.name,
        )
        placement = self._mesh.place(spec.shape)[0]
        done: dict[Any, Any] = {}
        for device, key in zip(self._devices, shard_keys(placement, self._mesh)):
            if (device, key) not in done:
                home = host_cpu(device)
                done[device, key] = _slice(
                    read[home],
                    self._parts[home],
                    region(spec.shape, placement, key, self._mesh),
                    device,
                )
        return (
            spec,
            placement,
            [
                done[pair]
                for pair in zip(self._devices, shard_keys(placement, self._mesh))
            ],
        )


def _slice(x: Any, part: _Part, where: tuple[slice, ...], device: str) -> Any:
    """Returns a region of a batch, on a device, of the rows that its host has."""
    rows = slice(where[0].start - part.first, where[0].stop - part.first)
    inside = (rows, *where[1:])
    if any((s.start, s.stop) != (0, size) for s, size in zip(inside, x.shape)):
        with tf.device(part.home):
            x = x[inside]
    with tf.device(device):
        return tf.identity(x)
