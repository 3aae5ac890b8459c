"""Cells: what holds slices of variables, one on each device; a tf.Variable once
somebody asks.

A model on many devices has thousands of slices. TensorFlow's own objects take longer to
make than what they stand for, and a program whose devices have all handles as one
tensor asks for none.

    cells = make_cells(values, devices, trainable=True)
    cells[0].variable.assign(...)
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.runtime.tf_internals.variable_handles import make_handles, variable_of


class Cell:
    """What holds one slice.

    Args:
      handle: TensorFlow's, of shape [], which keeps it alive.
      value: the first value, which has its shape and data type.
      trainable: whether optimizers update it.
    """

    def __init__(self, handle: Any, value: Any, trainable: bool) -> None:
        self.handle, self.trainable = handle, trainable
        self.shape, self.dtype = value.shape, value.dtype

    @functools.cached_property
    def variable(self) -> tf.Variable:
        """The tf.Variable that stands for it."""
        return variable_of(self.handle, self)


def make_cells(
    values: Sequence[Any], devices: Sequence[str], trainable: bool
) -> list[Cell]:
    """Returns cells with these first values, one on each device; outside of
    functions.
    """
    handles = make_handles(values, devices)
    return [Cell(handle, value, trainable) for handle, value in zip(handles, values)]
