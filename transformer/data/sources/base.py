"""What a source is: examples to learn from and examples held out, each reached by its
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

Example = dict[str, Any]  # text, numbers, or NumPy arrays, by name
Examples = Sequence[Example]


class Source(Protocol):
    """Examples by number. Making a source reads nothing; asking for a side does."""

    def train(self) -> Examples:
        """Returns the examples to learn from."""

    def held_out(self) -> Examples:
        """Returns the examples that are held out."""


class Chosen(Sequence[Example]):
    """Some of other examples: those of the numbers in `which`, a range."""

    def __init__(self, examples: Examples, which: range) -> None:
        self._examples, self._which = examples, which

    def __len__(self) -> int:
        return len(self._which)

    @overload
    def __getitem__(self, at: int) -> Example: ...

    @overload
    def __getitem__(self, at: slice) -> Examples: ...

    def __getitem__(self, at: int | slice) -> Example | Examples:
        if isinstance(at, slice):
            return Chosen(self._examples, self._which[at])
        return self._examples[self._which[at]]
