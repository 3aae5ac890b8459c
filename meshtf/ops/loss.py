"""Cross entropy with labels or probabilities, over a dimension that may be cut (the vocabulary).

Each slice tells its log-sum-exp and the logit that the label picks (0 if it is another's row), two
numbers a row. The op keeps the log-sum-exp of the whole, so the gradient needs no communication:

    loss    lse - logits[label]  +  z_loss * lse**2
    dx      exp(logits - lse) * dloss * (1 + 2 * z_loss * lse), less dloss at the label

With labels that are smoothed by s, the mean of all logits takes a share s of the label's place.

On one CPU this is faster than TensorFlow's fused op, which writes a gradient in the forward pass
([512, 4096], forward and backward: 12 against 16 ms; compiled by XLA 3.9 against 5.5 ms).
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from meshtf.errors import DTypeError, PlanError, ShapeError, explain_error
from meshtf.graph import At, Op, Role, Sample, Spec, Tensor, apply, apply_all
from meshtf.names import Shape, is_floating, is_integer
from meshtf.ops.adding import add_n
from meshtf.ops.arithmetic import add, multiply, subtract
from meshtf.ops.choosing import cast, where
from meshtf.ops.indexing import gather
from meshtf.ops.reduce import (
  log_sum_exp,
  reduce_logsumexp,
  reduce_mean,
  reduce_sum,
  require_floating,
  wide,
  widen,
)
from meshtf.ops.reshape import arrange, require_dim, transpose
from meshtf.ops.shaping import expand, reshape
from meshtf.ops.unary import exp, square


class _OfClasses(Op):
  """What the loss and its gradient know."""

  dim: str
  z_loss: float = 0.0
  smoothing: float = 0.0

  def flops(self, *xs: Spec) -> int:
    return 4 * max(x.shape.size for x in xs)


class CrossEntropy(_OfClasses):
  """The loss of logits and labels, and the log-sum-exp, which is there for the gradient."""

  samples = (Sample(("v",), ("b:4;v:8", "int b:4")), Sample(("v", 0.1), ("b:4;v:8", "int b:4")),
             Sample(("v", 0.0, 0.25), ("v:8;b:4;c:2", "int c:2;b:4")),
             Sample(("v", 0.01), ("b:2;c:4;v:8", "int b:2;c:4")),
             Sample(("v", 0.1, 0.1), ("b:4;v:8", "int b:4")),
             Sample(("v",), ("b:3;v:5", "int b:3"), below=5),
             Sample(("v", 0.1), ("half b:2;v:8", "int b:2")))

  def out(self, logits: Spec, labels: Spec) -> tuple[Spec, ...]:
    _check(logits, labels, self.dim)
    return self.tells(logits, labels)

  def role(self, factor: str) -> Role:
    return Role.SAME if factor == self.dim else Role.MAP

  def shared(self, factor: str) -> bool:
    return factor == self.dim

  def tells(self, logits: Spec, labels: Spec) -> tuple[Spec, ...]:
    return (Spec(logits.shape.without(self.dim), wide(logits.dtype)),) * 2

  def scratch(self, logits: Spec, labels: Spec) -> tuple[Spec, ...]:
    return (Spec(logits.shape, wide(logits.dtype)),)

  def share(self, at: At, logits: Any, labels: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    axis = at.axis(0, self.dim)
    labels = _labels(labels, at.inputs[1], at.inputs[0].without(self.dim))
    lse = log_sum_exp(widen(logits), [axis])
    picked = _picked(logits, _own(labels, at, self.dim), axis)
    if self.smoothing:
      mean = tf.reduce_sum(widen(logits), axis) * (1 / at.whole(self.dim))
      picked = picked * (1 - self.smoothing) + mean * self.smoothing
    return (lse, picked), ()

  def local(self, at: At, logits: Any, labels: Any) -> tuple[Any, ...]:
    if at.told is None:
      lse, picked = self.share(at, logits, labels)[0]
    else:
      lse, picked = log_sum_exp(at.told[0], [0]), tf.reduce_sum(at.told[1], 0)
    loss = lse - picked
    if self.z_loss:
      loss = loss + self.z_loss * tf.square(lse)
    return _counted(loss, _labels(labels, at.inputs[1], at.outputs[0]), at.whole(self.dim)), lse

  def gradient(self, dys: Any, ys: Any, logits: Any, labels: Any) -> list[Any]:
    (dloss, dlse), (_, lse), dxs = dys, ys, []
    if dloss is not None:
      grad = CrossEntropyGrad(self.dim, self.z_loss, self.smoothing)
      dxs.append(apply(grad, dloss, logits, labels, lse))
    if dlse is not None:                            # only in gradients of gradients
      dxs.append(cast(multiply(_probability(logits, lse), dlse), logits.dtype))
    return [add_n(dxs), None]


class CrossEntropyGrad(_OfClasses):
  """The cotangent of the logits from those of the loss: pointwise, whatever is cut."""

  samples = (Sample(("v",), ("b:4", "b:4;v:8", "int b:4", "b:4")),
             Sample(("v", 0.1, 0.25), ("b:4;c:2", "b:4;v:8;c:2", "int c:2;b:4", "b:4;c:2")),
             Sample(("v", 0.1), ("b:3", "b:3;v:5", "int b:3", "b:3"), below=5))

  def out(self, dloss: Spec, logits: Spec, labels: Spec, lse: Spec) -> tuple[Spec, ...]:
    return (logits,)

  def scratch(self, dloss: Spec, logits: Spec, labels: Spec, lse: Spec) -> tuple[Spec, ...]:
    return (Spec(logits.shape, wide(logits.dtype)),)

  def local(self, at: At, dloss: Any, logits: Any, labels: Any, lse: Any) -> tuple[Any, ...]:
    axis, size = at.axis(1, self.dim), at.size(self.dim)
    labels = _labels(labels, at.inputs[2], at.inputs[0])
    dloss = tf.where(labels < 0, tf.zeros([], dloss.dtype), dloss)
    scale = dloss * (1 + 2 * self.z_loss * lse) if self.z_loss else dloss
    dx = tf.exp(widen(logits) - expand(lse, axis)) * expand(scale, axis)
    if self.smoothing:
      dx = dx - tf.expand_dims(dloss * (self.smoothing / at.whole(self.dim)), axis)
      dloss = dloss * (1 - self.smoothing)
    own = _own(labels, at, self.dim)
    if axis == len(logits.shape) - 1:
      dx = _subtract_at(dx, own, dloss, size)
    else:
      dx = dx - tf.one_hot(own, size, axis=axis, dtype=dx.dtype) * tf.expand_dims(dloss, axis)
    return (tf.cast(dx, logits.dtype),)

  def gradient(self, dz: Any, z: Any, dloss: Any, logits: Any, labels: Any, lse: Any) -> list[Any]:
    dz, labels = cast(dz, lse.dtype), transpose(labels, lse.shape)
    counted = where(labels >= 0, dloss, 0.0)
    slope = add(multiply(lse, 2 * self.z_loss), 1.0)
    weighted = multiply(dz, _probability(logits, lse))
    total = reduce_sum(weighted, self.dim)
    picked = gather(dz, labels, self.dim, zero_negative=True)
    if self.smoothing:
      mean = where(labels >= 0, reduce_mean(dz, self.dim), 0.0)
      picked = add(multiply(picked, 1 - self.smoothing), multiply(mean, self.smoothing))
    by_dloss = subtract(where(labels >= 0, multiply(slope, total), 0.0), picked)
    scale = multiply(counted, slope)
    by_lse = subtract(multiply(multiply(counted, 2 * self.z_loss), total), multiply(scale, total))
    return [by_dloss, cast(multiply(weighted, scale), logits.dtype), None, by_lse]


def _check(logits: Spec, labels: Spec, dim: str) -> None:
  """Refuses logits and labels that do not fit."""
  require_dim(logits.shape, dim)
  require_floating(logits, "cross_entropy")
  if not is_integer(labels.dtype):
    raise DTypeError(f"labels are integers, rows of {dim!r}, not {labels.dtype}.")
  shape = logits.shape.without(dim)
  if set(labels.shape) != set(shape):
    raise ShapeError(explain_error(
        f"cross_entropy needs labels of {shape!r}, in any order, not {labels.shape!r}.",
        way_out=f"Labels have all dimensions of the logits but {dim!r}."))


def _labels(labels: Any, have: Shape, want: Shape) -> Any:
  return arrange(tf.cast(labels, tf.int32), have.names, want.names)


def _own(labels: Any, at: At, dim: str) -> Any:
  """Returns labels counted from the first row of a device."""
  return labels - at.offset(dim) if at.parts(dim) > 1 else labels


def _picked(logits: Any, own: Any, axis: int) -> Any:
  """Returns the logit of each label, counted from the first row here; 0 where it is not here."""
  size = logits.shape[axis]
  if axis == len(logits.shape) - 1:
    mine = (own >= 0) & (own < size)
    picked = widen(tf.gather(logits, tf.where(mine, own, 0), batch_dims=axis))
    return tf.where(mine, picked, tf.zeros([], picked.dtype))
  hot = tf.one_hot(own, size, True, False, axis, tf.bool)
  return tf.reduce_sum(tf.where(hot, widen(logits), tf.zeros([], widen(logits).dtype)), axis)


def _counted(loss: Any, labels: Any, classes: int) -> Any:
  """Returns the loss, 0 where the label is negative and NaN where there is no such class."""
  loss = tf.where(labels < 0, tf.zeros([], loss.dtype), loss)
  return tf.where(labels < classes, loss, tf.constant(math.nan, loss.dtype))


def _subtract_at(x: Any, own: Any, amount: Any, size: int) -> Any:
  """Subtracts amount[rows] from x[rows, size] at own[rows], where that is one of the columns."""
  mine = (own >= 0) & (own < size)
  rows = own.shape.num_elements()
  column = reshape(tf.where(mine, own, 0), [rows])
  amount = reshape(tf.where(mine, amount, tf.zeros([], amount.dtype)), [rows])
  at = tf.stack([tf.range(rows, dtype=column.dtype), column], 1)
  return reshape(tf.tensor_scatter_nd_sub(reshape(x, [rows, size]), at, amount), x.shape)


def _probability(logits: Tensor, lse: Tensor) -> Tensor:
  return exp(subtract(cast(logits, lse.dtype), lse))


def cross_entropy(logits: Tensor, labels: Tensor, dim: str, z_loss: float = 0.0,
                  label_smoothing: float = 0.0) -> Tensor:
  """Returns the negative log-likelihood of labels: the logits' shape without `dim`.

  A negative label counts for nothing: loss 0, gradient 0. One that is too large gives NaN.

  Args:
    logits: floats; half floats are computed in, and give, float32.
    labels: integers, rows of `dim`, with all other dimensions of the logits; or floats, the wanted
      probabilities, which have `dim` too.
    dim: the name of the classes.
    z_loss: adds z_loss * logsumexp(logits)**2, which keeps logits from drifting.
    label_smoothing: the share of the wanted probability that all classes have alike (Szegedy et
      al., 2016, arXiv 1512.00567, section 7).

  Raises:
    ShapeError: logits lack `dim`, or labels do not have all other dimensions.
    DTypeError: logits are not floats.
    PlanError: `label_smoothing` is not in [0, 1).
  """
  if not 0 <= label_smoothing < 1:
    raise PlanError(f"label_smoothing is a share, at least 0 and below 1, not {label_smoothing}.")
  if is_floating(labels.dtype):
    return _soft_cross_entropy(logits, labels, dim, z_loss, label_smoothing)
  return apply_all(CrossEntropy(dim, float(z_loss), float(label_smoothing)), logits, labels)[0]


def _soft_cross_entropy(logits: Tensor, targets: Tensor, dim: str, z_loss: float, smoothing: float
                        ) -> Tensor:
  require_floating(logits.spec, "cross_entropy")
  if set(targets.shape) != set(logits.shape):
    raise ShapeError(explain_error(
        f"probabilities of {targets.shape!r} do not fit logits of {logits.shape!r}.",
        way_out=f'They have the same dimensions, in any order; labels without "{dim}" are '
                "integers."))
  logits, targets = (cast(x, wide(logits.dtype)) for x in (logits, targets))
  total = reduce_sum(targets, dim)
  if smoothing:
    alike = multiply(total, smoothing / logits.shape[dim])
    targets = add(multiply(targets, 1 - smoothing), alike)
  lse = reduce_logsumexp(logits, dim)
  loss = subtract(multiply(lse, total), reduce_sum(multiply(targets, logits), dim))
  return add(loss, multiply(square(lse), z_loss)) if z_loss else loss
