"""Finds the loops of a program: the operations of layers that a model repeats.

    x = layer_0(x, mask)              carry x; captured mask; scanned: what is each layer's own,
    x = layer_1(x, mask)              as its variables; stacked outputs: what others read of them
    x = layer_2(x, mask)

Layers are one loop if they have the same operations, and each takes from the one before what
that took from the one before it.
"""

from __future__ import annotations

import collections
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.errors import ArgumentError, explain_error
from meshtf.tensorflow_import.graph.effects import EFFECTS
from meshtf.tensorflow_import.graph.program import Node, Program, Value
from meshtf.tensorflow_import.repeats.stacks import Stack, Stacks


@dataclasses.dataclass(frozen=True)
class Carry:
    """What a layer takes from the one before.

    Attributes:
        initial: What the first layer takes.
        result: What the first layer gives to the second.
        last: What the last layer gives.
    """

    initial: Value
    result: Value
    last: Value


@dataclasses.dataclass(eq=False)
class Loop:
    """Layers with the same operations.

    Attributes:
        num_layers: How many there are.
        nodes: Those of the first layer.
        carries: What is handed on.
        scanned: What is each layer's own.
        outputs: What operations elsewhere read of layers, but for what is handed on by the last
            one.
        captured: What all layers read alike of other operations.
        all_nodes: Those of all layers.
    """

    num_layers: int
    nodes: list[Node]
    carries: list[Carry]
    scanned: list[Stack]
    outputs: list[Stack]
    captured: list[Value]
    all_nodes: list[Node]

    @property
    def path(self) -> str:
        """The path of the first layer; "": it is several layers."""
        paths = [n.section.layer.split("/") for n in self.nodes if n.section]
        return "/".join(os.path.commonprefix(paths))

    @property
    def inputs(self) -> list[Value]:
        """What the layers read of other operations."""
        initial = [carry.initial for carry in self.carries]
        scanned = [v for stack in self.scanned for v in stack.values if v is not None]
        return [*self.captured, *initial, *scanned]

    @property
    def recomputed(self) -> object:
        """What the sections of all nodes of the first layer say that the backward pass computes
        again; None: they do not agree, or it is nothing.
        """
        groups = {
            id(group): group
            for group in (
                n.section.recomputed if n.section else None for n in self.nodes
            )
        }
        return groups.popitem()[1] if len(groups) == 1 else None


def loops_of(
    program: Program, group: int, num_layers: int, stacks: Stacks
) -> list[Loop]:
    """Returns the loops of a group of layers, one for each time that they are called, and adds
    their stacks.

    Args:
        program: The program: sections of its nodes tell which repeated layer they belong to.
        group: The index of the group.
        num_layers: How many layers are repeated.
        stacks: Those of variables; those of the loops are added.

    Raises:
        ArgumentError: The layers are no loop: they differ, or something runs between them.
    """
    calls: dict[int, dict[int, list[Node]]] = collections.defaultdict(dict)
    for node in program.nodes:
        repeat = None if node.section is None else node.section.repeat
        if repeat is not None and repeat[0] == group and node.kind != "Assign":
            _, call, layer = repeat
            calls[call].setdefault(layer, []).append(node)
    loops = []
    for layers in calls.values():
        missing = set(range(num_layers)) - set(layers)
        if missing:
            raise _refusal(
                f"of {num_layers} layers, this step calls {len(layers)}",
                next(iter(layers.values()))[0],
            )
        ordered = [layers[k] for k in range(num_layers)]
        loops.append(_Reader(program, group, ordered, stacks).loop())
    return loops


class _Reader:
    """Compares layers.

    Args:
        program: The program.
        group: The index of the group of layers.
        layers: The nodes of each layer.
        stacks: The stacks so far.
    """

    def __init__(
        self, program: Program, group: int, layers: list[list[Node]], stacks: Stacks
    ) -> None:
        self.program = program
        self.group = group
        self.layers = layers
        self.stacks = stacks
        # For each layer, the index of each value that it computes.
        self.locations = [
            {id(v): index for index, v in enumerate(_outputs(nodes))}
            for nodes in layers
        ]
        self.results = [list(_outputs(nodes)) for nodes in layers]

    def loop(self) -> Loop:
        """Returns the loop.

        Raises:
            ArgumentError: They are none.
        """
        for nodes in self.layers[1:]:
            _check_same(self.layers[0], nodes)
        carries: dict[int, Carry] = {}
        scanned: dict[int, Stack] = {}
        captured: dict[int, Value] = {}
        for node, values in self._inputs():
            kind, index = self._kind(node, values)
            first = values[0]
            if kind == "carry":
                carry = self._carry(index, first)
                if carries.setdefault(index, carry).initial is not first:
                    raise _refusal("the first one takes two tensors for one", node)
            elif kind == "scanned":
                stack = self.stacks.of(values) or self.stacks.add(
                    Stack(self.group, values)
                )
                if scanned.setdefault(id(first), stack) is not stack:
                    raise _refusal("the first one takes one tensor for two", node)
            elif kind == "captured" and first.constant is None:
                captured[id(first)] = first
        self._check_once(carries.values(), scanned, captured)
        return Loop(
            num_layers=len(self.layers),
            nodes=self.layers[0],
            carries=list(carries.values()),
            scanned=list(scanned.values()),
            outputs=self._outputs(carries),
            captured=list(captured.values()),
            all_nodes=[node for nodes in self.layers for node in nodes],
        )

    def _check_once(
        self,
        carries: Iterable[Carry],
        scanned: Mapping[int, Stack],
        captured: Mapping[int, Value],
    ) -> None:
        """Raises ArgumentError if the first layer takes one tensor in two ways."""
        for carry in carries:
            key, value = id(carry.initial), carry.initial
            if key in scanned or key in captured:
                raise _refusal(
                    f"all of them take {value.path}, and it is handed on as well",
                    self.layers[0][0],
                )
            if value.shape != carry.result.shape or value.dtype != carry.result.dtype:
                raise _refusal(
                    f"the first one takes {value.dtype.name} {list(value.shape)} and gives "
                    f"{carry.result.dtype.name} {list(carry.result.shape)}",
                    self.layers[0][0],
                )

    def _inputs(self) -> Iterator[tuple[Node, list[Value]]]:
        """Yields for each operand of the first layer its node, and the operands of all."""
        for nodes in zip(*self.layers):
            for values in zip(*(node.inputs for node in nodes)):
                yield nodes[0], list(values)

    def _kind(self, node: Node, values: Sequence[Value]) -> tuple[str, int]:
        """Returns what an operand is: "own" (computed by the layer), "carry", "captured",
        "scanned"; and the index of the result of a layer that it is.
        """
        inner = [self.locations[k].get(id(v)) for k, v in enumerate(values)]
        if inner[0] is not None and len(set(inner)) == 1:
            return "own", inner[0]
        before = [self.locations[k].get(id(v)) for k, v in enumerate(values[1:])]
        if inner[0] is None and before[0] is not None and len(set(before)) == 1:
            return "carry", before[0]
        if all(_is_same(v, values[0]) for v in values):
            return "captured", 0
        if not any(id(v) in locations for locations in self.locations for v in values):
            return "scanned", 0
        raise _refusal("they are connected in different ways", node)

    def _carry(self, index: int, initial: Value) -> Carry:
        return Carry(initial, self.results[0][index], self.results[-1][index])

    def _outputs(self, carries: Mapping[int, Carry]) -> list[Stack]:
        """Returns stacks of what operations elsewhere read.

        Raises:
            ArgumentError: A gradient by one of them is taken.
        """
        own_nodes = {id(node) for nodes in self.layers for node in nodes}
        read = {id(v) for v in self.program.outputs}
        read |= {id(v) for v in self.program.updates.values()}
        for node in self.program.nodes:
            if id(node) in own_nodes or node.kind == "Assign":
                continue
            read |= {id(v) for v in node.inputs}
            if node.kind == "Gradients":
                self._check_sources(node)
        outputs = []
        for index, values in enumerate(zip(*self.results)):
            needed = values[:-1] if index in carries else values
            if any(id(v) in read for v in needed):
                outputs.append(self.stacks.add(Stack(self.group, list(values))))
        return outputs

    def _check_sources(self, node: Node) -> None:
        for value in node.inputs[1:]:
            if any(id(value) in locations for locations in self.locations):
                raise _refusal(
                    f"a gradient by {value.path} is taken or stopped, a tensor within them",
                    node,
                )


def _outputs(nodes: Sequence[Node]) -> Iterator[Value]:
    for node in nodes:
        yield from node.outputs


def _check_same(first: Sequence[Node], other: Sequence[Node]) -> None:
    """Raises ArgumentError if nodes of two layers are not the same operations."""
    for a, b in zip(first, other):
        if a.kind in EFFECTS:
            raise _refusal(f"{a.path} prints or asserts something", a)
        layouts = [n.section.layout if n.section else None for n in (a, b)]
        if layouts[0] != layouts[1]:
            raise _refusal(
                f'`regions` says "{layouts[0]}" of one and "{layouts[1]}" of another', b
            )
        if not _is_same_node(a, b):
            raise _refusal(f"one has {_label_of(a)}, another one {_label_of(b)}", b)
    if len(first) != len(other):
        raise _refusal(
            f"one has {len(first)} operations, another one {len(other)}", other[-1]
        )


def _label_of(node: Node) -> str:
    shapes = ", ".join(str(list(v.shape or ())) for v in node.outputs)
    return f"{node.kind} {shapes} ({node.path})"


def _is_same_node(a: Node, b: Node) -> bool:
    """Whether two nodes compute the same of corresponding operands."""
    if a.kind != b.kind or len(a.inputs) != len(b.inputs):
        return False
    for x, y in zip([*a.inputs, *a.outputs], [*b.inputs, *b.outputs]):
        if x.shape != y.shape or x.dtype != y.dtype:
            return False
    # The names of bodies are among the attributes.
    if not a.bodies and not _same_attributes(a.attributes, b.attributes):
        return False
    bodies = zip(a.bodies.values(), b.bodies.values())
    return a.bodies.keys() == b.bodies.keys() and all(
        _is_same_body(x.nodes, y.nodes) for x, y in bodies
    )


def _is_same_body(first: Sequence[Node], other: Sequence[Node]) -> bool:
    return len(first) == len(other) and all(map(_is_same_node, first, other))


def _same_attributes(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return repr(sorted(a.items())) == repr(sorted(b.items()))


def _is_same(a: Value, b: Value) -> bool:
    """Whether two values are one, or equal constants."""
    if a is b:
        return True
    if a.constant is None or b.constant is None or a.dtype != b.dtype:
        return False
    return np.array_equal(a.constant, b.constant)


def _refusal(why: str, node: Node) -> ArgumentError:
    layer = "" if node.section is None else node.section.layer
    return ArgumentError(
        explain_error(
            f"the layers that `repeated` matches are no loop: {why}.",
            operation=node.path,
            layer=layer or "none",
            way_out="They must be equal but for the values of their variables, and each must "
            "take what the one before gives, with nothing between them. Match fewer or other "
            'layers; a group in the pattern, as in r"(block_\\d+)_.*", makes one of all '
            "layers for which it is the same.",
        )
    )
