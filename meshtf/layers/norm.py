"""Normalization of each example, with a learned scale and bias.

    norm = LayerNorm(mesh, "d_model:512")
    y = norm(x)                       # mean 0 and variance 1 over d_model, then scaled and shifted
    norm = GroupNorm(mesh, "channels:64", groups=8, over="height;width")

Layer norm and RMS norm are one op each (`layer_norm`, `rms_norm`): where the normalized
dimension is sharded, devices exchange its statistics, not its elements. Group norm computes
a mean and a variance with reductions. For x in float16 or bfloat16 statistics are float32.
"""

from __future__ import annotations

from meshtf.errors import ShapeError
from meshtf.graph import Tensor
from meshtf.graph.arguments import as_tensor, check_tensors
from meshtf.layers.initializers import ones, zeros
from meshtf.layers.mixed_precision import add_bias, cast_like
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Names, Shape, ShapeLike, accumulation_dtype, names_of
from meshtf.names.arguments import check_bools, check_floats, check_ints
from meshtf.ops.common.checks import single_dim
from meshtf.ops.elementwise.unary import rsqrt, square
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.nn.normalization import layer_norm, rms_norm
from meshtf.ops.reductions.reduce import reduce_mean
from meshtf.ops.shapes.reshape import flatten, unflatten
from meshtf.runtime.variable import Variable


class LayerNorm(Module):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias (Ba et al., 2016, arXiv
    1607.06450).

    Args:
      mesh: the mesh of the variables.
      dim: the dimension that is normalized over, such as "d_model:512".
      epsilon: a constant that is added to the variance.
      use_bias: whether a bias is added; its initial value is zero.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.
    """

    default_name = "layer_norm"

    def __init__(
        self,
        mesh: Mesh,
        dim: ShapeLike,
        epsilon: float = 1e-6,
        use_bias: bool = True,
        name: str | None = None,
    ) -> None:
        check_floats(epsilon=epsilon)
        check_bools(use_bias=use_bias)
        super().__init__(name)
        self.dim = single_dim(dim).name
        self.epsilon = epsilon
        with self.scope():
            self.scale = Variable(mesh, dim, ones, name="scale")
            self.bias: Variable | None = None
            if use_bias:
                self.bias = Variable(mesh, dim, zeros, name="bias")

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x [..., dim], normalized over `dim`, then scaled and shifted."""
        check_tensors(x=x)
        y = layer_norm(x, self.dim, epsilon=self.epsilon) * cast_like(self.scale, x)
        return add_bias(y, self.bias)


class RMSNorm(Module):
    """x / sqrt(mean of squares + epsilon) * scale (Zhang and Sennrich, 2019, arXiv
    1910.07467).

    Args:
      mesh: the mesh of the variable.
      dim: the dimension that is normalized over, such as "d_model:512".
      epsilon: a constant that is added to the mean of squares.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.
    """

    default_name = "rms_norm"

    def __init__(
        self, mesh: Mesh, dim: ShapeLike, epsilon: float = 1e-6, name: str | None = None
    ) -> None:
        check_floats(epsilon=epsilon)
        super().__init__(name)
        self.dim = single_dim(dim).name
        self.epsilon = epsilon
        with self.scope():
            self.scale = Variable(mesh, dim, ones, name="scale")

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x [..., dim], divided by its root mean square over `dim`, times the scale."""
        check_tensors(x=x)
        return rms_norm(x, self.dim, epsilon=self.epsilon) * cast_like(self.scale, x)


class GroupNorm(Module):
    """Normalizes each group of channels to mean 0 and variance 1, and applies a scale and
    a bias per channel.

    With one group for each channel it is instance norm (Wu and He, 2018, arXiv
    1803.08494).

    Args:
      mesh: the mesh of the variables.
      channel_dim: the dimension that is split into groups, such as "channels:64".
      groups: the count of groups.
      over: dimensions that are normalized over besides the channels of a group, such as
        "height;width".
      epsilon: a constant that is added to the variance.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.

    Raises:
      ShapeError: the groups do not divide the channels.
    """

    default_name = "group_norm"

    def __init__(
        self,
        mesh: Mesh,
        channel_dim: ShapeLike,
        groups: int,
        over: Names = "",
        epsilon: float = 1e-6,
        name: str | None = None,
    ) -> None:
        check_ints(groups=groups)
        check_floats(epsilon=epsilon)
        super().__init__(name)
        dim = single_dim(channel_dim)
        if groups < 1 or dim.size % groups:
            raise ShapeError(f"{dim!r} cannot be split into {groups} equal groups.")
        # A check: raises if `over` is no list of names.
        names_of(over, Shape(""), argument="over")
        self.dim = dim
        self.over = over
        self.epsilon = epsilon
        self.group_dims = Shape([("groups", groups), ("in_group", dim.size // groups)])
        with self.scope():
            self.scale = Variable(mesh, dim, ones, name="scale")
            self.bias = Variable(mesh, dim, zeros, name="bias")

    def __call__(self, x: Tensor) -> Tensor:
        """Returns x [batch, *over, channels], normalized over `over` and the channels of
        each group, then scaled and shifted.
        """
        x = as_tensor("x", x)
        groups = unflatten(x, self.dim.name, self.group_dims)
        y = cast(groups, accumulation_dtype(x.dtype))
        reduced_dims = (*names_of(self.over, x.shape), "in_group")
        y = y - reduce_mean(y, reduced_dims)
        variance = reduce_mean(square(y), reduced_dims)
        y = y * rsqrt(variance + self.epsilon)
        y = flatten(y, self.group_dims.names, self.dim.name)
        y = cast(y, x.dtype)
        return y * cast_like(self.scale, x) + cast_like(self.bias, x)
