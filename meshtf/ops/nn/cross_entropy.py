"""Cross entropy with labels or probabilities, over a dimension that may be cut (the
vocabulary).

Each slice tells its log-sum-exp and the logit that the label picks (0 if it is
another's row), two numbers a row. The op gives the log-sum-exp of the whole and the
probabilities as well, so that the gradient needs no communication, nor exponentials,
nor the logits:

    loss    lse - logits[label]  +  z_loss * lse**2
    p       exp(logits - lse)
    dx      p * dloss * (1 + 2 * z_loss * lse), less dloss at the label

With labels that are smoothed by s, the mean of all logits takes a share s of the
label's place.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import (
    LocalContext,
    Op,
    OpWithStatistics,
    Sample,
    Spec,
    Statistics,
    Tensor,
    apply,
    apply_all,
)
from meshtf.graph.arguments import as_tensor
from meshtf.names import Shape, accumulation_dtype, is_floating, is_integer
from meshtf.names.arguments import as_float
from meshtf.ops.common.accumulation_dtype import widen
from meshtf.ops.common.checks import require_dim, require_floating, tensor_along
from meshtf.ops.common.local_reshape import expand, reshape
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.arithmetic import add, multiply, subtract
from meshtf.ops.elementwise.unary import square
from meshtf.ops.elementwise.where_cast_clip import cast, where
from meshtf.ops.indexing.gather import gather_with_bounds
from meshtf.ops.indexing.index_bounds import bounds_checks, with_dependencies
from meshtf.ops.nn.softmax import SoftmaxGrad
from meshtf.ops.reductions.logsumexp import (
    log_sum_exp,
    reduce_logsumexp,
    shifted_exponentials,
)
from meshtf.ops.reductions.reduce import reduce_mean, reduce_sum
from meshtf.ops.shapes.reshape import arrange, transpose


class CrossEntropy(OpWithStatistics):
    """The loss of logits and labels; log-sum-exp and probabilities, which its gradient
    takes.
    """

    dim: str
    z_loss: float = 0.0
    smoothing: float = 0.0
    samples = (
        Sample(("v",), ("b:4;v:8", "int b:4")),
        Sample(("v", 0.1), ("b:4;v:8", "int b:4")),
        Sample(("v", 0.0, 0.25), ("v:8;b:4;c:2", "int c:2;b:4")),
        Sample(("v", 0.01), ("b:2;c:4;v:8", "int b:2;c:4")),
        Sample(("v", 0.1, 0.1), ("b:4;v:8", "int b:4")),
        Sample(("v",), ("b:3;v:5", "int b:3"), below=5),
        Sample(("v", 0.1), ("half b:2;v:8", "int b:2")),
    )

    def output_specs(self, logits: Spec, labels: Spec) -> tuple[Spec, ...]:
        _check(logits, labels, self.dim)
        return *self.statistics_specs(logits, labels), Spec(
            logits.shape, accumulation_dtype(logits.dtype)
        )

    def statistics_dims(self) -> tuple[str, ...]:
        return (self.dim,)

    def statistics_specs(self, logits: Spec, labels: Spec) -> tuple[Spec, ...]:
        return (
            Spec(logits.shape.without(self.dim), accumulation_dtype(logits.dtype)),
        ) * 2

    def workspace_specs(self, logits: Spec, labels: Spec) -> tuple[Spec, ...]:
        return _workspace(logits, self.dim)

    def local(self, context: LocalContext, logits: Any, labels: Any) -> tuple[Any, ...]:
        statistics = self.statistics(context, logits, labels)
        return self._from(context, *statistics, labels)

    def statistics(self, context: LocalContext, logits: Any, labels: Any) -> Statistics:
        axis, logits = context.axis(0, self.dim), widen(logits)
        labels = _labels(labels, context.inputs[1], context.inputs[0].without(self.dim))
        powers, top = shifted_exponentials(logits, [axis])
        lse = tf.math.log(tf.reduce_sum(powers, axis)) + top
        picked = _picked(logits, _own(labels, context, self.dim), axis)
        if self.smoothing:
            mean = tf.reduce_sum(logits, axis) * (1 / context.global_size(self.dim))
            picked = picked * (1 - self.smoothing) + mean * self.smoothing
        return Statistics(exchanged=(lse, picked), residuals=(powers, top))

    def local_sharded(
        self,
        context: LocalContext,
        gathered: Any,
        residuals: Any,
        logits: Any,
        labels: Any,
    ) -> tuple[Any, ...]:
        whole = log_sum_exp(gathered[0], [0]), tf.reduce_sum(gathered[1], 0)
        return self._from(context, whole, residuals, labels)

    def _from(
        self, context: LocalContext, statistics: Any, residuals: Any, labels: Any
    ) -> tuple[Any, ...]:
        lse, picked = statistics
        powers, top = residuals
        lse = with_dependencies(
            bounds_checks(context, self.dim, labels, "negative"), lse
        )
        loss = lse - picked
        loss = loss + self.z_loss * tf.square(lse) if self.z_loss else loss
        loss = _counted(
            loss,
            _labels(labels, context.inputs[1], context.outputs[0]),
            context,
            self.dim,
        )
        return loss, lse, powers * expand(tf.exp(top - lse), context.axis(0, self.dim))

    def gradient(self, dys: Any, ys: Any, logits: Any, labels: Any) -> list[Any]:
        (dloss, dlse, dp), (_, lse, p), dxs = dys, ys, []
        if dloss is not None:
            grad = CrossEntropyGrad(self.dim, self.z_loss, self.smoothing)
            dxs.append(apply(grad, dloss, p, labels, lse))
        if dlse is not None:  # these two only in gradients of gradients
            dxs.append(multiply(p, dlse))
        if dp is not None:
            dxs.append(apply(SoftmaxGrad(self.dim), dp, p))
        return [cast(add_n(dxs), logits.dtype), None]

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[0].shape.size


class CrossEntropyGrad(Op):
    """The cotangent of the logits from those of the loss: pointwise, whatever
    is cut.
    """

    dim: str
    z_loss: float = 0.0
    smoothing: float = 0.0
    samples = (
        Sample(("v",), ("b:4", "b:4;v:8", "int b:4", "b:4")),
        Sample(("v", 0.1, 0.25), ("b:4;c:2", "b:4;v:8;c:2", "int c:2;b:4", "b:4;c:2")),
        Sample(("v", 0.1), ("b:3", "b:3;v:5", "int b:3", "b:3"), below=5),
    )

    def output_specs(
        self, dloss: Spec, p: Spec, labels: Spec, lse: Spec
    ) -> tuple[Spec, ...]:
        return (p,)

    def workspace_specs(
        self, dloss: Spec, p: Spec, labels: Spec, lse: Spec
    ) -> tuple[Spec, ...]:
        return _workspace(p, self.dim)

    def local(
        self, context: LocalContext, dloss: Any, p: Any, labels: Any, lse: Any
    ) -> tuple[Any, ...]:
        axis = context.axis(1, self.dim)
        labels = _labels(labels, context.inputs[2], context.inputs[0])
        dloss = _counted(dloss, labels, context, self.dim)
        scale = dloss * (1 + 2 * self.z_loss * lse) if self.z_loss else dloss
        dx = p * expand(scale, axis)
        if self.smoothing:
            dx = dx - tf.expand_dims(
                dloss * (self.smoothing / context.global_size(self.dim)), axis
            )
            dloss = dloss * (1 - self.smoothing)
        own = _own(labels, context, self.dim)
        if axis == len(p.shape) - 1:
            return (_subtract_at(dx, own, dloss, context),)
        hot = tf.one_hot(own, context.local_size(self.dim), axis=axis, dtype=dx.dtype)
        return (dx - hot * tf.expand_dims(dloss, axis),)

    def gradient(
        self, dz: Any, z: Any, dloss: Any, p: Any, labels: Any, lse: Any
    ) -> list[Any]:
        labels = transpose(labels, lse.shape)
        counted = where(labels >= 0, dloss, 0.0)
        slope = add(multiply(lse, 2 * self.z_loss), 1.0)
        total = reduce_sum(multiply(dz, p), self.dim)
        picked = gather_with_bounds(dz, labels, self.dim, "zeros")
        if self.smoothing:
            mean = where(labels >= 0, reduce_mean(dz, self.dim), 0.0)
            picked = add(
                multiply(picked, 1 - self.smoothing), multiply(mean, self.smoothing)
            )
        by_dloss = subtract(where(labels >= 0, multiply(slope, total), 0.0), picked)
        by_p = multiply(dz, multiply(counted, slope))
        by_lse = multiply(multiply(counted, 2 * self.z_loss), total)
        return [by_dloss, by_p, None, by_lse]

    def flops(self, *xs: Spec) -> int:
        return 4 * xs[1].shape.size


def _workspace(x: Spec, dim: str) -> tuple[Spec, ...]:
    """Returns x in the type of statistics, or what finds labels if `dim` is not
    last.
    """
    y = Spec(x.shape, accumulation_dtype(x.dtype))
    return () if y.dtype == x.dtype and x.shape.names[-1] == dim else (y,)


def _check(logits: Spec, labels: Spec, dim: str) -> None:
    """Refuses logits and labels that do not fit."""
    require_dim(logits.shape, dim)
    require_floating(logits, "cross_entropy")
    if not is_integer(labels.dtype):
        raise DTypeError(f"labels are integers, rows of {dim!r}, not {labels.dtype}.")
    shape = logits.shape.without(dim)
    if set(labels.shape) != set(shape):
        raise ShapeError(
            explain_error(
                f"cross_entropy needs labels of {shape!r}, in any order, not "
                f"{labels.shape!r}.",
                way_out=f"Labels have all dimensions of the logits but {dim!r}.",
            )
        )


def _labels(labels: Any, have: Shape, want: Shape) -> Any:
    return arrange(tf.cast(labels, tf.int32), have.names, want.names)


def _own(labels: Any, context: LocalContext, dim: str) -> Any:
    """Returns labels counted from the first row of a device."""
    return labels - context.shard_offset(dim) if context.num_shards(dim) > 1 else labels


def _picked(logits: Any, own: Any, axis: int) -> Any:
    """Returns the logit of each label, counted from the first row here; 0 where it is
    not here.
    """
    size = logits.shape[axis]
    if axis == len(logits.shape) - 1:
        mine = (own >= 0) & (own < size)
        picked = widen(tf.gather(logits, tf.where(mine, own, 0), batch_dims=axis))
        return tf.where(mine, picked, tf.zeros([], picked.dtype))
    hot = tf.one_hot(own, size, True, False, axis, tf.bool)
    return tf.reduce_sum(
        tf.where(hot, widen(logits), tf.zeros([], widen(logits).dtype)), axis
    )


def _counted(loss: Any, labels: Any, context: LocalContext, dim: str) -> Any:
    """Returns the loss, or its cotangent, 0 where the label is negative; under XLA,
    which does not refuse labels, NaN where there is no such class."""
    loss = tf.where(labels < 0, tf.zeros([], loss.dtype), loss)
    if not context.compiled:
        return loss
    return tf.where(
        labels < context.global_size(dim), loss, tf.constant(math.nan, loss.dtype)
    )


def _subtract_at(x: Any, own: Any, amount: Any, context: LocalContext) -> Any:
    """Subtracts amount[rows] from x[rows, size] at own[rows], where that is one of the
    columns.
    """
    *_, size = x.shape
    mine = (own >= 0) & (own < size)
    rows = own.shape.num_elements()
    column = reshape(tf.where(mine, own, 0), [rows])
    amount = reshape(tf.where(mine, amount, tf.zeros([], amount.dtype)), [rows])
    place, x = (
        tf.stack([tf.range(rows, dtype=column.dtype), column], 1),
        reshape(x, [rows, size]),
    )
    if context.compiled:  # XLA does not know the other
        y = tf.tensor_scatter_nd_sub(x, place, amount)
    else:  # in place where nobody else holds x, which the other copies
        y = tf.raw_ops.ScatterNdNonAliasingAdd(input=x, indices=place, updates=-amount)
    return reshape(y, own.shape + [size])


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    dim: str,
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Returns the negative log-likelihood of labels: the logits' shape without `dim`.

    A negative label counts for nothing: loss 0, gradient 0. One that is too large is
    refused when the program runs, as by `gather`; under XLA loss and gradient are NaN
    there.

    Args:
      logits: floats; half floats are computed in, and give, float32.
      labels: integers, rows of `dim`, with all other dimensions of the logits; or
        floats, the wanted probabilities, which have `dim` too.
      dim: the name of the classes.
      z_loss: adds z_loss * logsumexp(logits)**2, which keeps logits from drifting.
      label_smoothing: the share of the wanted probability that all classes have alike
        (Szegedy et al., 2016, arXiv 1512.00567, section 7).

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
        return _soft_cross_entropy(logits, labels, dim, z_loss, label_smoothing)
    return apply_all(
        CrossEntropy(dim, float(z_loss), float(label_smoothing)), logits, labels
    )[0]


def _soft_cross_entropy(
    logits: Tensor, targets: Tensor, dim: str, z_loss: float, smoothing: float
) -> Tensor:
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
    logits, targets = (
        cast(x, accumulation_dtype(logits.dtype)) for x in (logits, targets)
    )
    total = reduce_sum(targets, dim)
    if smoothing:
        alike = multiply(total, smoothing / logits.shape[dim])
        targets = add(multiply(targets, 1 - smoothing), alike)
    lse = reduce_logsumexp(logits, dim)
    loss = subtract(multiply(lse, total), reduce_sum(multiply(targets, logits), dim))
    return add(loss, multiply(square(lse), z_loss)) if z_loss else loss
