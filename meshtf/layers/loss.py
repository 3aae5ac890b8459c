"""Losses of a batch: scalars, means over all positions, weighted if `weights` are given.

    loss = softmax_cross_entropy(logits, labels, "vocab", z_loss=1e-4)
    loss = softmax_cross_entropy(logits, labels, "vocab", weights=weights_nonzero(labels))
    loss = sigmoid_cross_entropy(logits, targets)         # independent binary labels
    loss = mean_squared_error(predictions, targets)
    loss = weighted_mean(losses, weights)                 # of losses of your own

Negative integer labels are ignored: their weight is 0, in the sum and in the divisor. In a
microbatch (`mtf.optimizers.accumulate_gradients`, `mtf.pipeline.GPipe`) a weighted mean divides
by the weight of the entire batch, so that the mean over microbatches is that of the batch,
however the weights are distributed. Sums of such means are as well.

For the cross entropy of each position, take `mtf.cross_entropy`.
"""

from __future__ import annotations

from meshtf.errors import ShapeError, explain_error
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.names import accumulation_dtype, is_floating, is_integer
from meshtf.ops.control.batch_means import mean_over_microbatches
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
    logsumexp(logits)**2 over the labels that are not negative, a scalar.

    The last term keeps logits from drifting away from normalized log-probabilities.

    Args:
      logits: the scores of the classes before the softmax, floats [..., dim].
      labels: the target classes, integers [...], of which negative ones are ignored; or
        target probabilities, floats [..., dim].
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
    return weighted_mean(losses, label_weights(labels, weights, losses.dtype))


def sigmoid_cross_entropy(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None
) -> Tensor:
    """Returns the mean of -t log(p) - (1 - t) log(1 - p) for p = sigmoid(logits) and
    t = targets: logits [...], targets [...] -> [], over the targets that are not negative.

    Args:
      logits: the scores before the sigmoid, floats [...]; for float16 and bfloat16 the
        loss is float32.
      targets: the labels, 0 to 1, with the dimensions of the logits; booleans, floats or
        integers, of which negative ones are ignored.
      weights: the weight of each position, [...] or a subset of these dimensions;
        default: 1.
    """
    labels = targets
    logits, targets = _as_same_type(logits, labels)
    counted = label_weights(labels, weights, logits.dtype)
    return weighted_mean(softplus(logits) - logits * targets, counted)


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
    return weighted_mean(squared_difference(predictions, targets), weights)


def weighted_mean(x: Tensor, weights: Tensor | None = None) -> Tensor:
    """Returns sum(x * weights) / sum(weights), a scalar; 0 if all weights are 0.

    In a microbatch it divides by the mean weight of all microbatches of the batch instead of
    its own weight: the mean of the results over the microbatches is the result of the batch.

    Args:
      x: floats [...].
      weights: the weight of each element of x, [...] or a subset of these dimensions; None:
        1. They should depend on inputs, not on the model: see
        `mtf.mean_over_microbatches`.
    """
    x = as_tensor("x", x)
    if weights is None:
        return reduce_mean(x)
    dtype = x.dtype
    x = cast(x, accumulation_dtype(dtype))
    weights = cast(as_tensor("weights", weights), x.dtype)
    # Each weight applies to every entry of the dimensions that weights lack.
    entries_per_weight = x.shape.without(*weights.shape.names).size
    total_weight = reduce_sum(weights)
    if entries_per_weight > 1:
        total_weight = total_weight * float(entries_per_weight)
    batch_weight = mean_over_microbatches(total_weight)
    # If all weights are 0, the mean is 0, not NaN. The product of a partial sum remains one,
    # a quotient does not.
    scale = 1.0 / maximum(batch_weight, 1e-9)
    return cast(reduce_sum(x * weights) * scale, dtype)


def label_weights(
    labels: Tensor, weights: Tensor | None = None, dtype: str = "float32"
) -> Tensor | None:
    """Returns the weight of each label in a mean, floats [...]; None: all count equally.

    Negative integers are ignored, with weight 0. Labels of other types are target
    probabilities, which all count.

    Args:
      labels: labels [...]; if they are no integers, perhaps with a dimension of classes.
      weights: the weight of each label if it is not ignored, [...] or a subset of these
        dimensions; None: 1.
      dtype: the data type of the weights, if those that came are no floats.
    """
    labels = as_tensor("labels", labels)
    if not is_integer(labels.dtype) or labels.dtype.startswith("u"):
        return weights
    if weights is None:
        return cast(labels >= 0, dtype)
    weights = as_tensor("weights", weights)
    if not is_floating(weights.dtype):
        weights = cast(weights, dtype)
    return cast(labels >= 0, weights.dtype) * weights


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
