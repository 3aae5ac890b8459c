"""Which axes divide the iterations of a loop: those that shard the dimension that it walks.

A loop without a carry may run its iterations in any order, and on any device. If the layout
shards the dimension that it walks, each device runs the iterations of its shard:

    layout "ensemble:data", mtf.map(fn, xs, "ensemble")     # a loop over 8 entries
    data:4                                                  # two iterations on each device

Scanned inputs stay sharded along these axes, and so are stacked outputs; sums over iterations are
partial sums. In the body each device has tensors of its own along these axes: they are `Varying`.
Tensors from outside that the body uses are gathered along them.

Where devices have different numbers of iterations, some run their last one again, and its terms of
sums count once. Devices without any run that of the first entry, which they get before the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from meshtf.graph import Body, Branch, Loop, Node, Op, Spec
from meshtf.graph.control_flow.body import uses_index
from meshtf.graph.op_kinds import ControlFlowOp
from meshtf.mesh import Layout, Mesh, Partial
from meshtf.mesh.shard_sizes import elements_of_shards, sizes_by_axis
from meshtf.names import Shape
from meshtf.partition.reshard_table import placement_after, reshards
from meshtf.partition.steps import FirstEntryStep, ReshardStep, Step, Value


class LoopBuilder(Protocol):
    """The part of `Builder` that says where a loop runs."""

    mesh: Mesh
    notes: dict[str, None]
    steps: list[Step]
    varying: tuple[str, ...]

    def layout_of(self, node: Node) -> Layout:
        """Returns the rules for the tensors of a node."""


def axes_of_iterations(builder: LoopBuilder, node: Node) -> tuple[str, ...]:
    """Returns the axes that divide the iterations of a loop; (): all devices run all. A loop
    without a carry that is not divided as the layout says gets a note; of several axes, minor
    ones that would leave each device as many iterations do not divide it.
    """
    op = node.op
    assert isinstance(op, Loop)
    if op.dim is None or op.num_carries:
        return ()
    placement, _conflicts = builder.mesh.place(Shape(op.dim), builder.layout_of(node))
    axes = placement.axes_of(op.dim.name)
    if not axes:
        return ()
    reason = reason_to_repeat(op)
    dividing = () if reason else axes
    if not set(dividing).isdisjoint(builder.varying):
        reason = "a loop around it is divided already."
        dividing = tuple(axis for axis in axes if axis not in builder.varying)
    counts = [
        op.dim.size,
        *sizes_by_axis(op.dim.size, [builder.mesh.axes[axis] for axis in dividing]),
    ]
    while dividing and counts[-1] == counts[-2]:
        reason = f"a device would run {counts.pop()} with and without it."
        dividing = dividing[:-1]
    if reason:
        left_out = "+".join(axis for axis in axes if axis not in dividing)
        builder.notes[
            f"{left_out} does not divide the iterations of the loop over {op.dim.name} of "
            f"{node.source}: {reason}"
        ] = None
    return dividing


def first_entries(
    builder: LoopBuilder, node: Node, values: Sequence[Value], axes: tuple[str, ...]
) -> tuple[Value | None, ...]:
    """Returns the first entry of each scanned input, on all devices, for those that have none;
    (): each has one. Appends the steps that send it. None: whatever lies in the padding will do,
    as for booleans.

    Args:
      builder: the builder of the program around the loop.
      node: the node of the loop.
      values: the scanned inputs.
      axes: the axes that divide the iterations.
    """
    op = node.op
    assert isinstance(op, Loop)
    sizes = [builder.mesh.axes[axis] for axis in axes]
    if op.dim is None or 0 not in elements_of_shards(op.dim.size, sizes):
        return ()
    entries: list[Value | None] = []
    for value in values:
        assert value.spec is not None
        if value.spec.dtype == "bool":
            entries.append(None)
            continue
        spec = Spec(value.spec.shape.without(op.dim.name), value.spec.dtype)
        entry = Value(spec, value.placement.along(axes, Partial("sum")))
        builder.steps.append(FirstEntryStep(op.dim.name, axes, value, entry, node))
        target = entry.placement.reduced()
        for reshard in reshards(builder.mesh.axes, entry.placement, target, spec.shape):
            src = entry
            entry = Value(spec, placement_after(src.placement, reshard))
            builder.steps.append(ReshardStep(reshard, src, entry, node))
        entries.append(entry)
    return tuple(entries)


def reason_to_repeat(loop: Loop) -> str:
    """Returns why all devices run all iterations of a loop, whatever the layout says; "": they
    need not.
    """
    if loop.dim is None or loop.num_carries:
        return "an iteration needs what the one before computes."
    if any(map(_branches, _ops(loop.body))):
        return "devices would take different ways through mtf.cond or mtf.while_loop."
    if uses_index(loop.body):
        return "its body uses the number of the iteration."
    return ""


def _branches(op: Op) -> bool:
    """Whether a value decides what an op runs: a branch, or a while loop, which has no `dim`."""
    return isinstance(op, Branch) or (isinstance(op, Loop) and op.dim is None)


def _ops(body: Body) -> Iterator[Op]:
    """Yields the ops of a body and of the bodies within it."""
    for node in body.nodes:
        yield node.op
        if isinstance(node.op, ControlFlowOp):
            for inner in node.op.bodies:
                yield from _ops(inner)
