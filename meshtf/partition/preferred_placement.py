"""The placement that an output should have, and the pipeline stage on which an op runs.

The preferred placement of an output is the one that the layout gives it. For a cotangent
it is the placement of its primal, which is the forward tensor that the cotangent belongs to,
so that later steps need no reshard. An op runs on the stage of the `with mtf.stage(...)` block
where it was recorded or, outside of such blocks, on the stage of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from meshtf.graph import Node, Op, ReshardOp, Spec, Tensor, factor_of
from meshtf.mesh import Layout, Mesh, Placement, Varying
from meshtf.mesh.state import Conflict
from meshtf.names import Shape
from meshtf.partition.cost import local_shape

_MIN_PADDING = 0.1  # of a dimension, from which on a note says so


class PlacedTensors(Protocol):
    """The part of `Builder` that `PreferredPlacement` uses: the placements of tensors
    while a program is planned.
    """

    placements: dict[Tensor, Placement]
    varying: tuple[str, ...]

    def layout_of(self, node: Node) -> Layout:
        """Returns the rules for the tensors of a node."""

    def placement_of(self, tensor: Tensor) -> Placement:
        """Returns the placement of a tensor."""


class PreferredPlacement:
    """Computes, for one program, which placement outputs should have, and on which stage
    nodes run.

    Args:
      mesh: the mesh of the program.
      tensors: the builder, which knows the placements of tensors.
      notes: remarks for the user, as the keys of a dict; remarks on dimensions that cannot
        be sharded as the layout says are added here.
    """

    def __init__(
        self, mesh: Mesh, tensors: PlacedTensors, notes: dict[str, None]
    ) -> None:
        self.mesh = mesh
        self.tensors = tensors
        self.notes = notes
        # (changes of the layout, shape, stage) -> the placement, where no rule is left out.
        self._placed: dict[tuple[Layout, Shape, int | None], Placement] = {}

    def placement(self, node: Node, y: Tensor) -> Placement:
        """Returns the placement that an output `y` of a node should have.

        In the body of a loop whose iterations are divided along axes, it varies along these
        axes. If the node has primals, its outputs are cotangents. The primal of `y` is then the
        first one with the same dimension names or, without one, the first with these names
        and others.
        """
        return self._placement(node, y).along(self.tensors.varying, Varying)

    def _placement(self, node: Node, y: Tensor) -> Placement:
        """Returns the placement that an output should have outside of such loops."""
        if node.primals and not isinstance(node.op, ReshardOp):
            names = set(y.shape.names)
            candidates = [x for x in node.primals if names.issubset(x.shape.names)]
            equal_names = [x for x in candidates if len(x.shape) == len(names)]
            if candidates:
                return self._as_primal((equal_names or candidates)[0], y)
        stage = self.stage(node)
        key = node.region, y.shape, stage
        if key in self._placed:
            return self._placed[key]
        layout = self.tensors.layout_of(node)
        placement, conflicts = self.mesh.place(y.shape, layout, stage)
        for conflict in conflicts:
            self.notes[_note(conflict, node, y)] = None
        notes = padding_notes(y.shape, placement, self.mesh)
        self.notes.update(dict.fromkeys(notes))
        if not conflicts:
            self._placed[key] = placement
        return placement

    def stage(self, node: Node) -> int | None:
        """Returns the stage on which a node runs; None: on all stages.

        In a `with mtf.stage(...)` block, that is the stage of the block. Elsewhere, if an
        input is on a stage, it is the stage of the largest primal, so that cotangents are
        added up on the stage that needs the sum; without primals, the stage of the largest
        input. Of equally large tensors, the one on the last stage decides.
        """
        if self.mesh.num_stages == 1:
            return None
        if node.stage is not None:
            return node.stage
        inputs = _sizes_and_stages(
            (x, self.tensors.placement_of(x)) for x in node.inputs
        )
        primals = _sizes_and_stages(
            (x, self._primal_placement(x)) for x in node.primals
        )
        if not inputs:
            return None
        _size, stage = max(primals) if primals else max(inputs)
        return stage

    def _primal_placement(self, primal: Tensor) -> Placement:
        """Returns the placement of a primal.

        A primal that no node needs, or that is computed anew in the backward pass, has no
        placement in the program. Then this is the placement that the layout gives it. But an
        op such as a cast keeps the shards of its input: so the gradient of a sharded variable
        in bfloat16 is reduced before it is cast to float32, which halves the bytes.
        """
        if primal in self.tensors.placements or primal.sharded_value is not None:
            return self.tensors.placement_of(primal)
        node = primal.node
        layout = self.tensors.layout_of(node)
        placement, _conflicts = self.mesh.place(primal.shape, layout, node.stage)
        if len(node.inputs) == 1 and node.inputs[0].shape == primal.shape:
            input_placement = self._primal_placement(node.inputs[0])
            if node.stage is not None and self.mesh.num_stages > 1:
                input_placement = input_placement.with_stage(
                    self.mesh.stages, node.stage
                )
            return final_placement(input_placement, placement)
        return placement

    def _as_primal(self, primal: Tensor, y: Tensor) -> Placement:
        """Returns the placement of a primal, adapted to `y`, which has some or all of its
        dimensions: y is replicated along axes that cannot shard it.
        """
        placement = self._primal_placement(primal)
        dims = y.shape.names
        if not self.mesh.pads:
            dims = tuple(
                dim.name
                for dim in y.shape
                if not dim.size % self.mesh.group_size(*placement.axes_of(dim.name))
            )
        return placement.with_dims(dims)


def final_placement(result: Placement, preferred: Placement) -> Placement:
    """Returns the placement that an output keeps until an op needs another one.

    It is the preferred placement. But along an axis where that is Replicated, the output
    keeps its state `result`, sharded or partial, unless the preferred placement shards the
    same dimension along another axis.
    """
    return preferred.filled_from(result)


def rules_for(
    op: Op, layout: Layout, ins: Sequence[Spec], outs: Sequence[Spec]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Returns the rules of a layout for the factors of an op: pairs (factor, axes)."""
    factors = {name for y in outs for name in y.shape.names}
    factors |= {factor_of(op, name) for x in ins for name in x.shape.names}
    return tuple((factor, layout.axes(factor)) for factor in sorted(factors))


def is_on_stage(placement: Placement, stage: int | None) -> bool:
    """Returns whether all devices of a stage (None: of all stages) have the tensor."""
    return placement.stage is None or placement.stage == stage


def padding_notes(shape: Shape, placement: Placement, mesh: Mesh) -> Iterator[str]:
    """Yields a remark on each dimension of which at least a tenth more is stored than it has
    elements, since its shards end with padding.
    """
    for dim in shape:
        axes = placement.axes_of(dim.name)
        num_shards = mesh.group_size(*axes)
        if not dim.size % num_shards:
            continue
        stored = local_shape(shape, placement, mesh)[dim.name] * num_shards
        if stored < (1 + _MIN_PADDING) * dim.size:
            continue
        below = dim.size // num_shards * num_shards
        sizes = f"{below} or {below + num_shards}" if below else f"{num_shards}"
        yield (
            f"{dim.name}:{dim.size} over {'+'.join(axes)} is stored as {stored}: "
            f"{stored / dim.size - 1:.0%} more memory and work; sizes without padding: "
            f"{sizes}."
        )


def _note(conflict: Conflict, node: Node, y: Tensor) -> str:
    """Returns a remark on a dimension that is not sharded as the layout says."""
    reason = "does not divide it."
    if conflict.kind == "axis":
        reason = f"already shards {conflict.other}."
    return (
        f"{y.shape!r}, made for {node.source}, keeps {conflict.dim} replicated: "
        f"{conflict.axis} {reason}"
    )


def _sizes_and_stages(
    tensors: Iterable[tuple[Tensor, Placement]],
) -> list[tuple[int, int]]:
    """Returns (number of elements, stage) for each of the tensors that is on one stage."""
    return [
        (x.shape.size, placement.stage)
        for x, placement in tensors
        if placement.stage is not None
    ]
