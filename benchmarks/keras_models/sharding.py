"""How much of a step's work a layout shards."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import meshtf as mtf
from meshtf.forecast.analysis import forecast
from meshtf.graph import ControlFlowOp, Node, Role
from meshtf.graph.op_kinds import factor_of

_BATCH = re.compile(r"batch(_\d+)?")
# As many dimensions are tried as the first one of a second axis.
_STARTS = 5


class Work:
    """The FLOPs of a training step, on one device and under layouts.

    Attributes:
        batches: The names of batches: "batch", and "batch_2" where examples have parts, as a
            graph has nodes and edges.
        by_batch: The share that a data axis shards by these.
        by_model: The share that a second axis shards.
        names: What this second axis shards.
    """

    def __init__(self, step: Any, batch: Any) -> None:
        """Records a step for some layouts; nothing runs.

        Args:
            step: A `meshtf.keras.step.TracedStep`.
            batch: A batch for it.
        """
        self._step = step
        self._batch = batch
        self._nodes: Sequence[Node] = ()
        self._one = self._flops(mtf.Mesh("data:1", devices="abstract"))
        names = set(step.program.names.values())
        self.batches = sorted(name for name in names if _BATCH.fullmatch(name))
        self.by_batch = self._share("data", 4, self.batches)
        self.names: list[str] = []
        self.by_model = 0.0
        for chosen in _candidates(self._nodes, names.difference(self.batches)):
            share = self._share("model", 2, chosen)
            if share > self.by_model:
                self.names, self.by_model = chosen, share

    def _share(self, axis: str, size: int, names: Sequence[str]) -> float:
        """Returns the share of FLOPs that an axis shards, by names."""
        layout = "; ".join(f"{name}:{axis}" for name in names)
        mesh = mtf.Mesh(f"{axis}:{size}", layout, devices="abstract")
        return (1 - self._flops(mesh) / self._one) / (1 - 1 / size)

    def _flops(self, mesh: mtf.Mesh) -> float:
        """Returns the FLOPs of one device."""
        step = self._step
        arguments = (step._placed.next_seed(), *step.arguments(self._batch))
        recorded = step.function.record_on(mesh, arguments, {}).recorded
        self._nodes = recorded.nodes
        return forecast("step", recorded.nodes, recorded.results, mesh).flops()


def _candidates(nodes: Sequence[Node], names: set[str]) -> list[list[str]]:
    """Returns lists of dimensions that one axis can shard: no tensor has two of a list.

    Each list begins with one of the dimensions that share most FLOPs, and goes on with the
    one that shares most of those that are left.
    """
    work: list[tuple[float, set[str]]] = []
    foes: dict[str, set[str]] = collections.defaultdict(set)
    sizes: dict[str, int] = {}
    for node in _all(nodes):
        for tensor in (*node.inputs, *node.outputs):
            for dim in tensor.shape:
                sizes[dim.name] = math.gcd(dim.size, sizes.get(dim.name, 0))
                foes[dim.name].update(tensor.shape.names)
        flops = node.op.flops(*(x.spec for x in node.inputs))
        work.append((flops, _shardable(node) & names))
    even = {name for name in names if sizes.get(name, 1) % 2 == 0}
    starts = [name for name, _ in _gains(work, even).most_common(_STARTS)]
    chosen = [_chosen(work, even, foes, start) for start in starts]
    return list({frozenset(names): names for names in chosen}.values())


def _chosen(
    work: list[tuple[float, set[str]]],
    free: set[str],
    foes: dict[str, set[str]],
    start: str,
) -> list[str]:
    """Returns a list of dimensions that begins with `start`."""
    chosen: list[str] = []
    best = start
    while True:
        chosen.append(best)
        free = free - foes[best]
        work = [(flops, names) for flops, names in work if best not in names]
        gains = _gains(work, free)
        if not gains:
            return chosen
        best = gains.most_common(1)[0][0]


def _gains(
    work: Sequence[tuple[float, set[str]]], free: set[str]
) -> collections.Counter[str]:
    """Returns for names the FLOPs that they share."""
    gains: collections.Counter[str] = collections.Counter()
    for flops, names in work:
        for name in names & free if flops else ():
            gains[name] += flops
    return gains


def _shardable(node: Node) -> set[str]:
    """Returns names along which a node's work can be sharded."""
    names = {name for x in (*node.inputs, *node.outputs) for name in x.shape.names}
    return {
        name
        for name in names
        if node.op.role(factor_of(node.op, name)) is not Role.UNSHARDED
    }


def _all(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields nodes, and those of bodies of loops and branches."""
    for node in nodes:
        if isinstance(node.op, ControlFlowOp):
            for body in node.op.bodies:
                yield from _all(body.graph.nodes)
        else:
            yield node
