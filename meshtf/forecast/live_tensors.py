"""What the peak of memory consists of: the tensors that are live at it.

    values = live_values(timelines, stage=0)         # their bytes sum up to the peak

Variables and arguments are always live, and are not among these values.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from meshtf.forecast.peak_memory import (
    Timeline,
    Timelines,
    bodies_of,
    is_on_stage,
    packed_sizes,
    values_freed_by,
    workspace_specs,
)
from meshtf.forecast.placed_tensors import PlacedTensors
from meshtf.forecast.report_data import (
    LiveKind,
    LiveTensors,
    PlacedTensor,
    without_indices,
)
from meshtf.graph import ControlFlowOp, Node, Spec, Store, Tensor
from meshtf.mesh import Placement
from meshtf.partition import (
    BranchStep,
    Bucket,
    CallStep,
    Compute,
    GatherStatisticsStep,
    LoopStep,
    ReshardStep,
    Step,
    Value,
    WindowStep,
)
from meshtf.partition.cost import local_bytes
from meshtf.partition.steps import outputs_of


class LiveValue(NamedTuple):
    """A tensor that is live at the peak of memory.

    Attributes:
      spec: its shape and type; None: statistics or residuals of an op.
      placement: how it lies on the mesh.
      bytes: of one shard.
      title: the op that computes it, or the collective.
      node: its source line and module path; None: unknown.
      value: the value of the program; None: a buffer that exists during one step.
      used_by: the last step that reads it; None: it is a result.
    """

    spec: Spec | None
    placement: Placement
    bytes: float
    title: str
    node: Node | None
    value: Value | None = None
    used_by: Step | None = None


def live_values(timelines: Timelines, stage: int) -> list[LiveValue]:
    """Returns the values that are live at the peak of a stage, in the order in which they
    are computed.
    """
    return list(_live(timelines, timelines.of(timelines.program), stage))


def describe_store(store: Store, kind: LiveKind, tensors: PlacedTensors) -> LiveTensors:
    """Returns the description of a variable or an argument."""
    title = "argument" if kind == "argument" else "variable"
    tensor = tensors.of(store.spec, store.placement)
    return LiveTensors(kind, title, store.name, tensor, "", "", 0)


def describe_value(
    live: LiveValue, kind: LiveKind, tensors: PlacedTensors
) -> LiveTensors:
    """Returns the description of a value, with its module and source line."""
    if live.spec is None:
        tensor = PlacedTensor((), "", (), (), live.bytes)
    else:
        tensor = tensors.of(live.spec, live.placement)
    if live.node is None:
        return LiveTensors(kind, live.title, "", tensor, "", "", 0)
    path = "/".join(live.node.path)
    return LiveTensors(kind, live.title, path, tensor, *live.node.source)


def group_equal(tensors: Iterable[LiveTensors]) -> tuple[LiveTensors, ...]:
    """Returns equal tensors once, with their count; those with the most bytes first.

    Tensors of blocks that differ only in their index are equal: "stack/block_*/norm".
    """
    counts: collections.Counter[LiveTensors] = collections.Counter()
    for tensor in tensors:
        path = without_indices(tensor.path)
        counts[dataclasses.replace(tensor, path=path, count=1)] += tensor.count
    groups = [dataclasses.replace(group, count=n) for group, n in counts.items()]
    return tuple(sorted(groups, key=lambda group: -group.total))


def _live(timelines: Timelines, timeline: Timeline, stage: int) -> Iterator[LiveValue]:
    if not timeline.steps:
        return
    peak_step = int(timeline.peak_steps[stage])
    step = timeline.steps[peak_step]
    absent = _reused_value(timeline, peak_step, stage)
    inner_peak = _inner_peak(timelines, step, stage)
    if isinstance(step, CallStep) and inner_peak > 0:
        absent |= set(step.outs)  # they are among the values of its body
    for value, index in timeline.created_at.items():
        is_live = index <= peak_step <= timeline.last_use[value]
        if is_live and value not in absent and is_on_stage(value, stage):
            yield _of_value(timeline, value)
    yield from _scratch(timelines, step, stage)


def _reused_value(timeline: Timeline, index: int, stage: int) -> set[Value]:
    """Returns the input whose buffer an output of a step reuses, if there is one."""
    step = timeline.steps[index]
    if not isinstance(step, Compute):
        return set()
    output_sizes = {timeline.sizes[value] for value in step.outs}
    candidates = [
        value
        for value in values_freed_by(step, index, timeline.last_use)
        if timeline.sizes[value] in output_sizes and is_on_stage(value, stage)
    ]
    largest = sorted(candidates, key=lambda value: -timeline.sizes[value])
    return set(largest[:1])


def _inner_peak(timelines: Timelines, step: Step, stage: int) -> float:
    """Returns the bytes that the body of a call needs beyond the results of the call."""
    if not isinstance(step, CallStep):
        return 0.0
    body_peak = timelines.of(step.body).peak[0, stage]
    result_bytes = sum(
        0.0 if value.spec is None else _bytes_of(timelines, value)
        for value in step.outs
        if is_on_stage(value, stage)
    )
    return float(body_peak - result_bytes)


def _bytes_of(timelines: Timelines, value: Value) -> float:
    assert value.spec is not None
    return local_bytes(value.spec, value.placement, timelines.mesh)


def _scratch(timelines: Timelines, step: Step, stage: int) -> Iterator[LiveValue]:
    """Yields what is live only while a step runs."""
    mesh = timelines.mesh
    if isinstance(step, (LoopStep, BranchStep, CallStep)):
        is_inner = not isinstance(step, CallStep)
        if is_inner or _inner_peak(timelines, step, stage) > 0:
            bodies = map(timelines.of, bodies_of(step))
            largest = max(bodies, key=lambda body: float(body.peak[0, stage]))
            yield from _live(timelines, largest, stage)
    elif isinstance(step, Bucket):
        sizes = packed_sizes(step, mesh)
        out_sizes = {
            collective.out: _bytes_of(timelines, collective.out)
            for collective in step.reductions
        }
        packed = sum(sizes[v] for v in sizes if is_on_stage(v, stage))
        unpacked = sum(out_sizes[v] for v in out_sizes if is_on_stage(v, stage))
        if packed > unpacked:
            title = f"packed {step.reductions[0].reshard.kind}"
            yield LiveValue(None, mesh.replicated, packed - unpacked, title, step.node)
    elif isinstance(step, Compute) and not step.makes_statistics:
        if step.plan.stage in (None, stage):
            for spec in workspace_specs(step, mesh):
                size = local_bytes(spec, mesh.replicated, mesh)
                title = f"workspace of {step.node.op.display_name}"
                yield LiveValue(spec, mesh.replicated, size, title, step.node)


def _of_value(timeline: Timeline, value: Value) -> LiveValue:
    """Returns what is known of a value that a step of the timeline computes."""
    step = timeline.steps[timeline.created_at[value]]
    last_use = timeline.last_use[value]
    used_by = timeline.steps[last_use] if last_use < len(timeline.steps) else None
    title, node = _origin(step, value)
    size = timeline.sizes[value]
    return LiveValue(
        value.spec, value.placement, size, title, node, value=value, used_by=used_by
    )


def _origin(step: Step, value: Value) -> tuple[str, Node | None]:
    """Returns the op or collective that computes a value, and its node."""
    if isinstance(step, Bucket):
        step = next(
            collective for collective in step.reductions if collective.out is value
        )
    if isinstance(step, ReshardStep):
        return f"{step.reshard.kind} {step.reshard.axis}", step.node
    if isinstance(step, WindowStep):
        return f"window {step.axis}", step.node
    if isinstance(step, GatherStatisticsStep):
        return f"gather_statistics {'+'.join(step.axes)}", step.node
    if isinstance(step, (LoopStep, CallStep, BranchStep)):
        return _origin_in_body(step, value)
    node: Node | None = getattr(step, "node", None)
    return ("" if node is None else node.op.display_name), node


def _origin_in_body(
    step: LoopStep | CallStep | BranchStep, value: Value
) -> tuple[str, Node]:
    """Returns the op of the body that computes a result, unless it is an argument."""
    op = step.node.op
    assert isinstance(op, ControlFlowOp)
    results: Sequence[Tensor] = op.bodies[-1].results
    index = outputs_of(step).index(value)
    inner = results[index].node if index < len(results) else step.node
    node = inner if inner.inputs else step.node
    return node.op.display_name, node
