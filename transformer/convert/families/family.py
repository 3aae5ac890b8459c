"""A family: the conversion of one class of Hugging Face's models to ours, and back.

Example:

    family = GPT2
    model = family.model_class(mesh, **family.read_config(Settings(config), names))
    tensors = family.canonical(tensors, model)               # by their current names
    arrays = to_variables(family.rules(model), shapes, tensors, sizes)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from transformer.convert.canonical_names import CanonicalTensors
from transformer.convert.config_settings import Settings
from transformer.convert.rules import Rule, Tensors
from transformer.models.base import Model

# Renames of norms' tensors in files from 2018: (regular expression, replacement).
NORM_RENAMES = [(r"gamma$", "weight"), (r"beta$", "bias")]


@dataclasses.dataclass(frozen=True)
class Family:
    """The conversion of one class of models.

    Args:
      class_names: the names of Hugging Face's class in config.json. All are read; the
        first is written.
      model_class: our class, called with the mesh and the arguments from `read_config`.
      read_config: a function (settings of config.json, names of tensors) -> the arguments
        of `model_class` by name.
      write_config: a function of our model, which returns the settings of config.json.
      rules: a function of our model, which returns the rules between tensors and
        variables.
      renames: (regular expression, replacement) for the names of tensors in files of
        older versions.
      ignored_names: a regular expression for the names of tensors that are not weights.
      copies: a function of our model, which returns the name of each tensor that files
        may repeat -> the name of its original.
      accepts: a function (config.json, names of tensors) -> whether files of this class are
        of this family; where several families have a class, the first one takes them.
    """

    class_names: Sequence[str]
    model_class: type[Any]
    read_config: Callable[[Settings, Collection[str]], dict[str, Any]]
    write_config: Callable[[Any], dict[str, Any]]
    rules: Callable[[Any], list[Rule]]
    renames: Sequence[tuple[str, str]] = ()
    ignored_names: str = ""
    copies: Callable[[Any], Mapping[str, str]] = lambda model: {}
    accepts: Callable[[Mapping[str, Any], Collection[str]], bool] = (
        lambda config, names: True
    )

    def canonical(self, tensors: Tensors, model: Model) -> CanonicalTensors:
        """Returns the tensors of a model by their current names, without copies."""
        return CanonicalTensors(
            tensors,
            renames=self.renames,
            ignored_names=self.ignored_names,
            copies=self.copies(model),
        )

    def config(self, model: Model) -> dict[str, Any]:
        """Returns the settings of config.json for a model of this family."""
        return {
            "architectures": [self.class_names[0]],
            **self.write_config(model),
        }
