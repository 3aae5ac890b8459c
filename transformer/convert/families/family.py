"""A kind of model that another library has as well: how its files read as ours.

Example:

    family = FAMILIES["GPT2LMHeadModel"]
    model = family.make(mesh, **family.read(Settings(config), names))
    values = to_ours(family.rules(model), shapes, family.canonical(tensors, model))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from transformer.convert.canonical_names import Canonical
from transformer.convert.config_settings import Settings
from transformer.convert.rules import Rule, Tensors
from transformer.models.base import Model

WEIGHT_BIAS = [
    (r"gamma$", "weight"),
    (r"beta$", "bias"),
]  # names of norms in files from 2018


@dataclasses.dataclass(frozen=True)
class Family:
    """One class of another library's models.

    Args:
      names: what the class is called in config.json; the first is written, the others
        are read, too.
      make: makes our model.
      read: what `make` takes besides a mesh, for what config.json says and the names of
        tensors.
      write: what config.json says of our model.
      rules: how tensors and our model's variables go together.
      older: patterns of names in older files, and what they are now.
      no_weights: the pattern of names that are no weights.
      copies: which name is another's copy, where a file has both.
    """

    names: Sequence[str]
    make: Callable[..., Model]
    read: Callable[[Settings, Collection[str]], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]
    rules: Callable[[Any], list[Rule]]
    older: Sequence[tuple[str, str]] = ()
    no_weights: str = ""
    copies: Callable[[Any], Mapping[str, str]] = lambda model: {}

    def canonical(self, tensors: Tensors, model: Model) -> Canonical:
        """Returns tensors under the names of now, without copies."""
        return Canonical(tensors, self.older, self.no_weights, self.copies(model))

    def config(self, model: Model) -> dict[str, Any]:
        """Returns what config.json says of a model of this family."""
        return {
            "architectures": [self.names[0]],
            **self.write(model),
            "dtype": "float32",
        }
