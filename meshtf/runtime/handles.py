"""Handles of variables, those of a position as one tensor.

A function of hundreds of variables on each of many devices has thousands of inputs, each an op of
the graph. Between CPUs of one process a tensor can hold handles as it holds numbers.

    handles = Handles(devices, stores)
    handles.tensor(position)               # what a program takes
    handles.numbers(position, variables)   # which of them are whose
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Store


class Handles:
  """The handles of stores' variables; where positions share one, it counts as the first's.

  Args:
    devices: of each position.
    stores: whose variables.
  """

  def __init__(self, devices: Sequence[str], stores: Sequence[Store]) -> None:
    self.devices = devices
    self._own: list[dict[int, tf.Variable]] = [{} for _ in devices]
    seen: set[int] = set()
    for store in stores:
      for own, variable in zip(self._own, store.slices()):
        if variable is not None and id(variable) not in seen:
          seen.add(id(variable))
          own[id(variable)] = variable
    self.tensor = functools.cache(self._tensor)

  def spread(self) -> bool:
    """Whether several positions have some."""
    return sum(map(bool, self._own)) > 1

  def number(self, position: int) -> int:
    """Returns how many there are at a position."""
    return len(self._own[position])

  def numbers(self, position: int, variables: Sequence[tf.Variable]) -> list[int]:
    """Returns the numbers of some variables among those of a position."""
    number = {key: k for k, key in enumerate(self._own[position])}
    return [number[id(v)] for v in variables]

  def _tensor(self, position: int) -> Any:
    with tf.init_scope(), tf.device(self.devices[position]):
      return tf.raw_ops.Pack(values=[v.handle for v in self._own[position].values()], axis=0)
