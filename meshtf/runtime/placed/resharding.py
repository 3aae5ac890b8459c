"""Communication of the placed runtime: TensorFlow ops between the devices of positions.

    class Placed(ReshardExecutor): ...       # `execute` calls the methods of this class

A value is a list with the tensor of each mesh position; None: the value is on another
pipeline stage. Groups of positions with identical tensor objects share one collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from meshtf.mesh import Mesh, OnStage, Partial, Sharded
from meshtf.partition import Bucket, GatherStatisticsStep, ReshardStep, WindowStep
from meshtf.runtime.devices.resolve import devices_of, simulates_separate_memory
from meshtf.runtime.lowering.step_executor import StepExecutor
from meshtf.runtime.placed.collectives import bucketed, collectives_for, shared_memory
from meshtf.runtime.placed.collectives.primitives import send, shard
from meshtf.runtime.placed.collectives.window_exchange import elements_of_shards
from meshtf.runtime.placed.program.symbolic_tensor import runs_now
from meshtf.runtime.placed.program.tensor_ops import identity, split

Shards = list[Any]


class ReshardExecutor(StepExecutor):
    """Executes communication between the positions of a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__(mesh)
        self.devices = devices_of(mesh)
        self.separate = simulates_separate_memory(mesh)

    def _collectives(self, devices: Sequence[str]) -> ModuleType:
        """Returns the algorithms for a group of devices."""
        return collectives_for(devices, self.separate)

    def _reshard(self, step: ReshardStep) -> Shards:
        kind = step.reshard.kind
        if kind == "slice":
            return self._slice(step)
        if kind in ("drop", "send", "broadcast"):
            return self._change_stage(step)
        if kind == "collective_permute":
            return self._permute(step)
        before = step.reshard.before
        reduction = before.kind if isinstance(before, Partial) else ""
        split_axis = _split_axis(step)
        concat_axis = _concat_axis(step)

        def collective(shards: Shards, devices: Sequence[str]) -> Shards:
            algorithms = self._collectives(devices)
            if kind == "all_reduce":
                outputs = algorithms.all_reduce(shards, devices, reduction)
            elif kind == "reduce_scatter":
                outputs = algorithms.reduce_scatter(
                    shards, devices, reduction, split_axis
                )
            elif kind == "all_gather":
                outputs = algorithms.all_gather(shards, devices, concat_axis)
            else:
                outputs = algorithms.all_to_all(
                    shards, devices, split_axis, concat_axis
                )
            return list(outputs)

        return self._in_groups(self._delayed(step), (step.reshard.axis,), collective)

    def _bucket(self, step: Bucket) -> list[Shards]:
        """Returns the outputs of several reductions, all of them in one collective."""
        reshard = step.reductions[0].reshard
        assert isinstance(reshard.before, Partial)
        reduction = reshard.before.kind
        split_axes = [_split_axis(r) for r in step.reductions]
        shards_of_inputs = [self.values[r.src] for r in step.reductions]
        bundles = [
            None if bundle[0] is None else bundle for bundle in zip(*shards_of_inputs)
        ]

        def collective(bundles: Shards, devices: Sequence[str]) -> Shards:
            algorithms = self._collectives(devices)
            if reshard.kind == "all_reduce":
                return bucketed.all_reduce(algorithms, bundles, devices, reduction)
            return bucketed.reduce_scatter(
                algorithms, bundles, devices, reduction, split_axes
            )

        outputs = self._in_groups(bundles, (reshard.axis,), collective)
        return [
            [None if bundle is None else bundle[k] for bundle in outputs]
            for k in range(len(step.reductions))
        ]

    def _delayed(self, step: ReshardStep) -> Shards:
        """Returns the shards that a step reshards, available only after the value that
        the step waits for.

        If one op of the collective takes all shards of a group, it suffices to delay one
        of them.
        """
        if step.wait_for is None:
            return self.values[step.src]
        shards = list(self.values[step.src])
        waits = self.values[step.wait_for]
        delayed: dict[Any, Any] = {}
        for group in self.mesh.groups(step.reshard.axis):
            devices = [self.devices[p] for p in group]
            in_one_op = self._collectives(devices) is shared_memory
            for position in group[:1] if in_one_op else group:
                x = shards[position]
                wait = waits[position]
                if x is None or wait is None:
                    continue
                key = id(x), id(wait)
                if key not in delayed:
                    delayed[key] = identity(x, self.devices[position], wait)
                shards[position] = delayed[key]
        return shards

    def _send(
        self,
        x: Any,
        source: int,
        target: int,
    ) -> Any:
        """Returns a tensor of one position on the device of another."""
        return send(x, self.devices[source], self.devices[target])

    def _permute(self, step: ReshardStep) -> Shards:
        """Returns the shards with two axes exchanged: position (i, j) gets the shard of
        position (j, i).
        """
        shards = self.values[step.src]
        outputs = list(shards)
        for source, target in self.mesh.exchanges(
            step.reshard.axis, step.reshard.other_axis
        ):
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
        for group in self.mesh.groups(step.reshard.axis):
            for coordinate, target in enumerate(group):
                if isinstance(after, OnStage) and after.coordinate != coordinate:
                    continue
                from_stage = coordinate
                if isinstance(before, OnStage):
                    from_stage = before.coordinate
                source = group[from_stage]
                if shards[source] is not None:
                    outputs[target] = self._send(shards[source], source, target)
        return outputs

    def _slice(self, step: ReshardStep) -> Shards:
        """Returns the slice of each position. A device with several positions splits its
        tensor once for all of them.
        """
        axis = _split_axis(step)
        mesh_axis = step.reshard.axis
        num_shards = self.mesh.axes[mesh_axis]
        axis_index = self.mesh.axis_index[mesh_axis]
        indices = [coord[axis_index] for coord in self.mesh.coords]
        tensors = self.values[step.src]
        keys = [(id(x), device) for x, device in zip(tensors, self.devices)]
        indices_of: dict[Any, set[int]] = {}
        for key, index in zip(keys, indices):
            indices_of.setdefault(key, set()).add(index)
        slices: dict[Any, Any] = {}
        outputs: Shards = []
        for key, index, x in zip(keys, indices, tensors):
            if x is None:
                outputs.append(None)
                continue
            if key not in slices:
                device = key[1]
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
        the same tensors on the same devices.

        In a traced or written program, groups whose devices share one memory share the
        results even if their devices differ.
        """
        outputs: Shards = [None] * self.mesh.size
        computed: dict[Any, Shards] = {}
        for group in self.mesh.groups(*axes):
            if any(shards[p] is None for p in group):  # the value is on another stage
                continue
            devices = tuple(self.devices[p] for p in group)
            tensors = [x for p in group for x in tf.nest.flatten(shards[p])]
            in_one_memory = self._collectives(devices) is shared_memory
            aliased = in_one_memory and not any(map(runs_now, tensors))
            key = (*map(id, tensors), *(() if aliased else devices))
            if key not in computed:
                computed[key] = collective([shards[p] for p in group], devices)
            for position, output in zip(group, computed[key]):
                outputs[position] = output
        return outputs

    def _gather_statistics(self, step: GatherStatisticsStep) -> Shards:
        def gather(statistics: Shards, devices: Sequence[str]) -> Shards:
            algorithms = self._collectives(devices)
            stacked = [algorithms.stack(xs, devices) for xs in zip(*statistics)]
            return list(zip(*stacked))

        return self._in_groups(self.values[step.src], step.axes, gather)

    def _exchange_window(self, step: WindowStep) -> Shards:
        assert step.src.spec is not None
        axis = step.src.spec.shape.index(step.dim)
        num_shards = self.mesh.axes[step.axis]
        local_size = step.factor_size // num_shards
        starts = [step.window.low(j * local_size) for j in range(num_shards)]
        stops = [step.window.high((j + 1) * local_size) for j in range(num_shards)]
        # All positions get windows of one length, since segments are traced only once.
        length = max(stop - start for start, stop in zip(starts, stops))

        def exchange(shards: Shards, devices: Sequence[str]) -> Shards:
            return [
                elements_of_shards(
                    shards,
                    devices,
                    j,
                    axis,
                    start,
                    start + length,
                    step,
                )
                for j, start in enumerate(starts)
            ]

        return self._in_groups(self.values[step.src], (step.axis,), exchange)


def _split_axis(step: ReshardStep) -> int:
    """Returns the axis of a tensor along which a reshard splits it; -1: none."""
    assert step.src.spec is not None
    after = step.reshard.after
    return step.src.spec.shape.index(after.dim) if isinstance(after, Sharded) else -1


def _concat_axis(step: ReshardStep) -> int:
    """Returns the axis along which a reshard concatenates shards; -1: none."""
    assert step.src.spec is not None
    before = step.reshard.before
    return step.src.spec.shape.index(before.dim) if isinstance(before, Sharded) else -1
