"""Normalization over one dimension, with a learned scale and bias.

    norm = LayerNorm(mesh, "d_model:512")
    y = norm(x)                       # mean 0 and variance 1 over d_model, then scaled and shifted

What needs the whole dimension is one op each (`normalize_layer`, `normalize_rms`), which stays
distributed where the dimension is cut.
"""

from __future__ import annotations

from meshtf.graph import Tensor
from meshtf.layers.initializers import ones, zeros
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape, ShapeLike
from meshtf.ops.normalize import normalize_layer, normalize_rms
from meshtf.runtime.variables import Variable


class LayerNorm(Module):
  """(x - mean) / sqrt(variance + epsilon) * scale + bias.

  Args:
    mesh: where the variables lie.
    dim: the dimension that is normalized over, such as "d_model:512".
    epsilon: what is added to the variance.
    use_bias: whether a bias, at first zero, is added.
    name: the last part of the path of its variables.
  """

  def __init__(self, mesh: Mesh, dim: ShapeLike, epsilon: float = 1e-6, use_bias: bool = True,
               name: str = "layer_norm") -> None:
    super().__init__(name)
    (self.dim,), self.epsilon = Shape(dim).names, epsilon
    with self.scope():
      self.scale = Variable(mesh, dim, ones, name="scale")
      self.bias = Variable(mesh, dim, zeros, name="bias") if use_bias else None

  def __call__(self, x: Tensor) -> Tensor:
    """Returns x, normalized over `dim`."""
    y = normalize_layer(x, self.dim, self.epsilon) * self.scale
    return y if self.bias is None else y + self.bias


class RMSNorm(Module):
  """x / sqrt(mean of squares + epsilon) * scale.

  Args:
    mesh: where the variable lies.
    dim: the dimension that is normalized over, such as "d_model:512".
    epsilon: what is added to the mean of squares.
    name: the last part of the path of its variable.
  """

  def __init__(self, mesh: Mesh, dim: ShapeLike, epsilon: float = 1e-6,
               name: str = "rms_norm") -> None:
    super().__init__(name)
    (self.dim,), self.epsilon = Shape(dim).names, epsilon
    with self.scope():
      self.scale = Variable(mesh, dim, ones, name="scale")

  def __call__(self, x: Tensor) -> Tensor:
    """Returns x, divided by its root mean square over `dim`, times the scale."""
    return normalize_rms(x, self.dim, self.epsilon) * self.scale
