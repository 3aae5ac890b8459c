"""Losses of a batch: scalars, means over all positions, weighted if `weights` are given.

    loss = softmax_cross_entropy(logits, labels, "vocab", z_loss=1e-4)
    loss = softmax_cross_entropy(logits, labels, "vocab", weights=weights_nonzero(labels))
    loss = sigmoid_cross_entropy(logits, targets)         # independent binary labels
    loss = mean_squared_error(predictions, targets)

For the cross entropy of each position, take `mtf.cross_entropy`.
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
      logits: the scores of the classes before the softmax, floats [..., dim].
      labels: the target classes, integers [...]; or target probabilities, floats
        [..., dim].
      dim: the name of the dimension of classes.
      z_loss: the weight of the last term.
      weights: the weight of each position, [...] or a subset of these dimensions;
        default: 1.
      label_smoothing: the fraction of the target probability that is spread evenly over
        all classes.
    """
    losses = cross_entropy(
        logits, labels, dim, z_loss=z_loss, label_smoothing=label_smoothing
    )
    return _mean(losses, weights)


def sigmoid_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Returns the mean of -t log(p) - (1 - t) log(1 - p) for p = sigmoid(logits) and
    t = targets: logits [...], targets [...] -> [].

    Args:
      logits: the scores before the sigmoid, floats [...]; for float16 and bfloat16 the
        loss is float32.
      targets: the labels, 0 to 1, with the dimensions of the logits; booleans, integers
        or floats.
      weights: the weight of each position, [...] or a subset of these dimensions;
        default: 1.
    """
    logits, targets = _as_same_type(logits, targets)
    return _mean(softplus(logits) - logits * targets, weights)


def mean_squared_error(
    predictions: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Returns the mean of (predictions - targets)**2: predictions [...], targets [...]
    -> [].

    Args:
      predictions: floats [...]; for float16 and bfloat16 the loss is float32.
      targets: a tensor with the dimensions of the predictions.
      weights: the weight of each position, [...] or a subset of these dimensions;
        default: 1.
    """
    predictions, targets = _as_same_type(predictions, targets)
    return _mean(squared_difference(predictions, targets), weights)


def weights_nonzero(labels: Tensor, dtype: object = "float32") -> Tensor:
    """Returns 1 where a label is not 0, the id of padding, else 0: the shape of labels."""
    check_tensors(labels=labels)
    return cast(labels != 0, dtype)


def _as_same_type(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns x and targets, cast to the data type of x, or to float32 if that is float16
    or bfloat16.

    Raises:
      ShapeError: x and targets have different dimensions.
    """
    check_tensors(x=x, targets=targets)
    if set(x.shape) != set(targets.shape):
        raise ShapeError(
            explain_error(
                f"targets of {targets.shape!r} do not fit {x.shape!r}.",
                way_out="Both must have the same dimensions, in any order. Use "
                "mtf.broadcast if all shall have one target.",
            )
        )
    dtype = accumulation_dtype(x.dtype)
    return cast(x, dtype), cast(targets, dtype)


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Returns the weighted mean of losses; weights may lack dimensions of losses."""
    if weights is None:
        return reduce_mean(losses)
    weights = cast(as_tensor("weights", weights), losses.dtype)
    # Each weight applies to every entry of the dimensions that weights lack.
    losses_per_weight = losses.shape.without(*weights.shape.names).size
    total_weight = reduce_sum(weights) * float(losses_per_weight)
    # If all weights are 0, the mean is 0, not NaN.
    return reduce_sum(losses * weights) / maximum(total_weight, 1e-9)
