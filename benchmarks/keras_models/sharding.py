"""How much of a step's work a layout shards."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from typing import Any

import meshtf as mtf
from meshtf.forecast.analysis import forecast
from meshtf.graph import ControlFlowOp, Node, Role
from meshtf.graph.op_kinds import factor_of

# Sharding these by a model axis would only be more of what the data axis does.
_NOT_BY_MODEL = ("batch",)


class Work:
    """The FLOPs of a training step, on one device and under layouts.

    Attributes:
        by_batch: The share that "batch:data" shards.
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
        self.names = _best_names(self._nodes)
        self.by_batch = self._share("data:4", "batch:data", 4)
        layout = "; ".join(f"{name}:model" for name in self.names)
        self.by_model = self._share("model:2", layout, 2) if self.names else 0.0

    def _share(self, axes: str, layout: str, size: int) -> float:
        mesh = mtf.Mesh(axes, layout, devices="abstract")
        return (1 - self._flops(mesh) / self._one) / (1 - 1 / size)

    def _flops(self, mesh: mtf.Mesh) -> float:
        """Returns the FLOPs of one device."""
        step = self._step
        arguments = (step._placed.next_seed(), *step.arguments(self._batch))
        recorded = step.function.record_on(mesh, arguments, {}).recorded
        self._nodes = recorded.nodes
        return forecast("step", recorded.nodes, recorded.results, mesh).flops()


def _best_names(nodes: Sequence[Node]) -> list[str]:
    """Returns dimensions of which no tensor has two, and that share most FLOPs: one after the
    other, the one that shards most of those that are not sharded yet.
    """
    remaining: list[tuple[float, set[str]]] = []
    foes: dict[str, set[str]] = collections.defaultdict(set)
    sizes: dict[str, int] = {}
    for node in _all(nodes):
        names: set[str] = set()
        for tensor in (*node.inputs, *node.outputs):
            for dim in tensor.shape:
                sizes[dim.name] = math.gcd(dim.size, sizes.get(dim.name, 0))
                foes[dim.name].update(tensor.shape.names)
            names.update(
                name
                for name in tensor.shape.names
                if node.op.role(factor_of(node.op, name)) is not Role.UNSHARDED
            )
        flops = node.op.flops(*(x.spec for x in node.inputs))
        remaining.append((flops, names))
    chosen: list[str] = []
    while True:
        gains: collections.Counter[str] = collections.Counter()
        for flops, names in remaining:
            gains.update({a: flops for a in names if _is_free(a, chosen, foes, sizes)})
        best = max(gains, key=gains.get, default=None)
        if best is None or not gains[best]:
            return chosen
        chosen.append(best)
        remaining = [(f, names) for f, names in remaining if best not in names]


def _is_free(
    name: str, chosen: list[str], foes: dict[str, set[str]], sizes: dict[str, int]
) -> bool:
    return (
        name not in _NOT_BY_MODEL
        and sizes[name] % 2 == 0
        and not any(name in foes[other] for other in chosen)
    )


def _all(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yields nodes, and those of bodies of loops and branches."""
    for node in nodes:
        if isinstance(node.op, ControlFlowOp):
            for body in node.op.bodies:
                yield from _all(body.graph.nodes)
        else:
            yield node
