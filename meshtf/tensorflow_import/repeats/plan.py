"""What runs of a program with repeated layers, and in which order."""

from __future__ import annotations

import dataclasses
import graphlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from meshtf.errors import ArgumentError, explain_error
from meshtf.tensorflow_import.graph.program import Node, Program, Value
from meshtf.tensorflow_import.repeats.loops import Loop, loops_of
from meshtf.tensorflow_import.repeats.packs import packs_of
from meshtf.tensorflow_import.repeats.stacks import Repeated, Stack, Stacks


@dataclasses.dataclass(eq=False)
class Gradients:
    """Gradients, of which those by the values of a stack are one.

    Attributes:
        node: `mtf.gradients` by the first value of each stack.
        original: The program's node.
    """

    node: Node
    original: Node


# What runs: a node; nodes of all layers as one, on stacks; gradients; a loop.
Item = Node | list[Node] | Gradients | Loop


class Repeats:
    """The repeated layers of a program.

    Attributes:
        stacks: What is one tensor for all layers.
        items: What runs, in order.
    """

    def __init__(
        self,
        program: Program,
        repeated: Sequence[Repeated],
        is_uniform: Callable[[Node], bool],
    ) -> None:
        """Finds loops and stacks.

        Args:
            program: The program.
            repeated: The groups of layers.
            is_uniform: Whether a node computes the same of an entry of a stack as of the stack.

        Raises:
            ArgumentError: The layers are no loop.
        """
        num_layers = [group.num_layers for group in repeated]
        self.stacks = Stacks()
        for k, group in enumerate(repeated):
            for stack in group.stacks(k, program.on_entry):
                self.stacks.add(stack)
        loops = [
            loop
            for k, count in enumerate(num_layers)
            for loop in loops_of(program, k, count, self.stacks)
        ]
        in_loops = {id(node) for loop in loops for node in loop.all_nodes}
        rest = [
            node
            for node in program.nodes
            if id(node) not in in_loops and node.kind != "Assign"
        ]
        gradients = [self._gradients(node) for node in rest if node.kind == "Gradients"]
        packs = packs_of(rest, num_layers, self.stacks, is_uniform)
        in_packs = {id(node) for pack in packs for node in pack}
        single: list[Item] = [
            node
            for node in rest
            if id(node) not in in_packs and node.kind != "Gradients"
        ]
        ordered = _in_order(program, [*single, *packs, *gradients, *loops])
        self.items = self._needed(program, ordered)

    def stack_of(self, entry: Value) -> Stack | None:
        """Returns the stack of variables that a value on entry is in; None: in none."""
        location = self.stacks.location_of(entry)
        return location[0] if location is not None and location[0].variables else None

    def _needed(self, program: Program, items: Sequence[Item]) -> list[Item]:
        """Leaves out what nothing needs: what layers compute alike is needed once."""
        live = {id(v) for v in (*program.outputs, *program.updates.values())}
        needed: list[Item] = []
        for item in reversed(items):
            outputs = [v for node in _nodes_of(item) for v in node.outputs]
            if outputs and not any(id(v) in live for v in outputs):
                continue
            needed.append(item)
            for value in _inputs_of(item[0] if isinstance(item, list) else item):
                location = self.stacks.location_of(value)
                values = [value] if location is None else location[0].present
                live.update(id(v) for v in values)
        return needed[::-1]

    def _gradients(self, node: Node) -> Gradients:
        """Returns the gradients of a node, and adds stacks of those by values of a stack."""
        count = len(node.outputs)
        sources = node.inputs[1 : count + 1]
        firsts: dict[int, tuple[Value, Value]] = {}
        by_stack: dict[Stack, list[Value | None]] = {}
        for source, output in zip(sources, node.outputs):
            location = self.stacks.location_of(source)
            if location is None:
                firsts[id(source)] = (source, output)
                continue
            stack, k = location
            firsts.setdefault(id(stack), (source, output))
            values = by_stack.setdefault(stack, [None] * len(stack.values))
            values[k] = output
        for stack, values in by_stack.items():
            self.stacks.add(Stack(stack.group, values))
        pairs = list(firsts.values())
        inputs = [
            node.inputs[0],
            *(source for source, _ in pairs),
            *node.inputs[count + 1 :],
        ]
        outputs = [output for _, output in pairs]
        return Gradients(
            dataclasses.replace(node, inputs=inputs, outputs=outputs), node
        )


def _in_order(program: Program, items: Iterable[Item]) -> list[Item]:
    """Returns items in an order in which they can run, near that of the program."""
    indices = {id(node): k for k, node in enumerate(program.nodes)}
    makers: dict[int, Item] = {}
    by_key: dict[int, Item] = {}
    for item in items:
        by_key[id(item)] = item
        for node in _nodes_of(item):
            makers.update((id(value), item) for value in node.outputs)
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for item in by_key.values():
        read = (makers.get(id(value)) for value in _inputs_of(item))
        sorter.add(id(item), *(id(x) for x in read if x is not None and x is not item))
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        raise _interrupted([by_key[key] for key in error.args[1]]) from None
    ordered: list[Item] = []
    waiting: list[tuple[int, int]] = []
    while sorter.is_active():
        for key in sorter.get_ready():
            first = min(indices[id(node)] for node in _nodes_of(by_key[key]))
            heapq.heappush(waiting, (first, key))
        _, key = heapq.heappop(waiting)
        ordered.append(by_key[key])
        sorter.done(key)
    return ordered


def _nodes_of(item: Item) -> list[Node]:
    """Returns the program's nodes that an item stands for."""
    if isinstance(item, Loop):
        return item.all_nodes
    if isinstance(item, Gradients):
        return [item.original]
    return item if isinstance(item, list) else [item]


def _inputs_of(item: Item) -> list[Value]:
    if isinstance(item, Loop):
        return item.inputs
    return [value for node in _nodes_of(item) for value in node.inputs]


def _interrupted(items: Sequence[Any]) -> ArgumentError:
    """Returns the error of operations that run between layers."""
    between = [node.path for item in items for node in _nodes_of(item)]
    loops = {node.path for x in items if isinstance(x, Loop) for node in x.all_nodes}
    paths = [path for path in dict.fromkeys(between) if path not in loops]
    return ArgumentError(
        explain_error(
            "the layers that `repeated` matches are no loop: one takes what was computed from "
            "what another one gave, between them.",
            operations=", ".join(paths[:5]) or "those of other layers",
            way_out="Match layers around these operations as well.",
        )
    )
