"""Tensors in files of older versions of a library, by their current names.

Some files also repeat a tensor: tied weights have a copy under each name. Copies are left
out.

Example:

    tensors = CanonicalTensors(TensorFiles("gpt2"), renames=[("^h", "transformer.h")],
                               ignored_names=r"attn\\.bias$",
                               copies={"lm_head.weight": "wte.weight"})
    tensors["transformer.h.0.ln_1.weight"]     # in the file: "h.0.ln_1.weight"
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

import meshtf as mtf
from transformer.convert.rules import Tensors


class CanonicalTensors:
    """Tensors by the names of the current version, without copies.

    Args:
      tensors: the tensors of a file.
      renames: (regular expression, replacement) for names of older versions, applied in
        order.
      ignored_names: a regular expression for the names of tensors that are not weights,
        which are left out; "": none.
      copies: the name of each copy -> the name of its original; None: no copies. A file
        may have both or the original only.

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
            # The empty expression would match every name.
            is_ignored = ignored_names != "" and re.search(ignored_names, name)
            if not is_ignored:
                self._names[_current_name(name, renames)] = name
        for copy, original in (copies or {}).items():
            if copy in self._names and original in self._names:
                self._check_equal(copy, original)
                del self._names[copy]

    def _check_equal(self, copy: str, original: str) -> None:
        """Raises CheckpointError if a copy differs from its original."""
        if not np.array_equal(self[copy], self[original]):
            raise mtf.CheckpointError(
                mtf.errors.explain_error(
                    "two tensors are tied in this model, but differ in its files.",
                    tensors=f"{self._names[copy]}\n{self._names[original]}",
                    way_out="Set tie_word_embeddings to false in config.json, or save the "
                    "model again.",
                )
            )

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._tensors[self._names[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor."""
        return self._tensors.shape(self._names[name])


def _current_name(name: str, renames: Sequence[tuple[str, str]]) -> str:
    """Returns the current name of a tensor, given the name in its file."""
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name
