"""Batches of which each host reads the examples of its devices.

On a cluster that one process drives, no example passes through this process. On a *live*
mesh, whose devices jax drives, each process that runs the program is a host: it reads its
section of each batch, and no other.

    reader = HostReader(mesh, {"tokens": "batch; length"}, batch_size=64,
                        open_section=open_section)
    batch = next(reader)          # {"tokens": a Tensor whose shards are on their hosts}

A batch is split into n equal sections. `open_section(k, n)` returns a dataset with section
k of each batch: 64 / n examples, from example k * 64 / n on. On a cluster it is called with
the CPU of a host (a process with devices) as TensorFlow's current device, so that the ops
of the dataset run on the host. There a batch is read by one call of one function, so each
host is contacted once, not for each shard. Shards of int32 are in host memory, where
TensorFlow puts all int32 results of functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from meshtf.errors import LayoutError, explain_error
from meshtf.graph import ShardedValue, Spec, Tensor
from meshtf.graph.arguments import as_mesh
from meshtf.graph.tensor import tensor_of_value
from meshtf.mesh import Mesh, Placement
from meshtf.mesh.shard_sizes import is_padded
from meshtf.names import Dimension, Shape, parse_pairs
from meshtf.names.arguments import as_callable, as_mapping
from meshtf.partition.cost import local_shape
from meshtf.runtime.dataset_options import without_autotuning
from meshtf.runtime.devices.names import host_cpu
from meshtf.runtime.devices.processes import is_of_other_process
from meshtf.runtime.devices.resolve import devices_of
from meshtf.runtime.spmd.live.device_arrays import ArrayLayout, DeviceShards
from meshtf.runtime.spmd.live.jax_errors import memory_errors
from meshtf.runtime.spmd.live.jax_host import hosts_of
from meshtf.runtime.storage.asarray import named_shape
from meshtf.runtime.storage.sharding import distinct, region, shard_keys
from meshtf.runtime.tf_internals.call_options import call_with, plain_config


class _Section(NamedTuple):
    """The examples of each batch that one host reads.

    Attributes:
      host: the name of the host's CPU or, for a live mesh, of the process.
      start: the index in the batch of the section's first example.
      batches: the tf.data iterator that returns the section of each batch.
    """

    host: str
    start: int
    batches: Any


class _Feature(NamedTuple):
    """A tensor of a batch.

    Attributes:
      spec: the global shape and data type.
      placement: the placement: along which mesh axes each dimension is sharded.
      output_indices: for each mesh position, the index of its shard among the outputs of
        `_read`.
    """

    spec: Spec
    placement: Placement
    output_indices: tuple[int, ...]


class HostReader:
    """An iterator of batches, which are dicts of tensors; each host reads the examples of
    its devices.

    Args:
      mesh: the mesh of the tensors.
      dims: the dimension names of each tensor that a batch may have, by key; the first
        dimension is that of the examples.
      batch_size: the number of examples of a batch.
      open_section: a function (k, n) -> dataset of section k of n of each batch; on a
        live mesh it is called in each process for its section. The dataset is read
        without TensorFlow's autotuner (see `without_autotuning`).

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
        # Functions `as_...` raise ArgumentError for values of another type.
        as_mesh("mesh", mesh)
        as_mapping(
            "dims", dims, 'names of dimensions by key, such as {"ids": "batch;length"}'
        )
        as_callable("open_section", open_section)
        self._mesh = mesh
        self._dims = dims
        self._devices = devices_of(mesh)
        # The name of the host of each position.
        self._hosts = (
            hosts_of(mesh) if mesh.live else list(map(host_cpu, self._devices))
        )
        # All tensors of a batch have the same first dimension.
        any_dims = next(iter(dims.values()))
        pairs = parse_pairs(any_dims, kind="shape", values=False)
        examples_name, _size = pairs[0]
        self._examples_dim = Dimension(examples_name, batch_size)
        self._sections = {
            host: self._open(host, ranges, open_section)
            for host, ranges in self._example_ranges().items()
            if not is_of_other_process(host)
        }
        # The first batch traces `_read`, which fills `_features`.
        self._features: dict[str, _Feature] = {}
        self._function: Any = None

    def __repr__(self) -> str:
        return (
            f"<mtf.HostReader of {self._examples_dim!r} on {self._mesh}: {self._dims}>"
        )

    def __iter__(self) -> HostReader:
        return self

    def __next__(self) -> dict[str, Tensor]:
        if self._mesh.live:
            return self._next_on_live_mesh()
        if self._function is None:
            function = tf.function(self._read, autograph=False)
            self._function = function.get_concrete_function()
        try:
            outputs = call_with(config=plain_config(), function=self._function, args=())
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        batch = {}
        for name, feature in self._features.items():
            shards = [outputs[k] for k in feature.output_indices]
            value = ShardedValue(feature.placement, shards)
            batch[name] = tensor_of_value(feature.spec, value, self._mesh)
        return batch

    def _next_on_live_mesh(self) -> dict[str, Tensor]:
        """Returns the next batch, of which this process reads its section."""
        (section,) = self._sections.values()
        batch = {}
        for name, examples in next(section.batches).items():
            spec = self._spec(examples, name)
            placement, _conflicts = self._mesh.place(spec.shape)
            layout = ArrayLayout(spec, placement, self._mesh)
            with memory_errors(f"the tensor {name!r} of a batch"):
                array = layout.array_of_section(examples, section.start)
            value = ShardedValue(placement, DeviceShards(array, layout))
            batch[name] = tensor_of_value(spec, value, self._mesh)
        return batch

    def _read(self) -> list[Any]:
        """Returns the distinct shards of all tensors of a batch. Stores in `_features` which
        of them each position has.
        """
        # {host: {key of a tensor: the examples that the host reads}}
        tensors_of_hosts = {}
        for host, section in self._sections.items():
            with tf.device(host):
                tensors_of_hosts[host] = section.batches.get_next()
        outputs: list[Any] = []
        any_tensors = next(iter(tensors_of_hosts.values()))
        for name in any_tensors:
            examples = {
                host: tensors[name] for host, tensors in tensors_of_hosts.items()
            }
            spec = self._spec(any_tensors[name], name)
            placement, _conflicts = self._mesh.place(spec.shape)
            shards = self._shards(examples, spec, placement)
            # `indices`: for each position, the index of its shard among distinct shards.
            distinct_shards, indices = distinct(shards)
            output_indices = tuple(len(outputs) + k for k in indices)
            self._features[name] = _Feature(spec, placement, output_indices)
            outputs += distinct_shards
        return outputs

    def _example_ranges(self) -> dict[str, list[tuple[int, int]]]:
        """Returns {host: the ranges [start, stop) of examples that its positions have}.
        Raises LayoutError if the layout cannot shard the examples.
        """
        spec = Spec(Shape([self._examples_dim]), "int32")
        placement, conflicts = self._mesh.place(spec.shape)
        axes = placement.axes_of(self._examples_dim.name)
        axis_sizes = [self._mesh.axes[axis] for axis in axes]
        if conflicts or is_padded(spec.shape.size, axis_sizes):
            raise LayoutError(
                explain_error(
                    "the layout cannot divide the examples of a batch into equal shards.",
                    examples=spec.shape,
                    mesh=self._mesh,
                    layout=self._mesh.layout,
                    way_out="Make their number a multiple of "
                    f"{math.prod(axis_sizes)}, or pass whole batches to the function.",
                )
            )
        ranges: dict[str, list[tuple[int, int]]] = {}
        for host, shard_key in zip(self._hosts, shard_keys(placement, self._mesh)):
            (examples,) = region(spec.shape, placement, shard_key, self._mesh)
            ranges_of_host = ranges.setdefault(host, [])
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
        batch_size = self._examples_dim.size
        first = min(start for start, _stop in ranges)
        last = max(stop for _start, stop in ranges) - 1

        def is_section_size(size: int) -> bool:
            """Returns whether a section of this size has the first and the last example."""
            return batch_size % size == 0 and first // size == last // size

        size = last - first + 1
        while not is_section_size(size):
            size += 1
        index = first // size
        num_sections = batch_size // size
        # TensorFlow has no devices with the names of processes.
        with tf.device(None if self._mesh.live else host):
            dataset = without_autotuning(open_section(index, num_sections))
            return _Section(host=host, start=index * size, batches=iter(dataset))

    def _spec(self, examples: Any, name: str) -> Spec:
        """Returns the global spec of tensor `name` of a batch, given the examples of one
        host. Only the size of their first dimension differs from the global size.
        """
        sizes = [self._examples_dim.size, *examples.shape[1:]]
        tensor_spec = tf.TensorSpec(sizes, examples.dtype)
        shape = named_shape(tensor_spec, self._dims[name], "a batch")
        return Spec(shape, examples.dtype.name)

    def _shards(
        self,
        examples: Mapping[str, Any],
        spec: Spec,
        placement: Placement,
    ) -> list[Any]:
        """Returns each position's shard of a tensor.

        Args:
          examples: {host: the examples that the host has read}.
          spec: the global spec of the tensor.
          placement: the placement of the tensor.
        """
        # A shard key says which shard a position has. Positions of one device with equal
        # shard keys share a tensor.
        keys = list(zip(self._devices, shard_keys(placement, self._mesh)))
        shard_of: dict[Any, Any] = {}
        sizes = local_shape(spec.shape, placement, self._mesh).sizes
        for device, shard_key in keys:
            if (device, shard_key) not in shard_of:
                host = host_cpu(device)
                shard_region = region(spec.shape, placement, shard_key, self._mesh)
                shard_of[device, shard_key] = _shard(
                    examples[host], self._sections[host], shard_region, sizes, device
                )
        return [shard_of[key] for key in keys]


def _shard(
    x: Any,
    section: _Section,
    shard_region: tuple[slice, ...],
    sizes: Sequence[int],
    device: str,
) -> Any:
    """Returns a shard of a tensor on a device.

    Args:
      x: the examples that the device's host has read.
      section: the section of the batch that the host reads.
      shard_region: the region of the batch that the shard has, in global indices.
      sizes: the sizes of the shard, with padding.
      device: the device.
    """
    examples, *other_slices = shard_region
    local_examples = slice(
        examples.start - section.start, examples.stop - section.start
    )
    # The same region, in indices of x.
    local_region = (local_examples, *other_slices)
    covers_x = all(
        (bounds.start, bounds.stop) == (0, size)
        for bounds, size in zip(local_region, x.shape)
    )
    pads = [[0, size - n] for size, n in zip(sizes, _sizes_of(local_region))]
    with tf.device(section.host):
        if not covers_x:
            x = x[local_region]
        if any(map(any, pads)):
            x = tf.pad(x, pads)
    with tf.device(device):
        return tf.identity(x)


def _sizes_of(region: tuple[slice, ...]) -> list[int]:
    """Returns the size of a region along each axis."""
    return [bounds.stop - bounds.start for bounds in region]
