"""Values that stand in the place of each argument, and which of them are right for it
after all.

Example:

    for kind, value in wrong_values().items():          # "none", "text", "int", ...
      if kind not in right_kinds(annotation): ...       # must be refused by an error of meshtf
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

import meshtf as mtf
from tests.totality.calls import tensor

KINDS = ("none", "text", "int", "float", "list", "array", "tensor")

# What an annotation says, as it is written.
_RIGHT = (
    (r"\bNone\b|^Seed$", "none"),
    (r"\bstr\b|Names|ShapeLike|LayoutLike|Activation|\bPath\b", "text"),
    (r"\bint\b|\bfloat\b|Number|Rate|Cost|Seed|Memory", "int"),
    (r"\bfloat\b|Number|Rate|Cost", "float"),
    (r"Tensor|Any|Variable\b(?!\])", "tensor"),
    (r"Sequence\[(float|int)\]|Cost|Memory|Padding|Seed|Iterable\[str\]", "list"),
    (r"Sequence\[float\]|Memory", "array"),
)


@functools.cache
def wrong_values() -> dict[str, Any]:
    """Returns a value of each kind, of which most are wrong for most arguments."""
    other = mtf.Mesh("data:1")
    return {
        "none": None,
        "text": "nonsense",
        "int": 3,
        "float": 2.5,
        "list": [1, 2],
        "array": np.ones(3, "float32"),
        "tensor": tensor(other, "batch:4;d:6"),
    }


def right_kinds(annotation: str, default: Any, extra: str = "") -> set[str]:
    """Returns which kinds of values an argument may take, by its annotation, and more.

    An annotation `Any` means a tensor, unless `more` says otherwise.
    """
    kinds = {kind for pattern, kind in _RIGHT if re.search(pattern, annotation)}
    if default is None:
        kinds.add("none")
    return set(KINDS) if extra == "all" else kinds | set(extra.split())
