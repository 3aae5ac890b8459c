"""Runs a program whose repeated layers are loops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from meshtf.graph import Tensor, context
from meshtf.names import Source
from meshtf.ops.control.stop_gradient import recompute
from meshtf.ops.loops.scan import scan
from meshtf.ops.shapes.reshape import rename, transpose
from meshtf.ops.shapes.stack import stack as stack_tensors
from meshtf.ops.shapes.stack import unstack
from meshtf.runtime.variable import Variable
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.repeats.loops import Loop
from meshtf.tensorflow_import.repeats.plan import Gradients, Repeats
from meshtf.tensorflow_import.repeats.stacks import LAYERS, Stack


class RepeatedLowering(Lowering):
    """One run of a program with repeated layers on a mesh: stacks are one tensor, with a
    dimension of layers before the others.
    """

    def __init__(self, *args: Any, repeats: Repeats) -> None:
        """Prepares a run.

        Args:
            *args: As of `Lowering`.
            repeats: The repeated layers.
        """
        super().__init__(*args)
        self._repeats = repeats
        self._stacked: dict[Stack, Any] = {}
        self._entries: dict[Stack, list[Tensor]] = {}
        # Whether a value in a stack is the entire stack.
        self._of_all_layers = False

    def read_variables(self) -> None:
        for value in self.program.on_entry.values():
            location = self._repeats.stacks.location_of(value)
            variable = self._variables[id(value.variable)]
            if location is None:
                self.set([value], [self.named_as(variable, value)])
            else:
                self._stacked[location[0]] = variable

    def run_program(self) -> None:
        for item in self._repeats.items:
            if isinstance(item, Loop):
                self._run_loop(item)
            elif isinstance(item, Gradients):
                self._run_on_stacks(item.node)
            elif isinstance(item, list):
                self._run_on_stacks(item[0])
            else:
                self.run_nodes([item])

    def updates(self) -> dict[int, Tensor]:
        program = self.program
        updates = {}
        for key, value in program.updates.items():
            entry = program.on_entry[key]
            if self._repeats.stack_of(entry) is None:
                updates[key] = self.full(value, entry)
        for stack in self._repeats.stacks:
            if stack.variables:
                values = [
                    v if v is None else program.updates.get(id(v.variable), v)
                    for v in stack.values
                ]
                if values != list(stack.values):
                    updates[id(stack.first.variable)] = self._update(stack, values)
        return updates

    def value(self, value: Value) -> Any:
        location = self._repeats.stacks.location_of(value)
        if location is None or (id(value) in self._tensors and not self._of_all_layers):
            return super().value(value)
        stack, k = location
        if self._of_all_layers:
            return self._tensor_of(stack)
        return self._as_value(value, self._entries_of(stack)[k], stack.first)

    def names_of(self, value: Value) -> list[str]:
        names = super().names_of(value)
        return names if self._stack_of(value) is None else [LAYERS, *names]

    def shape(self, value: Value) -> str:
        shape, stack = super().shape(value), self._stack_of(value)
        return shape if stack is None else f"{LAYERS}:{len(stack.values)}; {shape}"

    def _as_value(self, value: Value, x: Tensor, like: Value) -> Tensor:
        """Returns a tensor with the dimensions of another value, of an equal shape, as one with
        those of a value. Dimensions that are merged in one layer may not be so in another.
        """
        before = self._tensors.pop(id(like), None)
        self.set([like], [x])
        x = self.aligned(like, self.axes(value))
        del self._tensors[id(like)]
        if before is not None:
            self.set([like], [before])
        return x

    def _stack_of(self, value: Value) -> Stack | None:
        """Returns the stack that a value stands for now; None: it is the value of a layer."""
        location = self._repeats.stacks.location_of(value)
        return location[0] if location is not None and self._of_all_layers else None

    def _update(self, stack: Stack, values: Sequence[Value | None]) -> Tensor:
        """Returns the new value [layers, ...] of the variable that stores a stack.

        Args:
            stack: The values on entry.
            values: The new ones; None: of a layer whose variable the program does not use.
        """
        first = stack.first
        together = self._repeats.stacks.of([v for v in values if v is not None])
        if together is not None and stack.is_complete:
            with self._all_layers():
                return self.full(together.first, first)
        before = self._entries_of(stack)
        entries = [
            before[k] if v is None else self.full(v, first)
            for k, v in enumerate(values)
        ]
        return stack_tensors(entries, LAYERS)

    def _tensor_of(self, stack: Stack) -> Any:
        """Returns the tensor or variable [layers, ...] of a stack, with the names of its first
        value.
        """
        if stack not in self._stacked:
            first = stack.first
            entries = [self.full(v, first) for v in stack.present]
            self._stacked[stack] = stack_tensors(entries, LAYERS)
        x = self._stacked[stack]
        names = [LAYERS, *super().names_of(stack.first)]
        pairs = {a: b for a, b in zip(x.shape.names, names) if a != b}
        return rename(x, pairs) if pairs else x

    def _entries_of(self, stack: Stack) -> list[Tensor]:
        """Returns the tensors of the layers, with the names of the first value."""
        if stack not in self._entries:
            self._entries[stack] = list(unstack(self._tensor_of(stack), LAYERS))
        return self._entries[stack]

    @contextlib.contextmanager
    def _all_layers(self) -> Iterator[None]:
        """Within, a value in a stack is the entire stack."""
        self._of_all_layers = True
        try:
            yield
        finally:
            self._of_all_layers = False

    def _run_on_stacks(self, node: Node) -> None:
        """Runs a node for all layers."""
        with self._all_layers():
            self.run_nodes([node])
        for value in node.outputs:
            location = self._repeats.stacks.location_of(value)
            if location is not None:
                x = self._tensors.pop(id(value))
                rest = [name for name in x.shape.names if name != LAYERS]
                self._stacked[location[0]] = transpose(x, [LAYERS, *rest])

    def _run_loop(self, loop: Loop) -> None:
        """Runs layers as a scan."""
        initials = [carry.initial for carry in loop.carries]
        firsts = [stack.first for stack in loop.scanned]
        for value in loop.captured:
            if self._repeats.stacks.location_of(value) is not None:
                self.value(value)  # an entry is taken once, before the loop
        start = [self.full(value, value) for value in initials]
        xs = [as_tensor(self._tensor_of(stack)) for stack in loop.scanned]
        before = dict(self._tensors)

        def layer(carry: list[Tensor], entries: list[Tensor]) -> tuple[Any, Any]:
            self.set(initials, carry)
            self.set(firsts, entries)
            with self._with_sizes(initials, carry):
                self.run_nodes(loop.nodes)
                results = [self.full(c.result, c.initial) for c in loop.carries]
                outputs = [self.full(s.first, s.first) for s in loop.outputs]
            return results, outputs

        body: Any = layer
        recomputed = loop.recomputed
        if recomputed is not None:
            body = recompute(layer)
        outer, self._recomputed = self._recomputed, recomputed
        with context(source=Source(loop.path or LAYERS, "", 0)):
            last, stacks = scan(body, start, xs, LAYERS, loop.num_layers)
        self._recomputed = outer
        self._tensors = before
        for carry, x in zip(loop.carries, last):
            self.set([carry.last], [self._as_value(carry.last, x, carry.initial)])
        self._stacked.update(zip(loop.outputs, stacks))

    @contextlib.contextmanager
    def _with_sizes(
        self, values: Sequence[Value], tensors: Sequence[Tensor]
    ) -> Iterator[None]:
        """Within, dimensions have the sizes that some tensors have: those of a microbatch, in a
        pipeline.
        """
        before = self.sizes
        self.sizes = {}
        for value, x in zip(values, tensors):
            for atom in self.analysis.atoms_of(value):
                (name,) = self.names([atom])
                self.sizes[name, atom.size] = x.shape[name]
        try:
            yield
        finally:
            self.sizes = before


def as_tensor(x: Tensor | Variable) -> Tensor:
    """Returns a variable's value; a tensor as it is."""
    return x.tensor() if isinstance(x, Variable) else x
