"""Activation functions.

    mtf.relu(x), mtf.gelu(x), mtf.silu(x)       silu is also called swish
    mtf.leaky_relu(x, alpha=0.1)

Most of them are `Unary(name)`, an op that applies the TensorFlow function of that name to each
element; `ops/elementwise/unary_op.py` has the functions and their derivatives.

References: elu arXiv 1511.07289, selu 1706.02515, gelu 1606.08415, silu 1702.03118,
squared relu 2109.08668.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from meshtf.graph import (
    Cotangents,
    LocalContext,
    LocalTensors,
    Op,
    Sample,
    Spec,
    Specs,
    Tensor,
    apply,
)
from meshtf.graph.op_kinds import ElementwiseOp
from meshtf.names.arguments import check_bools
from meshtf.ops.common.checks import require_floating
from meshtf.ops.elementwise.unary import square
from meshtf.ops.elementwise.unary_op import Unary


class LeakyRelu(ElementwiseOp):
    """x where x is positive, alpha * x elsewhere."""

    alpha: float

    # Test inputs: the attribute alpha, then each input's kind of values and shape.
    conformance_samples = (
        Sample((0.2,), ("b:4;d:6",)),
        Sample((0.5,), ("ties d:5;b:3",)),
    )

    def output_specs(self, x: Spec) -> Specs:
        require_floating(x, "leaky_relu")
        return (x,)

    def local(self, context: LocalContext, x: Any) -> LocalTensors:
        return (tf.raw_ops.LeakyRelu(features=x, alpha=self.alpha),)

    def gradient(self, dy: Any, y: Any, x: Any) -> Cotangents:
        return [apply(LeakyReluGrad(self.alpha), dy, x)]


class LeakyReluGrad(Op):
    """The gradient of `LeakyRelu`: dy where x is positive, alpha * dy elsewhere; the inputs
    are dy and x.
    """

    alpha: float

    conformance_samples = (Sample((0.2,), ("b:4;d:6", "ties b:4;d:6")),)

    def output_specs(self, dy: Spec, x: Spec) -> Specs:
        return (dy,)

    def local(self, context: LocalContext, dy: Any, x: Any) -> LocalTensors:
        return (tf.raw_ops.LeakyReluGrad(gradients=dy, features=x, alpha=self.alpha),)

    def gradient(self, dz: Any, z: Any, dy: Any, x: Any) -> Cotangents:
        # z, the output, is linear in dy and does not change with small changes of x.
        return [apply(self, dz, x), None]


def relu(x: Any) -> Tensor:
    """Returns x where it is positive, and 0 elsewhere, elementwise."""
    return apply(Unary("relu"), x)


def leaky_relu(x: Any, alpha: float = 0.2) -> Tensor:
    """Returns x where it is positive, and alpha * x elsewhere, elementwise."""
    return apply(LeakyRelu(alpha), x)


def elu(x: Any) -> Tensor:
    """Returns x where it is positive, and exp(x) - 1 elsewhere, elementwise."""
    return apply(Unary("elu"), x)


def selu(x: Any) -> Tensor:
    """Returns, elementwise, scale * x where x is positive, and scale * alpha * (exp(x) - 1)
    elsewhere. The constants keep mean 0 and variance 1 from layer to layer.
    """
    return apply(Unary("selu"), x)


def squared_relu(x: Any) -> Tensor:
    """Returns the square of x where x is positive, and 0 elsewhere, elementwise."""
    return square(relu(x))


def gelu(x: Any, approximate: bool = True) -> Tensor:
    """Returns, elementwise, x times the cumulative distribution function of the normal
    distribution at x, exactly or approximated by tanh.
    """
    check_bools(approximate=approximate)
    return apply(Unary("gelu" if approximate else "gelu_exact"), x)


def silu(x: Any) -> Tensor:
    """Returns x * sigmoid(x), elementwise."""
    return apply(Unary("silu"), x)
