"""Batches whose examples each host reads itself; the driving process never has them.

    reader = HostReader(mesh, {"tokens": "batch; length"}, 64, open_section)
    batch = next(reader)          # {"tokens": a Tensor whose shards are on their hosts}

`open_section(k, n)` returns a dataset with section k of n of each batch: 64 / n examples,
from example k * 64 / n on. It is called with the CPU of a host as TensorFlow's current
device, so that its ops run there. A batch is one call of one function, so each host is
contacted once, not for each shard. Shards of int32 are in host memory, where TensorFlow
puts all such results of functions.
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
from meshtf.runtime.dataset_options import without_autotuning
from meshtf.runtime.devices.names import host_cpu
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.storage.asarray import named_shape
from meshtf.runtime.storage.sharding import distinct, region, shard_keys
from meshtf.runtime.tf_internals.call_options import PLAIN_CONFIG, call_with


class _Section(NamedTuple):
    """The examples of each batch that one host reads.

    Attributes:
      host: the CPU of the host.
      start: the index in the batch of its first example.
      batches: a tf.data iterator.
    """

    host: str
    start: int
    batches: Any


class _Feature(NamedTuple):
    """A tensor of a batch.

    Attributes:
      spec: its global shape and data type.
      placement: its placement.
      outputs: for each position, the index of its shard among the outputs of a read.
    """

    spec: Spec
    placement: Placement
    outputs: tuple[int, ...]


class HostReader:
    """An iterator of batches, dicts of tensors; each host reads its examples.

    Args:
      mesh: the mesh of the tensors.
      dims: the dimension names of each tensor that a batch may have, by key; the first
        dimension is that of the examples.
      batch_size: the number of examples of a batch.
      open_section: called with (k, n); returns a dataset of section k of n of each
        batch, which is read without TensorFlow's autotuner (see `without_autotuning`).

    Raises:
      LayoutError: the layout cannot shard the examples.
    """

    def __init__(
        self,
        mesh: Mesh,
        dims: Mapping[str, str],
        batch_size: int,
        open_section: Callable[[int, int], Any],
    ) -> None:
        as_mesh("mesh", mesh)
        as_mapping(
            "dims", dims, 'names of dimensions by key, such as {"ids": "batch;length"}'
        )
        as_callable("open_section", open_section)
        self._mesh = mesh
        self._dims = dims
        self._devices = devices_of(mesh)
        names = parse_pairs(next(iter(dims.values())), kind="shape", values=False)
        self._batch = Dimension(names[0][0], batch_size)
        self._sections = {
            host: self._open(host, ranges, open_section)
            for host, ranges in self._ranges_of_hosts().items()
        }
        self._features: dict[str, _Feature] = {}  # once traced
        self._function: Any = None

    def __repr__(self) -> str:
        return f"<mtf.HostReader of {self._batch!r} on {self._mesh}: {self._dims}>"

    def __iter__(self) -> HostReader:
        return self

    def __next__(self) -> dict[str, Tensor]:
        if self._function is None:
            function = tf.function(self._read, autograph=False)
            self._function = function.get_concrete_function()
        try:
            outputs = call_with(PLAIN_CONFIG, self._function, ())
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        batch = {}
        for name, feature in self._features.items():
            shards = [outputs[k] for k in feature.outputs]
            value = ShardedValue(feature.placement, shards)
            batch[name] = tensor_of_value(feature.spec, value, self._mesh)
        return batch

    def _read(self) -> list[Any]:
        """Returns the distinct shards of all tensors of a batch, and stores their indices
        in `_features`.
        """
        batches = {}
        for host, section in self._sections.items():
            with tf.device(host):
                batches[host] = section.batches.get_next()
        outputs: list[Any] = []
        for name in next(iter(batches.values())):
            examples = {host: batch[name] for host, batch in batches.items()}
            spec = self._spec(next(iter(examples.values())), name)
            placement = self._mesh.place(spec.shape)[0]
            shards = self._shards(examples, spec, placement)
            tensors, indices = distinct(shards)
            positions = tuple(len(outputs) + k for k in indices)
            self._features[name] = _Feature(spec, placement, positions)
            outputs += tensors
        return outputs

    def _ranges_of_hosts(self) -> dict[str, list[tuple[int, int]]]:
        """Returns for each host the ranges of examples that its positions have."""
        spec = Spec(Shape([self._batch]), "int32")
        placement, conflicts = self._mesh.place(spec.shape)
        if conflicts:
            raise LayoutError(
                explain_error(
                    "the layout cannot shard the examples of a batch.",
                    examples=spec.shape,
                    mesh=self._mesh,
                    layout=self._mesh.layout,
                )
            )
        ranges: dict[str, list[tuple[int, int]]] = {}
        for device, key in zip(self._devices, shard_keys(placement, self._mesh)):
            (examples,) = region(spec.shape, placement, key, self._mesh)
            ranges_of_host = ranges.setdefault(host_cpu(device), [])
            ranges_of_host.append((examples.start, examples.stop))
        return ranges

    def _open(
        self,
        host: str,
        ranges: list[tuple[int, int]],
        open_section: Callable[[int, int], Any],
    ) -> _Section:
        """Opens the smallest section of a batch that contains all examples of `ranges`;
        a batch consists of sections of equal size.
        """
        start = min(low for low, _ in ranges)
        stop = max(high for _, high in ranges)
        size = stop - start
        while self._batch.size % size or start // size != (stop - 1) // size:
            size += 1
        index = start // size
        with tf.device(host):
            dataset = open_section(index, self._batch.size // size)
            return _Section(host, index * size, iter(without_autotuning(dataset)))

    def _spec(self, examples: Any, name: str) -> Spec:
        """Returns the spec of a tensor of a batch, of one host's examples."""
        sizes = [self._batch.size, *examples.shape[1:]]
        tensor_spec = tf.TensorSpec(sizes, examples.dtype)
        shape = named_shape(tensor_spec, self._dims[name], "a batch")
        return Spec(shape, examples.dtype.name)

    def _shards(
        self,
        examples: Mapping[str, Any],
        spec: Spec,
        placement: Placement,
    ) -> list[Any]:
        """Returns each position's shard of a tensor whose examples the hosts have
        read.
        """
        keys = list(zip(self._devices, shard_keys(placement, self._mesh)))
        shards: dict[Any, Any] = {}
        for device, key in keys:
            if (device, key) not in shards:
                host = host_cpu(device)
                shard_region = region(spec.shape, placement, key, self._mesh)
                shards[device, key] = _shard(
                    examples[host], self._sections[host], shard_region, device
                )
        return [shards[key] for key in keys]


def _shard(
    x: Any,
    section: _Section,
    shard_region: tuple[slice, ...],
    device: str,
) -> Any:
    """Returns a region of a batch on a device, given the examples that its host read."""
    examples, *other_slices = shard_region
    local_examples = slice(
        examples.start - section.start, examples.stop - section.start
    )
    local_region = (local_examples, *other_slices)
    is_all = all(
        (s.start, s.stop) == (0, size) for s, size in zip(local_region, x.shape)
    )
    if not is_all:
        with tf.device(section.host):
            x = x[local_region]
    with tf.device(device):
        return tf.identity(x)
