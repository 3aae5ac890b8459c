"""Files of other versions: older names, tensors that are no weights, and copies of tied
ones.

Example:

    tensors = Canonical(TensorFiles("gpt2"), older=[("^h", "transformer.h")],
                        no_weights=r"attn\\.bias$", copies={"lm_head.weight": "wte.weight"})
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import meshtf as mtf
from transformer.convert.rules import Tensors


class Canonical:
    """Tensors under the names that the present version gives them, without copies.

    Args:
      tensors: as a file has them.
      older: patterns of older names, and what they are replaced by, one after the
        other.
      no_weights: the pattern of names to leave out; "": none.
      copies: which name is another name's copy, where a file has both.

    Raises:
      CheckpointError: what should be copies differs.
    """

    def __init__(
        self,
        tensors: Tensors,
        older: Sequence[tuple[str, str]] = (),
        no_weights: str = "",
        copies: Mapping[str, str] | None = None,
    ) -> None:
        self._tensors = tensors
        self._names = {}
        for name in tensors:
            if not no_weights or not re.search(no_weights, name):
                self._names[_present(name, older)] = name
        for copy, name in (copies or {}).items():
            if copy in self._names and name in self._names:
                if not np.array_equal(self[copy], self[name]):
                    raise mtf.CheckpointError(
                        mtf.errors.explain_error(
                            "two tensors are tied in this model, and differ in its "
                            "files.",
                            tensors=f"{self._names[copy]}\n{self._names[name]}",
                            way_out="Tell by config.json that they are not tied, or "
                            "save the model again.",
                        )
                    )
                del self._names[copy]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[self._names[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return self._tensors.shape(self._names[name])


def _present(name: str, older: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in older:
        name = re.sub(pattern, replacement, name)
    return name
