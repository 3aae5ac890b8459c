"""The communication steps of the placed runtime, as TensorFlow ops on tensors of several
devices.

    class PlacedExecutor(ReshardExecutor): ...    # its `execute` calls the methods below

A value is a list with the shard of each mesh position (an element of the mesh's grid);
None: the position belongs to a pipeline stage that does not have the value. Groups of
positions with identical tensor objects share one collective.

A `ReshardStep` changes the state of a value along mesh axes, from `reshard.before` to
`reshard.after`: `Sharded(dim)`, `Replicated`, `Partial(kind)` (each position has a term of a
sum, or of another reduction) or `OnStage(i)` (only pipeline stage i has the value).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from meshtf.mesh import Mesh, OnStage, Partial, Sharded, State
from meshtf.mesh.shard_sizes import shard_size
from meshtf.partition import Bucket, GatherStatisticsStep, ReshardStep, WindowStep
from meshtf.runtime.devices.resolve import devices_of, simulates_separate_memory
from meshtf.runtime.lowering.padding.shard_blocks import ReshardBlocks
from meshtf.runtime.lowering.step_executor import StepExecutor
from meshtf.runtime.placed.collectives import bucketed, collectives_for, shared_memory
from meshtf.runtime.placed.collectives.primitives import send, shard
from meshtf.runtime.placed.collectives.window_exchange import elements_of_shards
from meshtf.runtime.placed.program.symbolic_tensor import runs_now
from meshtf.runtime.placed.program.tensor_ops import (
    identity,
    pad,
    reshape,
    slice_of,
    split,
)

Shards = list[Any]  # the shard of each position


class DeviceOps:
    """The ops of `shard_blocks` on one device.

    Args:
      device: the name of the device.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def pad_end(self, x: Any, axis: int, size: int) -> Any:
        """Returns x with zeros at the end of an axis, which then has `size` elements."""
        pads = [[0, 0] for _ in x.shape]
        pads[axis][1] = size - int(x.shape[axis])
        return pad(x, pads, 0.0, self.device)

    def crop_end(self, x: Any, axis: int, size: int) -> Any:
        """Returns the first `size` elements of an axis."""
        sizes = list(x.shape)
        sizes[axis] = size
        return slice_of(x, [0] * len(sizes), sizes, self.device)

    def reshape(self, x: Any, shape: Sequence[int]) -> Any:
        """Returns x in another shape."""
        return reshape(x, shape, self.device)


class ReshardExecutor(StepExecutor):
    """Executes communication between the positions of a mesh.

    Attributes:
      devices: the device of each position.
      simulates_separate_memory: whether collectives treat devices as if each had its own
        memory.
    """

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh)
        self.devices = devices_of(mesh)
        self.simulates_separate_memory = simulates_separate_memory(mesh)

    def _collectives(self, devices: Sequence[str]) -> ModuleType:
        """Returns the module with the collectives for a group of devices."""
        return collectives_for(devices, separate=self.simulates_separate_memory)

    def _reshard(self, step: ReshardStep) -> Shards:
        """Returns the shards of all positions after a reshard."""
        kind = step.reshard.kind
        if kind == "slice":
            return self._slice(step)
        if kind == "keep":
            return list(self._delayed_shards(step))
        if kind in ("drop", "send", "broadcast"):
            return self._change_stage(step)
        if kind == "collective_permute":
            return self._permute(step)
        before = step.reshard.before
        reduction_kind = ""  # the collective does not reduce
        if isinstance(before, Partial):
            reduction_kind = before.kind
        split_axis = _split_axis(step)
        concat_axis = _concat_axis(step)

        def collective(shards: Shards, devices: Sequence[str]) -> Shards:
            """Returns the outputs for a group, whose devices have these shards."""
            algorithms = self._collectives(devices)
            if kind == "all_reduce":
                outputs = algorithms.all_reduce(shards, devices, reduction_kind)
            elif kind == "reduce_scatter":
                outputs = algorithms.reduce_scatter(
                    shards, devices, reduction_kind, split_axis
                )
            elif kind == "all_gather":
                outputs = algorithms.all_gather(shards, devices, concat_axis)
            else:
                outputs = algorithms.all_to_all(
                    shards, devices, split_axis, concat_axis
                )
            return list(outputs)

        blocks = ReshardBlocks(step, self.mesh)
        shards = self._on_each(blocks.before, self._delayed_shards(step))
        outputs = self._in_groups(shards, step.reshard.axes, collective)
        return self._on_each(blocks.after, outputs)

    def _on_each(
        self, function: Callable[[Any, DeviceOps], Any], shards: Shards
    ) -> Shards:
        """Returns function(shard, ops) for the shard of each position, once for positions of
        one device with the same shard.
        """
        if not self.mesh.pads:
            return shards
        results: dict[Any, Any] = {}
        outputs: Shards = []
        for x, device in zip(shards, self.devices):
            key = id(x), device
            if x is not None and key not in results:
                results[key] = function(x, DeviceOps(device))
            outputs.append(None if x is None else results[key])
        return outputs

    def _bucket(self, step: Bucket) -> list[Shards]:
        """Returns the shards of each output of several reductions, which one collective
        computes.
        """
        reshard = step.reductions[0].reshard
        assert isinstance(reshard.before, Partial)
        reduction_kind = reshard.before.kind
        split_axes = [_split_axis(reduction) for reduction in step.reductions]
        shards_of_inputs = [
            self._on_each(
                ReshardBlocks(reduction, self.mesh).before, self.values[reduction.src]
            )
            for reduction in step.reductions
        ]
        # For each position its shards of all inputs; None: it is on another stage.
        bundles = [
            None if bundle[0] is None else bundle for bundle in zip(*shards_of_inputs)
        ]

        def collective(bundles: Shards, devices: Sequence[str]) -> Shards:
            algorithms = self._collectives(devices)
            if reshard.kind == "all_reduce":
                return bucketed.all_reduce(algorithms, bundles, devices, reduction_kind)
            return bucketed.reduce_scatter(
                algorithms, bundles, devices, reduction_kind, split_axes
            )

        outputs = self._in_groups(bundles, reshard.axes, collective)
        return [
            [None if bundle is None else bundle[k] for bundle in outputs]
            for k in range(len(step.reductions))
        ]

    def _delayed_shards(self, step: ReshardStep) -> Shards:
        """Returns the shards that a step reshards; if the step waits for another value
        (`waits_for`), they are delayed until that value is computed.

        If one op of the collective takes all shards of a group, it suffices to delay one
        of them.
        """
        if not step.waits_for:
            return self.values[step.src]
        shards = list(self.values[step.src])
        (awaited_value,) = step.waits_for
        awaited_shards = self.values[awaited_value]
        # Positions with the same tensor objects share one identity op.
        identities: dict[Any, Any] = {}
        for group in self.mesh.groups(*step.reshard.axes):
            devices = [self.devices[position] for position in group]
            in_one_op = self._collectives(devices) is shared_memory
            positions_to_delay = group[:1] if in_one_op else group
            for position in positions_to_delay:
                x = shards[position]
                awaited = awaited_shards[position]
                if x is None or awaited is None:
                    continue
                key = id(x), id(awaited)
                if key not in identities:
                    identities[key] = identity(x, self.devices[position], after=awaited)
                shards[position] = identities[key]
        return shards

    def _send(
        self,
        x: Any,
        source: int,
        target: int,
    ) -> Any:
        """Returns x, a tensor of position `source`, on the device of `target`."""
        return send(x, self.devices[source], self.devices[target])

    def _permute(self, step: ReshardStep) -> Shards:
        """Returns the shards after a collective_permute."""
        shards = self.values[step.src]
        outputs = list(shards)
        for source, target in step.reshard.permuted_positions(self.mesh):
            if shards[source] is not None:
                outputs[target] = self._send(shards[source], source, target)
        return outputs

    def _change_stage(self, step: ReshardStep) -> Shards:
        """Executes a drop (all stages but one discard their shards), a send from one
        stage to another, or a broadcast from one stage to all.
        """
        shards = self.values[step.src]
        before = step.reshard.before
        after = step.reshard.after
        outputs: Shards = [None] * self.mesh.size
        for group in self.mesh.groups(*step.reshard.axes):
            # The positions of a group differ in their stage only: group[stage].
            for stage, target in enumerate(group):
                if isinstance(after, OnStage) and after.coordinate != stage:
                    continue
                source_stage = stage
                if isinstance(before, OnStage):
                    source_stage = before.coordinate
                source = group[source_stage]
                if shards[source] is not None:
                    outputs[target] = self._send(shards[source], source, target)
        return outputs

    def _slice(self, step: ReshardStep) -> Shards:
        """Returns the slice of each position. A device with several positions splits its
        tensor once for all of them.
        """
        axis = _split_axis(step)
        mesh_axes = step.reshard.axes
        num_shards = self.mesh.group_size(*mesh_axes)
        indices = [0] * self.mesh.size  # the index of the slice of each position
        for group in self.mesh.groups(*mesh_axes):
            for index, position in enumerate(group):
                indices[position] = index
        blocks = ReshardBlocks(step, self.mesh)
        tensors = self._on_each(blocks.before, self.values[step.src])
        keys = [(id(x), device) for x, device in zip(tensors, self.devices)]
        # For each tensor on a device: the indices of the slices that positions need.
        indices_of: dict[Any, set[int]] = {}
        for key, index in zip(keys, indices):
            indices_of.setdefault(key, set()).add(index)
        # For each tensor on a device: its slices, by index.
        slices: dict[Any, Any] = {}
        outputs: Shards = []
        for key, index, x, device in zip(keys, indices, tensors, self.devices):
            if x is None:
                outputs.append(None)
                continue
            if key not in slices:
                if len(indices_of[key]) > 1:
                    slices[key] = split(x, num_shards, axis, device)
                else:
                    slices[key] = {index: shard(x, axis, index, num_shards, device)}
            outputs.append(slices[key][index])
        return outputs

    def _in_groups(
        self,
        shards: Shards,
        axes: tuple[str, ...],
        collective: Callable[[Shards, Sequence[str]], Shards],
    ) -> Shards:
        """Runs a collective in each group of positions along `axes`, once for groups with
        the same tensors on the same devices; returns the result of each position.

        In a traced or written program, groups whose devices share one memory share the
        results even if their devices differ.

        Args:
          shards: the shard of each position, or a nested structure of its shards.
          axes: the axes of the mesh along which the positions of a group differ.
          collective: a function from the shards and devices of a group to the result of
            each device.
        """
        outputs: Shards = [None] * self.mesh.size
        results_by_key: dict[Any, Shards] = {}
        for group in self.mesh.groups(*axes):
            group_shards = [shards[position] for position in group]
            if any(x is None for x in group_shards):  # the value is on another stage
                continue
            devices = tuple(self.devices[position] for position in group)
            tensors = tf.nest.flatten(group_shards)
            key: tuple[Any, ...] = tuple(map(id, tensors))
            in_one_memory = self._collectives(devices) is shared_memory
            if not in_one_memory or any(map(runs_now, tensors)):
                key = (*key, *devices)
            if key not in results_by_key:
                results_by_key[key] = collective(group_shards, devices)
            for position, output in zip(group, results_by_key[key]):
                outputs[position] = output
        return outputs

    def _gather_statistics(self, step: GatherStatisticsStep) -> Shards:
        """Returns for each position the tuple of statistics, each stacked over shards."""

        def gather(statistics: Shards, devices: Sequence[str]) -> Shards:
            algorithms = self._collectives(devices)
            # statistics[device][k] -> stacked[k][device] -> the result [device][k].
            stacked = [algorithms.stack(xs, devices) for xs in zip(*statistics)]
            return list(zip(*stacked))

        return self._in_groups(self.values[step.src], step.axes, gather)

    def _exchange_window(self, step: WindowStep) -> Shards:
        """Returns for each position the elements that its windows read."""
        assert step.src.spec is not None
        axis = step.src.spec.shape.index(step.dim)
        num_shards = self.mesh.group_size(*step.axes)
        size = step.src.spec.shape[step.dim]
        local_size = shard_size(step.factor_size, num_shards)
        # The windows of shard j read the elements from starts[j] to stops[j].
        starts = [step.window.low(j * local_size) for j in range(num_shards)]
        stops = [step.window.high((j + 1) * local_size) for j in range(num_shards)]
        # All positions get windows of one length, since segments are traced only once.
        length = max(stop - start for start, stop in zip(starts, stops))

        def exchange(shards: Shards, devices: Sequence[str]) -> Shards:
            return [
                elements_of_shards(
                    shards=shards,
                    devices=devices,
                    shard_index=j,
                    axis=axis,
                    start=start,
                    stop=start + length,
                    window=step.window,
                    size=size,
                )
                for j, start in enumerate(starts)
            ]

        return self._in_groups(self.values[step.src], step.axes, exchange)


def _split_axis(step: ReshardStep) -> int:
    """Returns the axis of a tensor along which a reshard splits it; -1: none."""
    return _sharded_axis(step, step.reshard.after)


def _concat_axis(step: ReshardStep) -> int:
    """Returns the axis of a tensor along which a reshard concatenates shards; -1: none."""
    return _sharded_axis(step, step.reshard.before)


def _sharded_axis(step: ReshardStep, state: State) -> int:
    """Returns the axis of the resharded tensor that `state` shards; -1: none."""
    assert step.src.spec is not None
    if not isinstance(state, Sharded):
        return -1
    return step.src.spec.shape.index(state.dim)
