"""Seconds of each step of a program on one device, from a profile of hardware.

    durations = Durations(hardware, mesh)
    durations.compute(step, in_memory), durations.collective(step)

Sizes of axes may be arrays, with an entry for each of many meshes that are compared: then
seconds are arrays as well. The formulas: a matmul takes FLOPs / (a fraction of the peak), or
its measured time; any other op the larger of bytes / bandwidth and FLOPs / the rate of vector
units, and a time to start. A collective takes latencies, and bytes / bandwidth of the slowest
link that it crosses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from meshtf.forecast.memory.kernels import writes_products
from meshtf.forecast.op_costs import redundant_axes
from meshtf.forecast.time.exchanges import (
    collective_seconds,
)
from meshtf.graph import Op, Spec, contracted_factors, factor_of
from meshtf.graph.op_kinds import FusedMatmulsOp, LookupOp
from meshtf.hardware import CollectiveTimes, Hardware, MatmulShape, MatmulTimes
from meshtf.mesh import Mesh, Placement, Sharded
from meshtf.names import dtype_bytes
from meshtf.partition import Body, CollectiveStep, Compute, NodePlan, Step, Value
from meshtf.partition.reshard_table import Reshard

_ELEMENTWISE = "elementwise"  # in `Hardware.element_seconds`: ops that have no entry
_WORD = 4  # bytes, for which that time is


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes for which a program is timed, in place of those that it was planned for.

    Attributes:
      axes: the size of each axis of the mesh; numbers, or arrays for many meshes.
      dims: (dimension, planned global size) -> the global size, such as that of the batch
        of one microbatch, or the number of iterations of a loop over it.
      strides: for each axis, how many positions are nearer to each other than those along
        it; None: as the order of the axes says.
    """

    axes: Mapping[str, Any]
    dims: Mapping[tuple[str, int], Any] = dataclasses.field(default_factory=dict)
    strides: Mapping[str, Any] | None = None

    def global_size(self, name: str, size: int) -> Any:
        """Returns the global size of a dimension that was planned with `size`."""
        return self.dims.get((name, size), size)

    def runs(self, body: Body) -> Any:
        """Returns how often a body runs, such as the number of iterations of a loop."""
        on_all_devices = body.runs * body.program.mesh.group_size(*body.axes)
        runs = self.global_size(body.dim, on_all_devices)
        for axis in body.axes:
            runs = runs / self.axes[axis]
        return runs


class Durations:
    """Predicts the seconds of the steps of a program, or of programs that were planned for
    meshes of the same axes.

    Args:
      hardware: the profile.
      mesh: the mesh that the program was planned for.
      sizes: the sizes for which it is timed; None: those of the mesh.
      local_factor: how much longer ops take than predicted, by measured steps.
    """

    def __init__(
        self,
        hardware: Hardware,
        mesh: Mesh,
        sizes: Sizes | None = None,
        local_factor: Any = 1.0,
    ) -> None:
        self._local_factor = local_factor
        self.hardware = hardware
        self.mesh = mesh
        self.sizes = Sizes(mesh.axes) if sizes is None else sizes
        self.collectives = CollectiveTimes(
            hardware,
            self.sizes.axes,
            within_host=mesh.within_host,
            strides=self.sizes.strides,
        )
        self.matmuls = MatmulTimes(hardware)
        self._local_sizes: dict[tuple[str, int, tuple[str, ...]], Any] = {}
        self._bytes: dict[tuple[Spec, Placement], Any] = {}
        # By the id of a plan; all of these plans are kept, so that no other one gets the id.
        self._plans: dict[int, NodePlan] = {}
        self._shapes: dict[int, MatmulShape | None] = {}
        self._flops: dict[int, Any] = {}
        self._seconds: dict[tuple[Any, ...], Any] = {}

    @property
    def merges_collectives(self) -> bool:
        """Whether a compiler merges collectives that do not wait for each other."""
        return self.hardware.fuses

    def local_bytes(self, value: Value) -> Any:
        """Returns the bytes of one shard of a value; 0 for statistics of an op."""
        if value.spec is None:
            return 0.0
        return self.shard_bytes(value.spec, value.placement)

    def shard_bytes(self, spec: Spec, placement: Placement) -> Any:
        """Returns the bytes of one shard of a tensor."""
        key = spec, placement
        if key not in self._bytes:
            self._bytes[key] = self._shard_bytes(spec, placement)
        return self._bytes[key]

    def _shard_bytes(self, spec: Spec, placement: Placement) -> Any:
        result: Any = float(dtype_bytes(spec.dtype))
        for dim in spec.shape:
            axes = placement.axes_of(dim.name)
            result = result * self.local_size(dim.name, dim.size, axes)
        return result

    def local_size(self, name: str, size: int, axes: tuple[str, ...]) -> Any:
        """Returns the size of a dimension or factor on one device, with padding.

        Args:
          name: its name.
          size: its planned global size.
          axes: the axes that shard it.
        """
        key = name, size, axes
        if key not in self._local_sizes:
            global_size = self.sizes.global_size(name, size)
            shards = self.collectives.group_size(axes)
            self._local_sizes[key] = -(-global_size // shards)
        return self._local_sizes[key]

    def group_size(self, axes: tuple[str, ...]) -> Any:
        """Returns how many devices differ along axes."""
        return self.collectives.group_size(axes)

    def num_exchanging(self, reshard: Reshard) -> Any:
        """Returns how many devices exchange shards in a reshard: those of its axes, as if a new
        order of axes left none with its shard.
        """
        return self.collectives.group_size(reshard.axes)

    def compute(self, step: Compute, in_memory: Set[Value] | None) -> Any:
        """Returns the seconds of an op on one device.

        Args:
          step: the op.
          in_memory: the values that are written to memory; None: all.
        """
        stored: tuple[bool, ...] = ()
        if in_memory is not None:
            stored = tuple(value in in_memory for value in (*step.ins, *step.outs))
        key = (self._id_of_plan(step), step.makes_statistics, stored)
        if key not in self._seconds:
            self._seconds[key] = self._compute(step, in_memory)
        return self._seconds[key]

    def _id_of_plan(self, step: Compute) -> int:
        """Returns the id of the plan of a step."""
        key = id(step.plan)
        self._plans[key] = step.plan
        return key

    def _compute(self, step: Compute, in_memory: Set[Value] | None) -> Any:
        """Returns what `compute` does."""
        num_bytes = self._traffic(step, in_memory)
        shape = self.matmul_shape(step)
        platform = self.hardware.platform
        if shape is not None and writes_products(step, self.mesh, platform):
            # In the data type of the inputs, and read once.
            num_bytes = num_bytes + 2 * shape.elements * dtype_bytes(shape.dtype)
        factor = self.factor(self.work_kind(step)) * self._local_factor
        share = self._positions_that_share(step) / factor
        if shape is not None:
            seconds = self.matmuls.seconds(shape, num_bytes) + self.hardware.op_seconds
            return seconds / share
        efficiency = self.hardware.memory_efficiency
        bandwidth = self.hardware.memory_bandwidth * efficiency
        flops = self.local_flops(step)
        seconds = np.maximum(num_bytes / bandwidth, flops / self.hardware.vector_flops)
        measured = self._measured_elements(step, num_bytes)
        if measured is not None:
            seconds = measured
        if self.has_kernel(step, in_memory):
            seconds = seconds + self.hardware.op_seconds
        return seconds / share

    def _measured_elements(self, step: Compute, num_bytes: Any) -> Any:
        """Returns the seconds of an op by measured ones of its elements; None: there are
        none.
        """
        if not self.hardware.element_seconds:
            return None
        name = step.node.op.display_name
        elements = self._max_elements(step)
        if name not in self.hardware.element_seconds:
            if _ELEMENTWISE not in self.hardware.element_seconds:
                return None
            name = _ELEMENTWISE
            words = num_bytes / _WORD
        else:
            words = elements
        return words * self.hardware.seconds_of_element(name, elements)

    def _max_elements(self, step: Compute) -> Any:
        """Returns the elements of the largest tensor that an op reads or writes."""
        result: Any = 0.0
        for value in [*step.ins, *step.outs]:
            if value.spec is not None:
                elements = self.local_bytes(value) / dtype_bytes(value.spec.dtype)
                result = np.maximum(result, elements)
        return result

    def work_kind(self, step: Compute) -> str:
        """Returns the kind of work of an op, as `Hardware.work_factors` names it."""
        shape = self.matmul_shape(step)
        return step.node.op.display_name if shape is None else "matmul"

    def factor(self, kind: str) -> float:
        """Returns measured seconds of a kind of work divided by predicted ones."""
        return self.hardware.work_factor(kind)

    def has_kernel(self, step: Compute, in_memory: Set[Value] | None) -> bool:
        """Returns whether an op is started on its own: it is a matmul, or not fused with the
        ops that read its results. The arguments are those of `compute`.
        """
        if in_memory is None or any(out in in_memory for out in step.outs):
            return True
        return self.matmul_shape(step) is not None

    def _positions_that_share(self, step: Compute) -> Any:
        """Returns how many positions have one result computed for all of them."""
        if not self.hardware.shares_equal_work:
            return 1
        axes = redundant_axes(step, self.mesh)
        return self.collectives.group_size(axes)

    def _traffic(self, step: Compute, in_memory: Set[Value] | None) -> Any:
        """Returns the bytes that an op reads from memory and writes to it."""
        moved = {value: self.local_bytes(value) for value in (*step.ins, *step.outs)}
        if isinstance(step.node.op, LookupOp):
            # Of the table, as much is read as the output has.
            moved[step.ins[0]] = self.local_bytes(step.outs[0])
        return sum(
            num_bytes
            for value, num_bytes in moved.items()
            if in_memory is None or value in in_memory
        )

    def local_flops(self, step: Compute) -> Any:
        """Returns the FLOPs of an op on one device, with those of padding."""
        key = self._id_of_plan(step)
        if key not in self._flops:
            self._flops[key] = self._local_flops(step)
        return self._flops[key]

    def _local_flops(self, step: Compute) -> Any:
        op = step.node.op
        if type(op).flops is Op.flops:  # one for each element of its outputs
            return sum(
                self.local_bytes(y) / dtype_bytes(y.spec.dtype)
                for y in step.outs
                if y.spec is not None
            )
        flops: Any = float(op.flops(*(x.spec for x in step.node.inputs)))
        local_sizes = self.local_factor_sizes(step)
        for factor, planned_size in step.plan.sizes:
            flops = flops * local_sizes[factor] / max(planned_size, 1)
        return flops

    def local_factor_sizes(self, step: Compute) -> dict[str, Any]:
        """Returns the size on one device of each factor of an op, with padding."""
        return {
            factor: self.local_size(factor, size, step.plan.axes_of(factor))
            for factor, size in step.plan.sizes
        }

    def matmul_shape(self, step: Compute) -> MatmulShape | None:
        """Returns the local shape of a matmul; None: the op is none."""
        key = self._id_of_plan(step)
        if key not in self._shapes:
            self._shapes[key] = self._matmul_shape(step)
        return self._shapes[key]

    def _matmul_shape(self, step: Compute) -> MatmulShape | None:
        op = step.node.op
        inputs = step.node.inputs
        sums = contracted_factors(op, [x.spec for x in inputs])
        if not sums:
            return None
        left, right = (
            {factor_of(op, name) for name in x.shape.names} for x in inputs[:2]
        )
        products = op.num_products if isinstance(op, FusedMatmulsOp) else 1
        sizes: dict[str, Any] = {"batch": products, "m": 1, "n": 1, "k": 1}
        for factor, local_size in self.local_factor_sizes(step).items():
            if factor in sums:
                group = "k"
            elif factor in left and factor in right:
                group = "batch"
            else:
                group = "m" if factor in left else "n"
            sizes[group] = sizes[group] * local_size
        return MatmulShape(**sizes, dtype=step.node.inputs[0].dtype)

    def write(self, step: Step) -> Any:
        """Returns the seconds of an update: it reads its inputs and its variables, or some rows
        of them, and writes these.
        """
        num_bytes: Any = sum(self.local_bytes(value) for value in step.inputs)
        for store in step.writes:
            of_shard = self.shard_bytes(store.spec, store.placement)
            num_bytes = num_bytes + 2 * step.written_share * of_shard
        bandwidth = self.hardware.memory_bandwidth * self.hardware.memory_efficiency
        seconds = num_bytes / bandwidth + self.hardware.op_seconds
        return seconds * self.factor("update") * self._local_factor

    def copy(self, step: Step) -> Any:
        """Returns the seconds of a step that copies values, or parts of them; 0 for views."""
        if step.is_view:
            return 0.0
        written: Any = sum(self.local_bytes(value) for value in step.outputs)
        bandwidth = self.hardware.memory_bandwidth * self.hardware.memory_efficiency
        return 2 * written / bandwidth + self.hardware.op_seconds

    def collective(self, step: CollectiveStep, merged: bool = False) -> Any:
        """Returns the seconds of a collective; `merged`: without its latency."""
        key: tuple[Any, ...] = (step, merged)
        if not step.packed:  # equal reshards take equally long
            for reshard in step.reshards:
                before, after = reshard.src, reshard.out.placement
                key = (reshard.reshard, before.spec, before.placement, after, merged)
        if key not in self._seconds:
            self._seconds[key] = self._collective(step, merged)
        return self._seconds[key]

    def _collective(self, step: CollectiveStep, merged: bool) -> Any:
        """Returns what `collective` does."""
        received = step.received(self)
        if step.is_transfer:
            # The stage that receives gets all bytes.
            received = self.local_bytes(step.src)
        return collective_seconds(
            self.hardware,
            self.collectives,
            step.kind,
            step.axes,
            received,
            merged,
            copies=self._transposes(step),
        )

    def _transposes(self, step: CollectiveStep) -> Any:
        """Returns the seconds of the copies that XLA makes of shards, since collectives
        gather and scatter along the outermost dimension.
        """
        result: Any = 0.0
        if not self.hardware.fuses or step.packed:
            return result
        for reshard in step.reshards:
            assert reshard.src.spec is not None
            names = reshard.src.spec.shape.names
            for kinds, state, value in (
                (("all_gather", "all_to_all"), reshard.reshard.before, reshard.out),
                (("reduce_scatter", "all_to_all"), reshard.reshard.after, reshard.src),
            ):
                is_inner = isinstance(state, Sharded) and names.index(state.dim) > 0
                if reshard.kind in kinds and is_inner:
                    # The copy is written and read once more.
                    num_bytes = 2 * self.local_bytes(value)
                    result = result + num_bytes / self.hardware.memory_bandwidth
        return result
