"""The layers of a pipeline in the order of stages, and back.

    x = into_groups(x, schedule)     # [layers, ...] -> [stages, repeat, layers of a group, ...]
    y = out_of_groups(y, schedule)   # the other way round

A stage has consecutive layers in its shard. With repeats it computes several groups, of layers
that are not consecutive: of 8 layers on 2 stages with 2 repeats, stage 0 computes layers 0, 1, 4
and 5. They move there in two all_to_alls: in between, another dimension is sharded along the axes
of the stages. Without such a dimension, all layers are gathered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from meshtf.graph import ReadOp, Tensor, apply, context, current, is_variable
from meshtf.graph.control_flow.scan_dimension import REPEAT
from meshtf.mesh import NO_CHANGES, Layout
from meshtf.names import Dimension, Shape
from meshtf.ops.control.layout_region import Relayout
from meshtf.ops.loops.schedule import Schedule
from meshtf.ops.shapes.reshape import flatten, transpose, unflatten
from meshtf.ops.shapes.slice import concat
from meshtf.ops.shapes.slice import slice as take_elements


def into_groups(x: Tensor, schedule: Schedule) -> Tensor:
    """Returns x [..., layers, ...] as [stages, repeat, layers of a group, ...]; without repeats
    there is no dimension `repeat`.

    Groups beyond the last layer have copies of it, which have no effect: unlike zeros, they give
    no values that are not numbers.
    """
    dim = schedule.dim.name
    rest = x.shape.without(dim)
    dims, names = _groups(schedule)
    rules = _rules_of(x)
    if schedule.repeats > 1:
        x = _placed(x, rules)
    with _other_dim_is_sharded(rest, x.mesh, schedule):
        x = transpose(x, (dim, *rest.names))
        missing = schedule.num_groups * schedule.layers_of_group - schedule.dim.size
        if missing:
            last = take_elements(x, dim, begin=schedule.dim.size - 1, size=1)
            x = concat([x, *[last] * missing], dim)
        x = unflatten(x, dim, dims)
        x = transpose(x, (*names, *rest.names))
    return _placed(x, rules) if schedule.repeats > 1 else x


def out_of_groups(x: Tensor, schedule: Schedule) -> Tensor:
    """Returns x [..., stages, ..., repeat, ..., layers of a group, ...] as [layers, ...]."""
    dim = schedule.dim.name
    dims, names = _groups(schedule)
    rest = x.shape.without(*names)
    with _other_dim_is_sharded(rest, x.mesh, schedule):
        x = transpose(x, (*(d.name for d in dims), *rest.names))
        x = flatten(x, [d.name for d in dims], dim)
        if x.shape[dim] > schedule.dim.size:
            x = take_elements(x, dim, begin=0, size=schedule.dim.size)
    return x


def _groups(schedule: Schedule) -> tuple[list[Dimension], list[str]]:
    """Returns the dimensions that the layers are divided into, the major one first; and their
    names in the order in which stages have them.
    """
    stages = schedule.stages_dim
    layers = schedule.layers_dim
    if schedule.repeats == 1:
        return [stages, layers], [stages.name, layers.name]
    dims = [schedule.repeats_dim, stages, layers]
    return dims, [stages.name, REPEAT, layers.name]


def _rules_of(x: Tensor) -> Layout:
    """Returns the changes of the layout for x [layers, ...]: those for variables if it is one."""
    op = x.node.op
    if x.mesh is not None and isinstance(op, ReadOp) and is_variable(op.store):
        return x.mesh.variable_rules
    return NO_CHANGES


def _placed(x: Tensor, rules: Layout) -> Tensor:
    """Returns x [...], placed by the layout with these changes, and its gradient as well: else
    each loop would move what it uses, and optimizers their slots to where the gradient is.
    """
    with context(region=current().region.then(rules)):
        return apply(Relayout(), x)


@contextlib.contextmanager
def _other_dim_is_sharded(rest: Shape, mesh: Any, schedule: Schedule) -> Iterator[None]:
    """Within this context, another dimension of what moves is sharded along the axes of the
    stages, if there are repeats.

    Args:
      rest: the dimensions of what moves, except for the layers.
      mesh: the mesh.
      schedule: the schedule.
    """
    changes = NO_CHANGES
    if schedule.repeats > 1:
        changes = _rules_between(rest, mesh, schedule)
    with context(region=current().region.then(changes)):
        yield


def _rules_between(rest: Shape, mesh: Any, schedule: Schedule) -> Layout:
    """Returns the changes of the layout while layers move: see `_other_dim_is_sharded`."""
    rules = {schedule.dim.name: ""}
    layout = mesh.layout_in(current().region, "variable")
    choices = []
    for dim in rest:
        axes = [*layout.axes(dim.name), *schedule.axes]
        axes = [axis for axis in axes if axis in mesh.axes]
        if len(set(axes)) == len(axes) and dim.size % mesh.group_size(*axes) == 0:
            choices.append((-len(axes), dim.size, "+".join(axes), dim.name))
    if choices:
        *_, rule, name = max(choices)
        rules[name] = rule
    return Layout.changes(rules)
