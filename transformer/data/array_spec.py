"""The shape and data type of an array, without its values."""

from __future__ import annotations

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """The shape and data type of an array. `tf.TensorSpec.from_spec` takes it.

    Attributes:
      shape: the size of each dimension.
      dtype: the data type.
      name: the name of the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    name: str
