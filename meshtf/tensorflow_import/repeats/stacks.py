"""Values that each repeated layer has, as one tensor: a stack."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshtf.tensorflow_import.graph.program import Value

LAYERS = "layers"  # the dimension of a stack


@dataclasses.dataclass(eq=False)
class Stack:
    """Values that correspond to each other, one of each layer.

    Attributes:
        group: The index of the group of layers.
        values: By the index of the layer; None: that layer has none.
        variables: The variables of which they are the values on entry, which one variable of the
            mesh stores; none: they are other values.
    """

    group: int
    values: Sequence[Value | None]
    variables: Sequence[Any] = ()

    @property
    def first(self) -> Value:
        """The first value, whose names the stack has."""
        return self.present[0]

    @property
    def present(self) -> list[Value]:
        """The values that there are."""
        return [v for v in self.values if v is not None]

    @property
    def is_complete(self) -> bool:
        """Whether each layer has a value."""
        return None not in self.values


class Stacks:
    """The stacks of a program, by the values in them."""

    def __init__(self) -> None:
        self._locations: dict[int, tuple[Stack, int]] = {}

    def add(self, stack: Stack) -> Stack:
        """Adds a stack. Returns it."""
        for k, value in enumerate(stack.values):
            if value is not None:
                self._locations[id(value)] = (stack, k)
        return stack

    def location_of(self, value: Value) -> tuple[Stack, int] | None:
        """Returns the stack that a value is in, and the index of its layer."""
        return self._locations.get(id(value))

    def of(self, values: Sequence[Value]) -> Stack | None:
        """Returns the stack of exactly these values, in order."""
        locations = [self.location_of(v) for v in values]
        stacks = {id(location[0]) if location else None for location in locations}
        if len(stacks) != 1 or locations[0] is None:
            return None
        in_order = [location[1] for location in locations if location] == list(
            range(len(values))
        )
        return locations[0][0] if in_order else None

    def __iter__(self) -> Iterator[Stack]:
        yield from dict.fromkeys(stack for stack, _ in self._locations.values())


@dataclasses.dataclass(frozen=True)
class Repeated:
    """A group of layers that a model repeats, of which sections of operations tell.

    Attributes:
        num_layers: How many there are.
        variables: Variables that correspond to each other, one of each layer: lists of them.
    """

    num_layers: int
    variables: Sequence[Sequence[Any]]

    def stacks(self, group: int, on_entry: Mapping[int, Value]) -> list[Stack]:
        """Returns the stacks of those variables that a program uses.

        Args:
            group: The index of the group of layers.
            on_entry: The program's values on entry, by the variable's identity.
        """
        stacks = []
        for together in self.variables:
            values = [on_entry.get(id(v)) for v in together]
            if any(value is not None for value in values):
                stacks.append(Stack(group, values, together))
        return stacks
