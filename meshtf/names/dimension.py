"""A dimension: a name and a size.

>>> from meshtf.names import Dimension
>>> Dimension("batch", 8)
batch:8
>>> Dimension("batch", 8) == Dimension("batch", 4)     # equal name, other size
False
"""

from __future__ import annotations

import dataclasses
import operator
import re
from typing import Any

from meshtf.errors import ShapeError

_SEPARATORS = re.compile(r"[:;,\s]")  # the separators in "batch:8;d_model:512"


@dataclasses.dataclass(frozen=True)
class Dimension:
    """A name and a size, such as batch:8."""

    name: str
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ShapeError(
                f"a dimension's name must be a non-empty string, not {self.name!r}."
            )
        if _SEPARATORS.search(self.name):
            raise ShapeError(
                "a dimension's name has no ':', ';', ',' or blanks in it: "
                f"{self.name!r}."
            )
        try:
            size = operator.index(self.size)  # converts NumPy integers as well
        except TypeError:
            raise ShapeError(
                f"the size of dimension {self.name!r} must be an integer, not "
                f"{self.size!r}."
            ) from None
        if size < 0:
            raise ShapeError(
                f"the size of dimension {self.name!r} must not be negative: {size}."
            )
        object.__setattr__(self, "size", size)

    def __repr__(self) -> str:
        return f"{self.name}:{self.size}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Dimension:
        """Returns itself: it does not change, and a variable of a `Repeat` knows the
        dimension of its layers by identity.
        """
        return self
