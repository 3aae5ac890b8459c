"""Branches: `mtf.cond`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meshtf.errors import ArgumentError
from meshtf.graph import Tensor
from meshtf.ops.control.cond_and_while_loop import cond
from meshtf.ops.elementwise.arithmetic import equal, not_equal
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Body, Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.control.loops import same_axes
from meshtf.tensorflow_import.rules.table import Rule, rule


@rule("Case", "If", "StatelessCase", "StatelessIf")
class Branches(Rule):
    """One of several bodies, as a computed predicate or index says."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        for body in node.bodies.values():
            for inner, outer in zip(body.inputs, node.inputs[1:]):
                same_axes(analysis, inner, outer)
            analysis.run(body.nodes)
        for k, output in enumerate(node.outputs):
            first, *other_results = [body.outputs[k] for body in node.bodies.values()]
            same_axes(analysis, output, first)
            if output.is_tensor:
                for result in other_results:
                    analysis.unify_all(analysis.of(output), analysis.of(result))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        outer = [lowering.value(v) for v in node.inputs[1:]]
        bodies = list(node.bodies.values())
        passed = [_passed(bodies, k) for k in range(len(node.outputs))]
        computed = [k for k, index in enumerate(passed) if index is None]
        if not all(node.outputs[k].is_tensor for k in computed):
            raise ArgumentError(
                f"the branches at {node.path} return lists of tensors or resources: return "
                "tensors"
            )

        def branch(body: Body) -> list[Tensor]:
            lowering.set(body.inputs, outer)
            lowering.run_nodes(body.nodes)
            return [lowering.full(body.outputs[k], node.outputs[k]) for k in computed]

        index = lowering.tensor(node.inputs[0])
        if node.kind.endswith("If") and index.dtype != "bool":
            index = not_equal(index, 0)
        branches = [functools.partial(branch, body) for body in bodies]
        results = iter(_choose(index, branches))
        return [next(results) if k is None else outer[k] for k in passed]


def _passed(bodies: list[Body], k: int) -> int | None:
    """Returns which input is the k-th result of all branches, if one is."""
    indices = {
        next((j for j, v in enumerate(body.inputs) if v is body.outputs[k]), None)
        for body in bodies
    }
    return indices.pop() if len(indices) == 1 else None


def _choose(
    index: Tensor, branches: Sequence[Callable[[], Any]], first: int = 0
) -> Any:
    """Returns the results of the branch that `index` says: a boolean (the first one if it is
    true), or an integer (the last one if there is no such branch). `first`: the index of the
    first one.
    """
    if index.dtype == "bool":
        return cond(index, *branches)
    if len(branches) == 1:
        return branches[0]()
    return cond(
        equal(index, first),
        branches[0],
        lambda: _choose(index, branches[1:], first + 1),
    )
