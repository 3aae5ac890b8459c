"""Dropout: while training, some elements become zero and the others grow to make up for them.

    drop = Dropout(0.1)
    with mtf.seed(run_seed, step):
      y = drop(x, training=True)

The mask depends on the seed, on the path of the layer, and on each element's place in the whole
tensor, so every layout drops the same elements.
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.module import Module
from meshtf.ops.random import dropout


class Dropout(Module):
  """Zeroes elements with probability `rate`, and divides the others by 1 - rate.

  Args:
    rate: the share of elements that become zero; 0 leaves all as they are.
    broadcast: names along which one mask serves all rows, such as "length".
    name: the last part of the path that its masks depend on.
  """

  def __init__(self, rate: float, broadcast: str = "", name: str = "dropout") -> None:
    super().__init__(name)
    self.rate, self.broadcast = rate, broadcast

  def __call__(self, x: Tensor, training: bool = False) -> Tensor:
    """Returns x with elements dropped, if `training`."""
    return dropout(x, self.rate, broadcast=self.broadcast) if training and self.rate else x
