"""Cross entropy with labels or probabilities, over a dimension that may be sharded, such as
the vocabulary.

    loss = mtf.cross_entropy(logits, labels, "vocab")     # [batch vocab], [batch] -> [batch]

Shards exchange two numbers for each label: their log-sum-exp (lse), and the logit of the
label, which is 0 if the label lies in another shard. The op also returns the global
log-sum-exp and the probabilities p. So the gradient needs no communication, no exponentials
and no logits:

    loss       lse - logits[label]  +  z_loss * lse**2
    p          exp(logits - lse)
    dlogits    p * dloss * (1 + 2 * z_loss * lse), minus dloss at the label

With label smoothing s, logits[label] in the loss is replaced by (1 - s) times itself plus s
times the mean of all logits.

`statistics` computes both of a shard, and `outputs` the outputs from those of all shards.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    PaddingValue,
    Sample,
    Spec,
    Specs,
    Statistics,
    Tensor,
    apply,
    apply_all,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import accumulation_dtype, is_floating, is_integer
from meshtf.names.arguments import as_float
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import require_dim, require_floating, tensor_along
from meshtf.ops.common.local_reshape import expand
from meshtf.ops.common.op_bases import _ExchangesAlongDim
from meshtf.ops.common.shards_with_padding import zero_padding
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.unary import square
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import gather_with_bounds
from meshtf.ops.indexing.index_bounds import bounds_checks, with_dependencies
from meshtf.ops.nn.label_kernels import (
    arrange_labels,
    logits_at_labels,
    mask_invalid,
    subtract_at,
    to_local_labels,
)
from meshtf.ops.nn.softmax import SoftmaxGrad
from meshtf.ops.reductions.logsumexp import (
    log_sum_exp,
    reduce_logsumexp,
    shifted_exponentials,
)
from meshtf.ops.reductions.reduce import reduce_mean, reduce_sum
from meshtf.ops.shapes.reshape import transpose


class CrossEntropy(_ExchangesAlongDim):
    """The cross entropy with integer labels: logits [*batch, dim], labels [*batch] ->
    loss and log-sum-exp [*batch], and probabilities [*batch, dim], which the gradient reads.

    Attributes:
      dim: the dimension of classes.
      z_loss: the factor of the squared log-sum-exp that is added to the loss.
      smoothing: the label smoothing, in [0, 1).
    """

    z_loss: float = 0.0
    smoothing: float = 0.0
    num_statistics = 2
    # Test inputs: (dim, z_loss, smoothing), then each input's kind of values and shape.
    conformance_samples = (
        Sample(("v",), ("b:4;v:8", "int b:4")),
        Sample(("v", 0.1), ("b:4;v:8", "int b:4")),
        Sample(("v", 0.0, 0.25), ("v:8;b:4;c:2", "int c:2;b:4")),
        Sample(("v", 0.01), ("b:2;c:4;v:8", "int b:2;c:4")),
        Sample(("v", 0.1, 0.1), ("b:4;v:8", "int b:4")),
        Sample(("v",), ("b:3;v:5", "int b:3"), below=5),
        Sample(("v", 0.1, 0.2), ("v:7;b:3", "int b:3")),
        Sample(("v", 0.1), ("half b:2;v:8", "int b:2")),
    )

    def output_specs(self, logits: Spec, labels: Spec) -> Specs:
        _check_logits_and_labels(logits, labels, self.dim)
        loss, lse = self.statistics_specs(logits, labels)
        return (loss, lse, Spec(logits.shape, accumulation_dtype(logits.dtype)))

    def padding_value(self, input_index: int, factor: str) -> PaddingValue:
        if input_index == 1:
            return 0.0  # labels must be valid
        return -math.inf if factor == self.dim else None

    def workspace_specs(self, logits: Spec, labels: Spec) -> Specs:
        return _workspace_specs(logits, self.dim)

    def statistics(self, context: LocalContext, logits: Any, labels: Any) -> Statistics:
        axis = context.axis(0, self.dim)  # in the shape of logits, input 0
        logits = widen(logits)
        logits_shape, labels_shape = context.inputs
        labels = arrange_labels(labels, labels_shape, logits_shape.without(self.dim))
        exponentials, largest = shifted_exponentials(logits, [axis])
        lse = tf.math.log(tf.reduce_sum(exponentials, axis)) + largest
        local_labels = to_local_labels(labels, context, self.dim)
        label_logit = logits_at_labels(logits, local_labels, axis)
        if self.smoothing:
            # The sum over shards is the mean of all logits.
            total = tf.reduce_sum(zero_padding(context, self.dim, logits, axis), axis)
            mean = total * (1 / context.global_size(self.dim))
            label_logit = label_logit * (1 - self.smoothing) + mean * self.smoothing
        return Statistics(
            exchanged=(lse, label_logit), residuals=(exponentials, largest)
        )

    def reduced(self, context: LocalContext, gathered: Any) -> LocalTensors:
        lses, label_logits = gathered  # both [shards, *batch]
        return log_sum_exp(lses, axes=[0]), tf.reduce_sum(label_logits, axis=0)

    def outputs(
        self, context: LocalContext, statistics: Any, residuals: Any, *xs: Any
    ) -> LocalTensors:
        lse, label_logit = statistics  # both [*batch]
        exponentials, largest = residuals
        _logits, labels = xs
        # Negative labels are ignored; labels that are too large are errors.
        checks = bounds_checks(context, self.dim, labels, out_of_range="negative")
        lse = with_dependencies(checks, lse)
        loss = lse - label_logit
        if self.z_loss:
            loss = loss + self.z_loss * tf.square(lse)
        _logits_shape, labels_shape = context.inputs
        loss_shape, _lse_shape, _p_shape = context.outputs
        labels = arrange_labels(labels, labels_shape, loss_shape)
        loss = mask_invalid(loss, labels, context, self.dim)
        scale = expand(tf.exp(largest - lse), context.axis(0, self.dim))
        return loss, lse, exponentials * scale

    def gradient(self, dys: Any, ys: Any, logits: Any, labels: Any) -> Cotangents:
        dloss, dlse, dp = dys
        _loss, lse, p = ys
        dlogits_terms = []
        if dloss is not None:
            grad = CrossEntropyGrad(self.dim, self.z_loss, self.smoothing)
            dlogits_terms.append(apply(grad, dloss, p, labels, lse))
        # The other outputs have cotangents only in gradients of gradients.
        if dlse is not None:
            dlogits_terms.append(p * dlse)
        if dp is not None:
            dlogits_terms.append(apply(SoftmaxGrad(self.dim), dp, p))
        return [cast(add_n(dlogits_terms), logits.dtype), None]

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[0].shape.size


class CrossEntropyGrad(Op):
    """The gradient of `CrossEntropy`: dloss [*batch], p [*batch, dim], labels and lse
    [*batch] -> dlogits [*batch, dim].

    It is pointwise, so it needs no communication under any layout. The attributes are those
    of `CrossEntropy`.
    """

    dim: str
    z_loss: float = 0.0
    smoothing: float = 0.0
    conformance_samples = (
        Sample(("v",), ("b:4", "b:4;v:8", "int b:4", "b:4")),
        Sample(("v", 0.1, 0.25), ("b:4;c:2", "b:4;v:8;c:2", "int c:2;b:4", "b:4;c:2")),
        Sample(("v", 0.1), ("b:3", "b:3;v:5", "int b:3", "b:3"), below=5),
    )

    def output_specs(self, dloss: Spec, p: Spec, labels: Spec, lse: Spec) -> Specs:
        return (p,)

    def workspace_specs(self, dloss: Spec, p: Spec, labels: Spec, lse: Spec) -> Specs:
        return _workspace_specs(p, self.dim)

    def local(
        self, context: LocalContext, dloss: Any, p: Any, labels: Any, lse: Any
    ) -> LocalTensors:
        axis = context.axis(1, self.dim)  # in the shape of p, input 1
        dloss_shape, _p_shape, labels_shape, _lse_shape = context.inputs
        labels = arrange_labels(labels, labels_shape, dloss_shape)
        dloss = mask_invalid(dloss, labels, context, self.dim)
        scale = dloss
        if self.z_loss:
            scale = dloss * (1 + 2 * self.z_loss * lse)
        dlogits = p * expand(scale, axis)
        if self.smoothing:
            share_of_class = self.smoothing / context.global_size(self.dim)
            dlogits = dlogits - tf.expand_dims(dloss * share_of_class, axis)
            dloss = dloss * (1 - self.smoothing)
        local_labels = to_local_labels(labels, context, self.dim)
        if axis == len(p.shape) - 1:
            return (subtract_at(dlogits, local_labels, dloss, context),)
        local_size = context.local_size(self.dim)
        one_hot = tf.one_hot(local_labels, local_size, axis=axis, dtype=p.dtype)
        return (dlogits - one_hot * tf.expand_dims(dloss, axis),)

    def gradient(
        self, dz: Any, z: Any, dloss: Any, p: Any, labels: Any, lse: Any
    ) -> Cotangents:
        # z, the output, is dloss * (slope * p - target), where slope = 1 + 2 * z_loss * lse.
        labels = transpose(labels, lse.shape)
        is_valid = labels >= 0
        valid_dloss = where(is_valid, dloss, 0.0)
        slope = lse * (2 * self.z_loss) + 1.0
        dz_times_p = reduce_sum(dz * p, self.dim)
        dz_times_target = gather_with_bounds(dz, labels, self.dim, out_of_range="zeros")
        if self.smoothing:
            mean = where(is_valid, reduce_mean(dz, self.dim), 0.0)
            dz_times_target = dz_times_target * (1 - self.smoothing)
            dz_times_target = dz_times_target + mean * self.smoothing
        p_term = where(is_valid, slope * dz_times_p, 0.0)
        ddloss = p_term - dz_times_target
        dp = dz * (valid_dloss * slope)
        dlse = valid_dloss * (2 * self.z_loss) * dz_times_p
        return [ddloss, dp, None, dlse]

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[1].shape.size


def _workspace_specs(x: Spec, dim: str) -> tuple[Spec, ...]:
    """Returns the spec of the temporary tensor of a local kernel, or () if it has none.

    The tensor is x in the data type of accumulation if that is wider, or the one-hot labels
    if `dim` is not the last dimension.
    """
    temporary = Spec(x.shape, accumulation_dtype(x.dtype))
    is_widened = temporary.dtype != x.dtype
    has_one_hot = x.shape.names[-1] != dim
    if is_widened or has_one_hot:
        return (temporary,)
    return ()


def _check_logits_and_labels(logits: Spec, labels: Spec, dim: str) -> None:
    """Checks the inputs of `CrossEntropy`. Raises ShapeError or DTypeError."""
    require_dim(logits.shape, dim)
    require_floating(logits, "cross_entropy")
    if not is_integer(labels.dtype):
        raise DTypeError(
            f"labels are integers, indices of {dim!r}, not {labels.dtype}."
        )
    shape = logits.shape.without(dim)
    if set(labels.shape) != set(shape):
        raise ShapeError(
            explain_error(
                f"cross_entropy needs labels of {shape!r}, in any order, not "
                f"{labels.shape!r}.",
                way_out=f"Labels have all dimensions of the logits but {dim!r}.",
            )
        )


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    dim: str,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Returns the negative log-likelihood of labels: logits [..., dim], labels [...] ->
    loss [...].

    A negative label is ignored: its loss and gradient are 0. A label that is too large is
    an error when the program runs, as in `gather`; under XLA its loss and gradient are NaN.

    Args:
      logits: unnormalized log-probabilities, floats. For float16 and bfloat16, the loss is
        computed and returned in float32.
      labels: integers, indices of `dim`, with all other dimensions of the logits; or
        floats, the target probabilities, which have `dim` too.
      dim: the name of the dimension of classes.
      z_loss: the factor of logsumexp(logits)**2, which is added to the loss and keeps
        logits from drifting.
      label_smoothing: the share of the target probability that is distributed evenly over
        all classes (Szegedy et al., 2016, arXiv 1512.00567, section 7).

    Raises:
      ShapeError: logits lack `dim`, or labels do not have all other dimensions.
      DTypeError: logits are not floats.
      PlanError: `label_smoothing` is not in [0, 1).
    """
    logits, dim = tensor_along(logits, dim, "logits")
    labels = as_tensor("labels", labels)
    z_loss = as_float("z_loss", z_loss)
    label_smoothing = as_float("label_smoothing", label_smoothing)
    if not 0 <= label_smoothing < 1:
        raise PlanError(
            "label_smoothing is a share, at least 0 and below 1, not "
            f"{label_smoothing}."
        )
    if is_floating(labels.dtype):
        return _soft_cross_entropy(
            logits, labels, dim, z_loss=z_loss, smoothing=label_smoothing
        )
    op = CrossEntropy(dim, z_loss=float(z_loss), smoothing=float(label_smoothing))
    loss, _lse, _p = apply_all(op, logits, labels)
    return loss


def _soft_cross_entropy(
    logits: Tensor, targets: Tensor, dim: str, z_loss: float, smoothing: float
) -> Tensor:
    """Returns the cross entropy with target probabilities, [...].

    Args:
      logits: floats [..., dim].
      targets: the target probabilities [..., dim].
      dim, z_loss, smoothing: the arguments of `cross_entropy`.
    """
    require_floating(logits.spec, "cross_entropy")
    if set(targets.shape) != set(logits.shape):
        raise ShapeError(
            explain_error(
                f"probabilities of {targets.shape!r} do not fit logits of "
                f"{logits.shape!r}.",
                way_out="They have the same dimensions, in any order; labels without "
                f'"{dim}" are integers.',
            )
        )
    dtype = accumulation_dtype(logits.dtype)
    logits = cast(logits, dtype)
    targets = cast(targets, dtype)
    total = reduce_sum(targets, dim)
    if smoothing:
        uniform = total * (smoothing / logits.shape[dim])
        targets = targets * (1 - smoothing) + uniform
    lse = reduce_logsumexp(logits, dim)
    loss = lse * total - reduce_sum(targets * logits, dim)
    if z_loss:
        return loss + square(lse) * z_loss
    return loss
