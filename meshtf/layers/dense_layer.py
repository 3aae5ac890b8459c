"""A dense layer: a matmul with a kernel that replaces dimensions by new ones.

Example:

    wi = Dense(mesh, "d_model:512", "d_ff:2048")             # kernel [d_model, d_ff], bias [d_ff]
    h = mtf.relu(wi(x))                                      # [batch, d_model] -> [batch, d_ff]

    wo = Dense(mesh, "heads:8;key:64", "d_model:512")        # sums over two dimensions
    wi = Dense(mesh, "d_model:512", "d_ff:64", expert_dims="experts:16")    # one kernel each
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.layers.initializers import Initializer, variance_scaling, zeros
from meshtf.layers.mixed_precision import add_bias, cast_like
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape, ShapeLike
from meshtf.names.arguments import check_bools
from meshtf.ops.common.checks import require_dim_of_caller
from meshtf.ops.linear.einsum import einsum
from meshtf.runtime.variable import Variable


class Dense(Module):
    """x[..., reduced_dims] · kernel[expert_dims, reduced_dims, new_dims] + bias.

    Args:
      mesh: the mesh of the variables.
      reduced_dims: the dimensions of the input that are summed over, such as
        "d_model:512".
      new_dims: the dimensions of the output that replace them, such as "heads:8;key:64".
      use_bias: whether a bias is added; its initial value is zero.
      kernel_initializer: the initializer of the kernel; default: normal with variance
        1 / (size of `reduced_dims`).
      expert_dims: dimensions with a separate kernel and bias for each entry, which
        optimizers update as separate variables; an input that lacks them is multiplied
        by all of these kernels.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.
    """

    default_name = "dense"

    def __init__(
        self,
        mesh: Mesh,
        reduced_dims: ShapeLike,
        new_dims: ShapeLike,
        use_bias: bool = True,
        kernel_initializer: Initializer | None = None,
        expert_dims: ShapeLike = "",
        name: str | None = None,
    ) -> None:
        check_bools(use_bias=use_bias)
        super().__init__(name)
        self.reduced_dims = Shape(reduced_dims)
        self.new_dims = Shape(new_dims)
        self.expert_dims = Shape(expert_dims)
        if kernel_initializer is None:
            kernel_initializer = variance_scaling(
                ";".join(self.reduced_dims.names),
                expert_dims=";".join(self.expert_dims.names),
            )
        with self.scope():
            self.kernel = Variable(
                mesh,
                self.expert_dims + self.reduced_dims + self.new_dims,
                kernel_initializer,
                name="kernel",
                stacked_dims=self.expert_dims,
            )
            self.bias: Variable | None = None
            if use_bias:
                self.bias = Variable(
                    mesh,
                    self.expert_dims + self.new_dims,
                    zeros,
                    name="bias",
                    stacked_dims=self.expert_dims,
                )

    def __call__(self, x: Tensor, order: Sequence[str] | None = None) -> Tensor:
        """Returns [..., new_dims] for x [..., reduced_dims]; with experts, [...,
        expert_dims, new_dims], where x may have dimensions of experts already.

        Args:
          x: the input, [..., reduced_dims].
          order: the names of the output's dimensions in their order; default: those of
            x, then new ones.

        Raises:
          ShapeError: x lacks one of `reduced_dims`, or has a different size of it.
        """
        check_tensors(x=x)
        require_dim_of_caller(x.shape, *self.reduced_dims.names)
        if order is None:
            batch_dims = x.shape.without(*self.reduced_dims.names)
            missing_expert_dims = self.expert_dims.without(*batch_dims.names)
            order = (batch_dims + missing_expert_dims + self.new_dims).names
        y = einsum([x, cast_like(self.kernel, x)], order)
        return add_bias(y, self.bias)
