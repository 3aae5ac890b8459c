"""A loop of a known number of steps as `mtf.scan`.

What the loop returns unchanged is used from outside: so variables keep their gradients. Lists
that it reads entry by entry are scanned over, lists that it fills are stacked outputs, and what
remains is carried.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meshtf.graph import Tensor
from meshtf.ops.loops.scan import scan
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.control.counters import Counters
from meshtf.tensorflow_import.rules.control.lists import TensorList
from meshtf.tensorflow_import.rules.layout.known_operands import entries_at


class DoesNotFit(Exception):
    """A loop uses a list in a way that no scan can."""


def run_as_scan(lowering: Lowering, node: Node, counters: Counters) -> list[Any]:
    """Returns the outputs of a loop.

    Raises:
        DoesNotFit: Nothing has run; the loop may be unrolled.
    """
    return _Scan(lowering, node, counters).run()


class _Scan:
    def __init__(self, lowering: Lowering, node: Node, counters: Counters) -> None:
        self.lowering = lowering
        self.node = node
        self.body = node.bodies["body"]
        self.counters = counters
        self.dim = lowering.unused_name("step")
        indices = range(len(self.body.inputs))
        self.fixed = {k for k in indices if self.body.outputs[k] is self.body.inputs[k]}
        left = [k for k in indices if k not in self.fixed and k not in counters.last]
        self.carried = [k for k in left if self.body.inputs[k].is_tensor]
        remaining = [n for n in self.body.nodes if id(n) not in counters.nodes]
        self.writes = {k: self._write(k) for k in left if k not in self.carried}
        self.reads = [n for n in remaining if self._is_read(n)]
        moved = {id(n) for n in [*self.writes.values(), *self.reads]}
        self.nodes = [n for n in remaining if id(n) not in moved]

    def run(self) -> list[Any]:
        """Runs the loop."""
        lowering, body = self.lowering, self.body
        outer = [lowering.value(v) for v in self.node.inputs]
        for k in self.fixed:
            lowering.set([body.inputs[k]], [outer[k]])
        scanned = self._scanned()
        entries = [body.inputs[k] for k in self.carried]
        start = [
            lowering.full(self.node.inputs[k], body.inputs[k]) for k in self.carried
        ]

        def step(carry: list[Tensor], xs: list[Tensor]) -> tuple[Any, Any]:
            lowering.set(entries, carry)
            lowering.set([value for value, _ in scanned], xs)
            lowering.run_nodes(self.nodes)
            results = [
                lowering.full(body.outputs[k], body.inputs[k]) for k in self.carried
            ]
            items = [self._item(n) for n in self.writes.values()]
            return results, items

        last, stacks = scan(
            step,
            start,
            [x for _, x in scanned],
            dim=self.dim,
            length=self.counters.steps,
        )
        results = outer
        for k, x in zip(self.carried, last):
            results[k] = x
        for (k, node), x in zip(self.writes.items(), stacks):
            results[k] = TensorList(
                tensor=self._in_order(x, np.argsort(self._indices(node))), name=self.dim
            )
        for k, x in self.counters.last.items():
            if k not in self.fixed:
                lowering.set_constant(self.node.outputs[k], x)
                results[k] = lowering.value(self.node.outputs[k])
        return results

    def _write(self, k: int) -> Node:
        """Returns the node that sets an entry of the k-th list, one in each step."""
        entry, result = self.body.inputs[k], self.body.outputs[k]
        users = [n for n in self.body.nodes if any(v is entry for v in n.inputs)]
        if len(users) != 1 or users[0].kind != "TensorListSetItem":
            raise DoesNotFit
        (node,) = users
        if node.outputs[0] is not result or not self.counters.has(node.inputs[1]):
            raise DoesNotFit
        if sorted(self._indices(node)) != list(range(self.counters.steps)):
            raise DoesNotFit
        if entry.items is None or entry.items[0] != self.counters.steps:
            raise DoesNotFit
        return node

    def _is_read(self, node: Node) -> bool:
        """Whether a node reads an entry of a list at a place that is known in each step."""
        return (
            node.kind == "TensorListGetItem"
            and any(node.inputs[0] is self.body.inputs[k] for k in self.fixed)
            and self.counters.has(node.inputs[1])
        )

    def _scanned(self) -> list[tuple[Value, Tensor]]:
        """Returns the body's values that are known in each step, and all steps of each."""
        scanned = []
        for node in self.reads:
            x = self.lowering.value(node.inputs[0]).stacked(self.dim)
            scanned.append((node.outputs[0], self._in_order(x, self._indices(node))))
        used = [v for n in self.nodes for v in n.inputs]
        used += [self.body.outputs[k] for k in self.carried]
        used += [n.inputs[2] for n in self.writes.values()]
        for value in {id(v): v for v in used}.values():
            if value.constant is None and self.counters.has(value):
                array = self.counters.all(value)
                sizes = [a.size for a in self.lowering.analysis.atoms_of(value)]
                x = constant(
                    self.lowering.mesh,
                    array.reshape([len(array), *sizes]),
                    f"{self.dim}:{len(array)}; {self.lowering.shape(value)}",
                )
                scanned.append((value, x))
        return scanned

    def _indices(self, node: Node) -> np.ndarray:
        """Returns the entry that a node reads or sets in each step."""
        return self.counters.all(node.inputs[1]).astype("int32")

    def _in_order(self, x: Tensor, indices: np.ndarray) -> Tensor:
        """Returns entries of `dim` at some indices."""
        if np.array_equal(indices, np.arange(x.shape[self.dim])):
            return x
        return entries_at(self.lowering, x, self.dim, indices)

    def _item(self, node: Node) -> Tensor:
        item = node.inputs[2]
        axes = self.lowering.axes(node.outputs[0])[1:]
        return self.lowering.full(item, item, axes)
