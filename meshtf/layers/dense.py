"""A dense layer: some dimensions are summed away against a kernel, new ones come in.

Example:

    wi = Dense(mesh, "d_model:512", "d_ff:2048")             # kernel [d_model d_ff], bias [d_ff]
    h = mtf.relu(wi(x))                                      # [batch d_model] -> [batch d_ff]

    wo = Dense(mesh, "heads:8;key:64", "d_model:512")        # several dimensions go at once
    wi = Dense(mesh, "d_model:512", "d_ff:64", expert_dims="experts:16")    # a kernel for each
"""

from __future__ import annotations

from collections.abc import Sequence

from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.layers.initializers import Initializer, variance_scaling, zeros
from meshtf.layers.mixed_precision import in_type_of
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import Shape, ShapeLike
from meshtf.names.arguments import check_bools
from meshtf.ops.common.checks import require_dim
from meshtf.ops.linear.einsum import einsum
from meshtf.runtime.variable import Variable


class Dense(Module):
    """x[..., reduced_dims] · kernel[expert_dims, reduced_dims, new_dims] + bias.

    Args:
      mesh: where the variables lie.
      reduced_dims: the dimensions of the input that are summed away, such as
        "d_model:512".
      new_dims: the dimensions that come in, such as "heads:8;key:64".
      use_bias: whether a bias, at first zero, is added.
      kernel_initializer: default: normal with variance 1 / size of `reduced_dims`.
      expert_dims: dimensions of which each row has a kernel and a bias of its own; an
        input that lacks them goes through all of them.
      name: the last part of the path of its variables.
    """

    def __init__(
        self,
        mesh: Mesh,
        reduced_dims: ShapeLike,
        new_dims: ShapeLike,
        use_bias: bool = True,
        kernel_initializer: Initializer | None = None,
        expert_dims: ShapeLike = "",
        name: str = "dense",
    ) -> None:
        check_bools(use_bias=use_bias)
        super().__init__(name)
        self.reduced_dims, self.new_dims = Shape(reduced_dims), Shape(new_dims)
        self.expert_dims = Shape(expert_dims)
        first = kernel_initializer
        if first is None:
            first = variance_scaling(
                ";".join(self.reduced_dims.names),
                expert_dims=";".join(self.expert_dims.names),
            )
        with self.scope():
            self.kernel = Variable(
                mesh,
                self.expert_dims + self.reduced_dims + self.new_dims,
                first,
                name="kernel",
            )
            self.bias = (
                Variable(mesh, self.expert_dims + self.new_dims, zeros, name="bias")
                if use_bias
                else None
            )

    def __call__(self, x: Tensor, order: Sequence[str] | None = None) -> Tensor:
        """Returns [..., new_dims] for x[..., reduced_dims]; the names in another
        `order` if given.

        Raises:
          ShapeError: x lacks one of `reduced_dims`, or has another size of it.
        """
        check_tensors(x=x)
        require_dim(x.shape, *self.reduced_dims.names)
        kept = x.shape.without(*self.reduced_dims.names)
        names = (kept + self.expert_dims.without(*kept.names) + self.new_dims).names
        y = einsum([x, in_type_of(x, self.kernel)], names if order is None else order)
        return y if self.bias is None else y + in_type_of(x, self.bias)
