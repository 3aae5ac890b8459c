"""How much longer ops take than predicted, by measured steps of similar local sizes.

>>> from meshtf.hardware.profile import MeasuredLocalStep
>>> steps = [
...     MeasuredLocalStep({"batch": 2, "d_ff": 64}, factor=1.5),
...     MeasuredLocalStep({"batch": 8, "d_ff": 64}, factor=1.2),
... ]
>>> round(float(factor_at(steps, {"batch": 8, "d_ff": 64})), 2)
1.2
>>> round(float(factor_at(steps, {"batch": 4, "d_ff": 64})), 2)
1.34
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from meshtf.hardware.profile import MeasuredLocalStep

_LEAST_DISTANCE = 1e-4  # squared: nearer steps count equally


def factor_at(steps: Sequence[MeasuredLocalStep], sizes: Mapping[str, Any]) -> Any:
    """Returns the factor of measured steps at given local sizes: the mean of their logarithms,
    weighted by the inverse square of the distance in doublings of sizes (Shepard, "A
    two-dimensional interpolation function for irregularly-spaced data", 1968).

    Args:
      steps: at least one measured step.
      sizes: name of a dimension -> its local size, a number or an array of many meshes; a
        dimension that is not there has size 1.
    """
    total: Any = 0.0
    total_weight: Any = 0.0
    for step in steps:
        squares: Any = 0.0
        for name in {*step.sizes, *sizes}:
            doublings = np.log2(sizes.get(name, 1)) - np.log2(step.sizes.get(name, 1))
            squares = squares + doublings**2
        weight = 1.0 / np.maximum(squares, _LEAST_DISTANCE)
        total = total + weight * np.log(step.factor)
        total_weight = total_weight + weight
    return np.exp(total / total_weight)
