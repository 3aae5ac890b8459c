"""Losses of a batch: one number, the mean over all positions, or over those that count.

    loss = softmax_cross_entropy(logits, labels, "vocab", z_loss=1e-4)
    loss = softmax_cross_entropy(logits, labels, "vocab", weights=weights_nonzero(labels))
    loss = sigmoid_cross_entropy(logits, truths)          # any number of classes at once
    loss = mean_squared_error(predictions, targets)

For a cross entropy at each position, take `mtf.cross_entropy`.
"""

from __future__ import annotations

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.names import accumulation_dtype
from meshtf.ops.elementwise.arithmetic import maximum, squared_difference
from meshtf.ops.elementwise.unary import softplus
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.nn.cross_entropy import cross_entropy
from meshtf.ops.reductions.reduce import reduce_mean, reduce_sum


def softmax_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    dim: str,
    z_loss: float = 0.0,
    weights: Tensor | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Returns the mean of logsumexp(logits) - logits[label] + z_loss *
    logsumexp(logits)**2.

    The last term keeps logits from drifting away from normalized log-probabilities.

    Args:
      logits: [..., dim].
      labels: integers [...], each a row of `dim`; or floats [..., dim], the wanted
        probabilities.
      dim: the name of the classes.
      z_loss: the weight of the last term.
      weights: what each position counts, [...] or some of these dimensions; default:
        all the same.
      label_smoothing: the share of the wanted probability that all classes have alike.
    """
    return _mean(cross_entropy(logits, labels, dim, z_loss, label_smoothing), weights)


def sigmoid_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Returns the mean of -t log(p) - (1 - t) log(1 - p) for p = sigmoid(logits), t =
    targets.

    Args:
      logits: floats; half floats are computed in, and give, float32.
      targets: 0, 1 or what lies between, with the dimensions of the logits; bool, ints
        or floats.
      weights: what each position counts, with some of these dimensions; default: all
        the same.
    """
    logits, targets = _alike(logits, targets)
    return _mean(softplus(logits) - logits * targets, weights)


def mean_squared_error(
    predictions: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Returns the mean of (predictions - targets)**2; arguments as in
    `sigmoid_cross_entropy`.
    """
    return _mean(squared_difference(*_alike(predictions, targets)), weights)


def weights_nonzero(labels: Tensor, dtype: object = "float32") -> Tensor:
    """Returns 1 where a label is not 0, the number of padding, and else 0."""
    check_tensors(labels=labels)
    return cast(labels != 0, dtype)


def _alike(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    check_tensors(x=x, targets=targets)
    if set(x.shape) != set(targets.shape):
        raise ShapeError(
            explain_error(
                f"targets of {targets.shape!r} do not fit {x.shape!r}.",
                way_out="Both have the same dimensions, in any order, so that none "
                "meets another's target. Use mtf.broadcast if that is meant.",
            )
        )
    return cast(x, accumulation_dtype(x.dtype)), cast(
        targets, accumulation_dtype(x.dtype)
    )


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the mean of losses; a weight counts once for each loss that it is for."""
    if weights is None:
        return reduce_mean(losses)
    weights = cast(as_tensor("weights", weights), losses.dtype)
    times = losses.shape.without(*weights.shape.names).size
    return reduce_sum(losses * weights) / maximum(
        reduce_sum(weights) * float(times), 1e-9
    )
