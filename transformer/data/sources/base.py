"""The interface of sources: training and held-out examples with random access.

Example:

    source.train()[5]                # the example with index 5, a dict of fields
    len(source.held_out())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, overload

Example = dict[str, Any]  # a text, integer, float or NumPy array for each field
Examples = Sequence[Example]


class Source(Protocol):
    """Training and held-out examples; no file is read before they are asked for."""

    def train(self) -> Examples:
        """Returns the training examples."""

    def held_out(self) -> Examples:
        """Returns the held-out examples."""


class Subset(Sequence[Example]):
    """The examples at the indices of a range; each is read at access.

    Args:
      examples: all examples.
      indices: the indices of the subset.
    """

    def __init__(self, examples: Examples, indices: range) -> None:
        self._examples = examples
        self._indices = indices

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> Examples: ...

    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return Subset(self._examples, self._indices[index])
        return self._examples[self._indices[index]]
