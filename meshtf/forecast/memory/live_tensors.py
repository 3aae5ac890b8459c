"""What the peak of memory consists of: its variables, arguments and tensors, with their modules
and source lines.

    group_equal(describe_value(live, kind, tensors) for live in timelines.live(stage=0))
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence

from meshtf.forecast.memory.allocations import Allocation
from meshtf.forecast.placed_tensors import PlacedTensors
from meshtf.forecast.report_data import (
    LiveKind,
    LiveTensors,
    PlacedTensor,
    function_of,
    without_indices,
)
from meshtf.graph import ControlFlowOp, Node, Store, Tensor
from meshtf.partition import Step, Value


def describe_store(store: Store, kind: LiveKind, tensors: PlacedTensors) -> LiveTensors:
    """Returns the description of a variable or an argument."""
    title = "argument" if kind == "argument" else "variable"
    return LiveTensors(kind, title, path=store.name, tensor=tensors.of_store(store))


def describe_value(
    live: Allocation, kind: LiveKind, tensors: PlacedTensors
) -> LiveTensors:
    """Returns the description of a value or buffer, with its module and source line."""
    title, node = origin_of(live)
    if live.spec is None:
        tensor = PlacedTensor(shape=(), dtype="", states=(), local=(), bytes=live.bytes)
    else:
        tensor = tensors.of(live.spec, live.placement)
    if node is None:
        return LiveTensors(kind, title, path="", tensor=tensor)
    source = node.source
    return LiveTensors(
        kind,
        title,
        path="/".join(node.path),
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


def origin_of(live: Allocation) -> tuple[str, Node | None]:
    """Returns what computes a value, such as "einsum" or "all_gather data", or what a buffer is;
    and the node with the source line and module path, None if it is unknown.
    """
    if live.value is None:
        return live.title, live.step.node
    return _origin(live.step, live.value)


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
