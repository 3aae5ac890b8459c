"""The first tensor that is not finite, by running op by op.

    with mtf.checked_numbers():
      loss = model.loss(batch, training=True)            # outside of a mtf.function
      mtf.gradients([loss], model.trainable_variables)

A mtf.function that is called within runs op by op as well. An infinity that an op makes of no
floats, such as a mask, is meant; NaN never is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import NumericsError, explain_error
from meshtf.graph import Node, Tensor, context
from meshtf.names import is_floating


@contextlib.contextmanager
def checked_numbers() -> Iterator[None]:
  """Looks at all that ops make, outside of functions and in those that are called.

  Raises:
    NumericsError: an op made a number that is not finite of finite ones; with its line.
  """
  with context(checked=True):
    yield


def check_numbers(node: Node) -> None:
  """Refuses outputs that are not finite. Raises NumericsError."""
  if not all(_finite(x) for x in node.inputs):
    return                                     # told of where it came from, or meant
  for y in node.outputs:
    bad = _worst(y, infinity_too=any(is_floating(x.dtype) for x in node.inputs))
    if bad:
      raise NumericsError(explain_error(
          f"{node.op.title} made {bad}.", tensor=f"{y.dtype} {y.shape!r}",
          inputs="\n".join(_range(x) for x in node.inputs) or "none", **{"from": node.source}))


def _slices(x: Tensor) -> list[Any]:
  return [] if x.held is None or not is_floating(x.dtype) else x.held.values


def _finite(x: Tensor) -> bool:
  return all(bool(tf.reduce_all(tf.math.is_finite(part))) for part in _slices(x))


def _worst(y: Tensor, infinity_too: bool) -> str:
  for part in _slices(y):
    array = np.asarray(tf.cast(part, tf.float64))
    if np.isnan(array).any():
      return f"NaN, {np.isnan(array).sum()} of {array.size}"
    if infinity_too and np.isinf(array).any():
      return f"infinity, {np.isinf(array).sum()} of {array.size}"
  return ""


def _range(x: Tensor) -> str:
  parts = [np.asarray(tf.cast(part, tf.float64)) for part in _slices(x)]
  parts = [part for part in parts if part.size]
  if not parts:
    return f"{x.dtype} {x.shape!r}"
  return (f"{x.dtype} {x.shape!r} from {min(p.min() for p in parts):.4g} to "
          f"{max(p.max() for p in parts):.4g}")
