"""A family: a class of models that another library and we have, and how to convert it.

Example:

    family = GPT2
    model = family.make(mesh, **family.read(Settings(config), names))
    arrays = to_variables(family.rules(model), shapes, family.canonical(tensors, model), sizes)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from transformer.convert.canonical_names import CanonicalTensors
from transformer.convert.config_settings import Settings
from transformer.convert.rules import Rule, Tensors
from transformer.models.base import Model

# Names of norms in files from 2018.
WEIGHT_BIAS = [(r"gamma$", "weight"), (r"beta$", "bias")]


@dataclasses.dataclass(frozen=True)
class Family:
    """One class of another library's models.

    Args:
      names: of the class in config.json; the first one is written, all are read.
      make: returns our model, for a mesh and what `read` returns.
      read: returns arguments of `make`, for the settings of config.json and the names of
        the tensors.
      write: returns the settings of config.json for our model.
      rules: returns the rules between tensors and variables of our model.
      renamed: (pattern, replacement) for names of tensors in older files.
      ignored_names: a pattern of the names of tensors that are not weights.
      copies: returns, for our model, the names of copies with those of their originals.
    """

    names: Sequence[str]
    make: Callable[..., Model]
    read: Callable[[Settings, Collection[str]], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]
    rules: Callable[[Any], list[Rule]]
    renamed: Sequence[tuple[str, str]] = ()
    ignored_names: str = ""
    copies: Callable[[Any], Mapping[str, str]] = lambda model: {}

    def canonical(self, tensors: Tensors, model: Model) -> CanonicalTensors:
        """Returns tensors under their present names, without copies."""
        return CanonicalTensors(
            tensors, self.renamed, self.ignored_names, self.copies(model)
        )

    def config(self, model: Model) -> dict[str, Any]:
        """Returns the settings of config.json for a model of this family."""
        return {
            "architectures": [self.names[0]],
            **self.write(model),
            "dtype": "float32",
        }
