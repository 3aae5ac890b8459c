"""Operations that a trace has once, and a program several times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Repeat:
    """Operations that run again with another gradient and other variables.

    Attributes:
        begin: The index of the first one in the graph.
        end: One more than the index of the last one.
        gradient: The reference of the gradient's tensor, which is another one.
        variables: By identity of a variable, the one in its place.
    """

    begin: int
    end: int
    gradient: Any
    variables: Mapping[int, Any]
