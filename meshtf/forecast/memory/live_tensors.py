"""What the peak of memory consists of: the tensors that are live at it.

    values = live_values(timelines, stage=0)
    sum(value.bytes for value in values)        # the peak, without variables and arguments

Variables and arguments are live all the time, so `live_values` leaves them out. A timeline
has for each value of a program the first and the last step at which the value is live. Without
a pipeline there is one stage, 0.

Statistics are small tensors that the shards of an op exchange, such as the maxima of a
softmax. Residuals are the tensors that the op needs again after the exchange.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from meshtf.forecast.memory.peak_memory import (
    ALL_VALUES,
    Timeline,
    Timelines,
    is_on_stage,
    values_freed_by,
)
from meshtf.forecast.memory.value_sizes import packed_sizes
from meshtf.forecast.placed_tensors import PlacedTensors
from meshtf.forecast.report_data import (
    LiveKind,
    LiveTensors,
    PlacedTensor,
    function_of,
    without_indices,
)
from meshtf.graph import ControlFlowOp, Node, Spec, Store, Tensor
from meshtf.mesh import Placement
from meshtf.partition import CallStep, Compute, Program, Step, Value
from meshtf.partition.cost import local_bytes


class LiveValue(NamedTuple):
    """A tensor that is live at the peak of memory.

    Attributes:
      spec: the shape and dtype of the tensor; None for statistics and residuals of an op.
      placement: the placement of the tensor on the mesh.
      bytes: the bytes of one shard.
      title: the op that computes the tensor, such as "einsum", or the collective, such as
        "all_gather data".
      node: the node with the source line and module path; None: unknown.
      value: the value of the program; None: a buffer that exists during one step only.
      used_by: the last step that reads the tensor; None: the tensor is a result.
    """

    spec: Spec | None
    placement: Placement
    bytes: float
    title: str
    node: Node | None
    value: Value | None = None
    used_by: Step | None = None


def live_values(
    timelines: Timelines,
    stage: int,
    body: Program | None = None,
    step: Step | None = None,
) -> list[LiveValue]:
    """Returns the values that are live at the peak of a stage, in the order in which they
    are computed.

    Args:
      timelines: the timelines of a program.
      stage: the index of the stage.
      body: a body in the program, whose values are returned; None: those of the program.
      step: a step of these in place of that of the peak; None: that of the peak.
    """
    timeline = timelines.of(timelines.program if body is None else body)
    index = None if step is None else timeline.steps.index(step)
    return list(_live_at_peak(timelines, timeline, stage, index))


def describe_store(store: Store, kind: LiveKind, tensors: PlacedTensors) -> LiveTensors:
    """Returns the description of a variable or an argument."""
    title = "argument" if kind == "argument" else "variable"
    return LiveTensors(kind, title, path=store.name, tensor=tensors.of_store(store))


def describe_value(
    live: LiveValue, kind: LiveKind, tensors: PlacedTensors
) -> LiveTensors:
    """Returns the description of a value, with its module and source line."""
    if live.spec is None:
        tensor = PlacedTensor(shape=(), dtype="", states=(), local=(), bytes=live.bytes)
    else:
        tensor = tensors.of(live.spec, live.placement)
    if live.node is None:
        return LiveTensors(kind, live.title, path="", tensor=tensor)
    source = live.node.source
    return LiveTensors(
        kind,
        live.title,
        path="/".join(live.node.path),
        tensor=tensor,
        function=function_of(source),
        file=source.file,
        line=source.line,
    )


def group_equal(tensors: Iterable[LiveTensors]) -> tuple[LiveTensors, ...]:
    """Merges equal tensors into one entry with their count; the entry with the most bytes
    is the first.

    Indices of blocks are left out of module paths ("stack/block_*/norm"), so the tensors
    of all blocks of a stack are equal.
    """
    counts: collections.Counter[LiveTensors] = collections.Counter()
    for tensor in tensors:
        path = without_indices(tensor.path)
        counts[dataclasses.replace(tensor, path=path, count=1)] += tensor.count
    groups = [
        dataclasses.replace(tensor, count=count) for tensor, count in counts.items()
    ]
    return tuple(sorted(groups, key=lambda group: group.total, reverse=True))


def _live_at_peak(
    timelines: Timelines, timeline: Timeline, stage: int, index: int | None = None
) -> Iterator[LiveValue]:
    """Yields the values that are live at the peak of one timeline, at one stage; with `index`,
    those at this step.
    """
    if not timeline.steps:
        return
    peak_step = int(timeline.peak_steps[stage]) if index is None else index
    step = timeline.steps[peak_step]
    excluded_values = _reused_value(timelines, timeline, peak_step, stage)
    if step.call is not None and _exceeds_results(timelines, step.call, stage):
        # `_scratch` counts them as results of the body.
        excluded_values.update(step.outputs)
    for value, created_at in timeline.created_at.items():
        is_live = created_at <= peak_step <= timeline.last_use[value]
        if is_live and value not in excluded_values and is_on_stage(value, stage):
            yield _live_value(timeline, value)
    yield from _transposed_stacks(timelines, timeline, stage)
    yield from _scratch(timelines, step, stage)


def _reused_value(
    timelines: Timelines, timeline: Timeline, index: int, stage: int
) -> set[Value]:
    """Returns the input whose buffer an output of a step reuses: one value or none."""
    step = timeline.steps[index]
    if not timelines.can_overwrite_input(step):
        return set()
    output_sizes = {timeline.sizes[value] for value in step.outputs}
    candidates = [
        value
        for value in values_freed_by(step, index, timeline.last_use, timeline.sources)
        if timeline.sizes[value] in output_sizes and is_on_stage(value, stage)
    ]
    if not candidates:
        return set()
    return {max(candidates, key=lambda value: timeline.sizes[value])}


def _exceeds_results(timelines: Timelines, step: CallStep, stage: int) -> bool:
    """Returns whether the body of a call has a higher peak than the bytes of its results."""
    body = timelines.of(step.body)
    result_bytes = sum(
        _local_bytes(timelines, value)
        for value in step.outs
        if value.spec is not None and is_on_stage(value, stage)
    )
    return bool(body.peak[ALL_VALUES, stage] > result_bytes)


def _local_bytes(timelines: Timelines, value: Value) -> float:
    """Returns the bytes of one shard of a value."""
    assert value.spec is not None
    return local_bytes(value.spec, value.placement, timelines.mesh)


def _scratch(timelines: Timelines, step: Step, stage: int) -> Iterator[LiveValue]:
    """Yields the values and buffers that are live only while a step runs."""
    is_small = step.call is not None and not _exceeds_results(
        timelines, step.call, stage
    )
    if step.bodies and not is_small:
        bodies = [timelines.of(body.program) for body in step.bodies]
        largest = max(bodies, key=lambda body: float(body.peak[ALL_VALUES, stage]))
        yield from _live_at_peak(timelines, largest, stage)
        yield from _waiting_values(timelines, step, stage)
    elif step.packed:
        yield from _packed_buffer(timelines, step, stage)
    compute = step.computation
    if compute is not None and compute.computes_node:
        if compute.plan.stage in (None, stage):
            yield from _workspaces(timelines, compute)


def _packed_buffer(timelines: Timelines, step: Step, stage: int) -> Iterator[LiveValue]:
    """Yields the packed buffer of a step, such as several reductions that run as one
    collective.

    The results are unpacked into its memory, so only the bytes beyond those of the results
    count; without any, nothing is yielded.
    """
    packed_bytes = sum(
        size
        for value, size in packed_sizes(step, timelines.mesh).items()
        if is_on_stage(value, stage)
    )
    unpacked_bytes = sum(
        _local_bytes(timelines, value)
        for value in step.outputs
        if is_on_stage(value, stage)
    )
    collective = step.collective
    if packed_bytes > unpacked_bytes:
        yield LiveValue(
            spec=None,
            placement=timelines.mesh.replicated,
            bytes=packed_bytes - unpacked_bytes,
            title=f"packed {step.title if collective is None else collective.kind}",
            node=step.node,
        )


def _workspaces(timelines: Timelines, step: Compute) -> Iterator[LiveValue]:
    """Yields the temporary tensors of an op."""
    mesh = timelines.mesh
    for spec in timelines.workspace_specs(step):
        yield LiveValue(
            spec=spec,
            placement=mesh.replicated,
            bytes=local_bytes(spec, mesh.replicated, mesh),
            title=f"workspace of {step.node.op.display_name}",
            node=step.node,
        )


def _waiting_values(
    timelines: Timelines, loop: Step, stage: int
) -> Iterator[LiveValue]:
    """Yields what reductions of the last iteration read that run during the next one."""
    for value in timelines.waiting_values(loop):
        if is_on_stage(value, stage):
            yield LiveValue(
                spec=value.spec,
                placement=value.placement,
                bytes=_local_bytes(timelines, value),
                title="waits for the next iteration",
                node=loop.node,
            )


def _transposed_stacks(
    timelines: Timelines, timeline: Timeline, stage: int
) -> Iterator[LiveValue]:
    """Yields the transposed copies of stacks that are live at the peak of a timeline."""
    peak_step = int(timeline.peak_steps[stage])
    for stack, first, last in timeline.transposed:
        if first <= peak_step <= last and is_on_stage(stack, stage):
            yield LiveValue(
                spec=stack.spec,
                placement=stack.placement,
                bytes=_local_bytes(timelines, stack),
                title="transposed stack",
                node=timeline.steps[first].node,
            )


def _live_value(timeline: Timeline, value: Value) -> LiveValue:
    """Returns a value of a timeline, with its origin and its last use."""
    origin = timeline.steps[timeline.created_at[value]]
    title, node = _origin(origin, value)
    last_use = timeline.last_use[value]
    is_result = last_use == len(timeline.steps)
    return LiveValue(
        spec=value.spec,
        placement=value.placement,
        bytes=timeline.sizes[value],
        title=title,
        node=node,
        value=value,
        used_by=None if is_result else timeline.steps[last_use],
    )


def _origin(step: Step, value: Value) -> tuple[str, Node | None]:
    """Returns the name of the op or collective that computes a value, and its node."""
    if step.bodies and step.node is not None:
        return _origin_in_body(step, step.node, value)
    for reshard in step.reshards:
        if reshard.out is value:
            return reshard.title, reshard.node
    return step.title, step.node


def _origin_in_body(step: Step, node: Node, value: Value) -> tuple[str, Node]:
    """Returns the name and node of the op in the body that computes a result of a loop,
    call or branch.

    If the body returns one of its arguments, the loop, call or branch itself is the origin.
    """
    op = node.op
    assert isinstance(op, ControlFlowOp)
    results: Sequence[Tensor] = op.bodies[-1].results
    index = step.outputs.index(value)
    # Nodes without inputs are the arguments of the body.
    if index < len(results) and results[index].node.inputs:
        node = results[index].node
    return node.op.display_name, node
