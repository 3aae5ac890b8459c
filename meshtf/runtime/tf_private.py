"""The private symbols of TensorFlow that meshtf uses, all of them here.

    optimization_barrier   keeps XLA from merging what is computed again with the first time
"""

from __future__ import annotations

from typing import Any

from tensorflow.compiler.tf2xla.ops import gen_xla_ops


def optimization_barrier(xs: list[Any]) -> list[Any]:
  """Returns the same tensors, none of which XLA may use before all are there."""
  return list(gen_xla_ops.xla_optimization_barrier(input=xs))
