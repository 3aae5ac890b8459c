"""Gated dense layers (the GLU family), and the feed-forward sublayer of a Transformer
block.

    gated = DenseProduct(mesh, "d_model:512", "d_ff:1024", ["silu", "linear"])
    h = gated(x)                      # silu(x · kernel_0) * (x · kernel_1)

    mlp = FeedForward(mesh, "d_model:512", "d_ff:2048", activation="swiglu", dropout_rate=0.1)
    y = mlp(x, training=True)         # [batch, length, d_model] -> the same

An activation is a function of a tensor, or the name of one: linear, relu, leaky_relu,
squared_relu, elu, selu, gelu (the approximation by tanh), gelu_exact, silu,
sigmoid, tanh, softplus. FeedForward also takes the names of gated activations (Shazeer,
2020, arXiv 2002.05202): glu, bilinear, reglu, geglu, swiglu.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TypeAlias

from meshtf.errors import ParseError, ShapeError, near_misses
from meshtf.graph import Tensor
from meshtf.graph.arguments import check_tensors
from meshtf.layers.dense_layer import Dense
from meshtf.layers.dropout import Dropout
from meshtf.layers.initializers import Initializer
from meshtf.mesh import Mesh
from meshtf.module import Module
from meshtf.names import ShapeLike
from meshtf.names.arguments import as_callable, as_sequence, check_bools
from meshtf.ops.elementwise.unary import sigmoid, softplus, tanh
from meshtf.ops.nn.activations import (
    elu,
    gelu,
    leaky_relu,
    relu,
    selu,
    silu,
    squared_relu,
)

Activation: TypeAlias = str | Callable[[Tensor], Tensor]


def _linear(x: Tensor) -> Tensor:
    """Returns x [...] unchanged."""
    return x


def _gelu_exact(x: Tensor) -> Tensor:
    """Returns x * Phi(x) for x [...], where Phi is the standard normal's distribution
    function.
    """
    return gelu(x, approximate=False)


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": _linear,
    "relu": relu,
    "leaky_relu": leaky_relu,
    "squared_relu": squared_relu,
    "elu": elu,
    "selu": selu,
    "gelu": gelu,
    "gelu_exact": _gelu_exact,
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "softplus": softplus,
}
# The activation of the first of the two factors of a gated activation; the second factor is
# linear.
_GATED = {
    "glu": "sigmoid",
    "bilinear": "linear",
    "reglu": "relu",
    "geglu": "gelu",
    "swiglu": "silu",
}


class DenseProduct(Module):
    """The elementwise product of several dense layers of one input, each with an
    activation.

    Args:
      mesh: the mesh of the variables.
      reduced_dims: the dimensions of the input that are summed over, such as
        "d_model:512".
      new_dims: the dimensions of the output that replace them, such as "d_ff:2048".
      activations: the activation of each dense layer (a factor of the product), in order.
      use_bias: whether the dense layers add a bias.
      kernel_initializer: the initializer of each kernel; default: that of `Dense`.
      expert_dims: dimensions with separate kernels and biases for each entry.
      name: the layer's name, a component of the names of its variables. With several
        factors the dense layers have this name with an index: "wi_0", "wi_1".

    Raises:
      ShapeError: there are no activations.
      ParseError: an activation has an unknown name.
    """

    default_name = "dense_product"

    def __init__(
        self,
        mesh: Mesh,
        reduced_dims: ShapeLike,
        new_dims: ShapeLike,
        activations: Sequence[Activation] = ("silu", "linear"),
        use_bias: bool = True,
        kernel_initializer: Initializer | None = None,
        expert_dims: ShapeLike = "",
        name: str | None = None,
    ) -> None:
        activations = as_sequence("activations", activations, "a list of activations")
        super().__init__(name)
        if not activations:
            raise ShapeError(
                "a product of dense layers has one factor at least: name its "
                "activation."
            )
        self.activations = [_function(activation) for activation in activations]
        make_factor = functools.partial(
            Dense,
            mesh,
            reduced_dims,
            new_dims,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            expert_dims=expert_dims,
        )
        # A string if the name of the module is known already.
        module_name = self._path[-1]
        if isinstance(module_name, str):
            factor_names = [module_name]
            if len(activations) > 1:
                factor_names = [f"{module_name}_{i}" for i in range(len(activations))]
            with self.outer_scope():
                self.factors = [make_factor(name=name) for name in factor_names]
        else:
            # The module is named later, by the attribute that it is assigned to. Paths of
            # the factors then end in "factors_0", "factors_1".
            self.factors = [make_factor() for _ in activations]

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [..., new_dims] for x [..., reduced_dims]."""
        check_tensors(x=x)
        factors = [
            activation(dense(x))
            for activation, dense in zip(self.activations, self.factors)
        ]
        return functools.reduce(operator.mul, factors)


class FeedForward(Module):
    """wo · dropout(f(wi · x)); gated: wo · dropout(f(wi_0 · x) * (wi_1 · x)).

    Args:
      mesh: the mesh of the variables.
      model_dim: the dimension of inputs and outputs, such as "d_model:512".
      hidden_dim: the hidden dimension, such as "d_ff:2048".
      activation: a function of a tensor, the name of one, or the name of a gated
        activation, such as "swiglu".
      dropout_rate: the fraction of hidden elements that is dropped in training.
      use_bias: whether the dense layers add a bias.
      output_initializer: the initializer of the kernel of the output layer; default: that
        of `Dense`.
      dropout_broadcast: names along which the dropout mask is broadcast.
      expert_dims: dimensions with separate variables for each entry.
      name: the layer's name, a component of the names of its variables; see `mtf.Module`.

    Raises:
      ParseError: there is no activation of this name.
    """

    default_name = "feed_forward"

    def __init__(
        self,
        mesh: Mesh,
        model_dim: ShapeLike,
        hidden_dim: ShapeLike,
        activation: Activation = "relu",
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        output_initializer: Initializer | None = None,
        dropout_broadcast: str = "",
        expert_dims: ShapeLike = "",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        factor_activations = [activation]
        if isinstance(activation, str) and activation in _GATED:
            factor_activations = [_GATED[activation], "linear"]
        with self.scope():
            self.wi = DenseProduct(
                mesh,
                model_dim,
                hidden_dim,
                factor_activations,
                use_bias=use_bias,
                expert_dims=expert_dims,
                name="wi",
            )
            self.dropout = Dropout(dropout_rate, broadcast=dropout_broadcast)
            self.wo = Dense(
                mesh,
                hidden_dim,
                model_dim,
                use_bias=use_bias,
                kernel_initializer=output_initializer,
                expert_dims=expert_dims,
                name="wo",
            )

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """Returns [..., model_dim] for x of the same shape."""
        check_tensors(x=x)
        check_bools(training=training)
        return self.wo(self.dropout(self.wi(x), training))


def _function(activation: Activation) -> Callable[[Tensor], Tensor]:
    """Returns the function of an activation. Raises ParseError for an unknown name."""
    if not isinstance(activation, str):
        return as_callable(
            "activation", activation, "a function of a tensor, or the name of one"
        )
    if activation not in _FUNCTIONS:
        similar_names = near_misses(activation, [*_FUNCTIONS, *_GATED])
        question = f" Did you mean {similar_names}?" if similar_names else ""
        raise ParseError(
            f"there is no activation {activation!r}.{question}"
            f"\n  Take one of {', '.join(_FUNCTIONS)}, in a FeedForward also "
            f"{', '.join(_GATED)}, or give a function of a tensor."
        )
    return _FUNCTIONS[activation]
