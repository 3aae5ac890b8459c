"""Initial values of variables: functions of (mesh, shape, name), some of which go by name.

    as_initializer("zeros")               # meshtf.layers.initializers.zeros
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.graph import Tensor
from meshtf.mesh import Mesh
from meshtf.names import Shape
from meshtf.names.arguments import as_choice, refuse

Initializer = Callable[[Mesh, Shape, str], Tensor]

# Those that need no arguments of their own; meshtf.layers.initializers fills it.
INITIALIZERS: dict[str, Initializer] = {}


def as_initializer(given: Any) -> Initializer:
  """Returns an initializer given itself or by name. Raises ArgumentError."""
  if callable(given):
    return given
  if not isinstance(given, str):
    refuse("initializer", given, "a function of (mesh, shape, name), or the name of one",
           'Write "zeros", or mtf.layers.initializers.variance_scaling("d_model").')
  return INITIALIZERS[as_choice("initializer", given, INITIALIZERS)]
