"""Tensors of files of older versions, under their current names and without copies.

Example:

    tensors = CanonicalTensors(TensorFiles("gpt2"), renames=[("^h", "transformer.h")],
                               ignored_names=r"attn\\.bias$",
                               copies={"lm_head.weight": "wte.weight"})
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import meshtf as mtf
from transformer.convert.rules import Tensors


class CanonicalTensors:
    """Tensors under the names of the current version, without copies.

    Args:
      tensors: the tensors of a file.
      renames: (pattern, replacement) for names of older versions, applied in order.
      ignored_names: a pattern of the names of tensors that are not weights; "": none.
      copies: the name of each copy -> the name of its original, for files with both.

    Raises:
      CheckpointError: a copy differs from its original.
    """

    def __init__(
        self,
        tensors: Tensors,
        renames: Sequence[tuple[str, str]] = (),
        ignored_names: str = "",
        copies: Mapping[str, str] | None = None,
    ) -> None:
        self._tensors = tensors
        self._names: dict[str, str] = {}  # current name -> name in the file
        for name in tensors:
            if not ignored_names or not re.search(ignored_names, name):
                self._names[_current_name(name, renames)] = name
        for copy, name in (copies or {}).items():
            if copy in self._names and name in self._names:
                if not np.array_equal(self[copy], self[name]):
                    raise mtf.CheckpointError(
                        mtf.errors.explain_error(
                            "two tensors are tied in this model, but differ in its "
                            "files.",
                            tensors=f"{self._names[copy]}\n{self._names[name]}",
                            way_out="Set tie_word_embeddings to false in config.json, or "
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


def _current_name(name: str, renames: Sequence[tuple[str, str]]) -> str:
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name
