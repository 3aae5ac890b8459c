"""Multi-head attention, and the masks that go with it.

    attention = MultiHeadAttention(mesh, "d_model:512", "heads:8", "key:64")
    bias = causal_bias(mesh, "length:128", "memory_length:128")
    y = attention(x, bias=bias)       # [batch length d_model] -> the same

Scores are [batch heads length memory_length]: positions that are looked at have a name of their
own, so a layout may cut the positions that look. A mask is a bias that is added to the scores, made
once and used by all layers.
"""

from __future__ import annotations

import math

from meshtf.graph import Tensor
from meshtf.layers.dense import Dense
from meshtf.layers.dropout import Dropout
from meshtf.layers.initializers import Initializer
from meshtf.layers.rotary import Angles, rotate
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape, ShapeLike
from meshtf.ops.einsum import einsum
from meshtf.ops.indexing import range as range_
from meshtf.ops.pointwise import where
from meshtf.ops.reshape import rename
from meshtf.ops.softmax import softmax

_FORBIDDEN = -1e9      # after softmax 0, and yet finite, so that a row of nothing else has no NaN


def causal_bias(mesh: Mesh, length_dim: ShapeLike, memory_dim: ShapeLike) -> Tensor:
  """Returns [length_dim memory_dim]: 0 where the memory is not ahead, else very negative."""
  ahead = range_(mesh, length_dim, "int32") < range_(mesh, memory_dim, "int32")
  return where(ahead, _FORBIDDEN, 0.0)


class MultiHeadAttention(Module):
  """softmax(q · k / sqrt(key) + bias) · v, for several heads, and a product back to `model_dim`.

  Args:
    mesh: where the variables lie.
    model_dim: what comes in and goes out, such as "d_model:512".
    heads_dim: such as "heads:8".
    key_dim: the size of a head, such as "key:64".
    length_dim: the name of the positions that look.
    memory_dim: the name that positions get where they are looked at.
    dropout_rate: the share of attention weights that are dropped in training.
    use_bias: whether the products add a bias.
    output_initializer: of the kernel of the last product.
    name: the last part of the path of its variables.
  """

  def __init__(self, mesh: Mesh, model_dim: ShapeLike, heads_dim: ShapeLike, key_dim: ShapeLike,
               length_dim: str = "length", memory_dim: str = "memory_length",
               dropout_rate: float = 0.0, use_bias: bool = False,
               output_initializer: Initializer | None = None,
               name: str = "attention") -> None:
    super().__init__(name)
    self.length_dim, self.memory_dim = length_dim, memory_dim
    self.heads, self.key_dim = Shape(heads_dim) + key_dim, Shape(key_dim)
    with self.scope():
      self.query, self.key, self.value = (Dense(mesh, model_dim, self.heads, use_bias, name=part)
                                          for part in ("query", "key", "value"))
      self.output = Dense(mesh, self.heads, model_dim, use_bias, output_initializer, name="output")
      self.dropout = Dropout(dropout_rate)

  def __call__(self, x: Tensor, memory: Tensor | None = None, bias: Tensor | None = None,
               angles: Angles | None = None, training: bool = False) -> Tensor:
    """Returns [batch length model_dim] for x of the same shape.

    Args:
      x: the positions that look.
      memory: what they look at, [batch length model_dim] of any length; default: x itself.
      bias: added to the scores, which are [batch heads length memory_length].
      angles: rotary positions, by which queries and keys are turned.
      training: whether attention weights are dropped.
    """
    memory = x if memory is None else memory
    q = self._by_head(self.query, x) * (1.0 / math.sqrt(self.key_dim.size))
    k, v = self._by_head(self.key, memory), self._by_head(self.value, memory)
    if angles is not None:
      q, k = (rotate(y, self.key_dim.names[0], angles) for y in (q, k))
    k, v = (rename(y, self.length_dim, self.memory_dim) for y in (k, v))
    scores = einsum([q, k], q.shape.without(*self.key_dim.names) + k.shape.only([self.memory_dim]))
    weights = softmax(scores if bias is None else scores + bias, self.memory_dim)
    return self.output(einsum([self.dropout(weights, training), v], q.shape), x.shape.names)

  def _by_head(self, dense: Dense, x: Tensor) -> Tensor:
    """Returns [batch heads length key]: products of one head's positions need no transpose then."""
    rest = x.shape.without(self.length_dim, *dense.reduced_dims.names).names
    heads = self.heads.without(*self.key_dim.names).names
    return dense(x, (*rest, *heads, self.length_dim, *self.key_dim.names))
