"""The loss of a classifier or a language model: one number.

    loss = softmax_cross_entropy(logits, labels, "vocab", z_loss=1e-4)

For a loss at each position, take `mtf.cross_entropy`.
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.ops.arithmetic import maximum
from meshtf.ops.loss import cross_entropy
from meshtf.ops.reduce import reduce_mean, reduce_sum


def softmax_cross_entropy(logits: Tensor, labels: Tensor, dim: str, z_loss: float = 0.0,
                          weights: Tensor | None = None) -> Tensor:
  """Returns the mean of logsumexp(logits) - logits[label] + z_loss * logsumexp(logits)**2.

  The last term keeps logits from drifting away from normalized log-probabilities.

  Args:
    logits: [..., dim].
    labels: integers [...], each a row of `dim`.
    dim: the name of the classes.
    z_loss: the weight of the last term.
    weights: what each position counts, [...]; default: all the same.
  """
  losses = cross_entropy(logits, labels, dim, z_loss)
  if weights is None:
    return reduce_mean(losses)
  return reduce_sum(losses * weights) / maximum(reduce_sum(weights), 1e-9)
