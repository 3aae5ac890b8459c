"""Operations element by element."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import meshtf as mtf
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import rule


def _relu6(x: mtf.Tensor) -> mtf.Tensor:
    return mtf.clip(x, 0.0, 6.0)


def _erfc(x: mtf.Tensor) -> mtf.Tensor:
    return 1.0 - mtf.math.erf(x)


def _is_inf(x: mtf.Tensor) -> mtf.Tensor:
    return mtf.logical_not(mtf.logical_or(mtf.is_finite(x), mtf.is_nan(x)))


UNARY: dict[str, Callable[[mtf.Tensor], mtf.Tensor]] = {
    "Abs": mtf.abs,
    "Ceil": mtf.ceil,
    "Cos": mtf.cos,
    "Elu": mtf.elu,
    "Erf": mtf.math.erf,
    "Erfc": _erfc,
    "Exp": mtf.exp,
    "Expm1": mtf.math.expm1,
    "Floor": mtf.floor,
    "IsFinite": mtf.is_finite,
    "IsInf": _is_inf,
    "IsNan": mtf.is_nan,
    "Log": mtf.log,
    "Log1p": mtf.math.log1p,
    "LogicalNot": mtf.logical_not,
    "Neg": mtf.negative,
    "OnesLike": mtf.ones_like,
    "Reciprocal": mtf.math.reciprocal,
    "Relu": mtf.relu,
    "Relu6": _relu6,
    "Rint": mtf.round,
    "Round": mtf.round,
    "Rsqrt": mtf.rsqrt,
    "Selu": mtf.selu,
    "Sigmoid": mtf.sigmoid,
    "Sign": mtf.sign,
    "Sin": mtf.sin,
    "Softplus": mtf.softplus,
    "Sqrt": mtf.sqrt,
    "Square": mtf.square,
    "StopGradient": mtf.stop_gradient,
    "PreventGradient": mtf.stop_gradient,
    "Tanh": mtf.tanh,
    "ZerosLike": mtf.zeros_like,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": mtf.add,
    "AddV2": mtf.add,
    "BiasAdd": mtf.add,
    "DivNoNan": mtf.math.divide_no_nan,
    "Equal": mtf.equal,
    "FloorDiv": mtf.floordiv,
    "FloorMod": mtf.math.floormod,
    "Greater": mtf.greater,
    "GreaterEqual": mtf.greater_equal,
    "Less": mtf.less,
    "LessEqual": mtf.less_equal,
    "LogicalAnd": mtf.logical_and,
    "LogicalOr": mtf.logical_or,
    "Maximum": mtf.maximum,
    "Minimum": mtf.minimum,
    "Mul": mtf.multiply,
    "NotEqual": mtf.not_equal,
    "Pow": mtf.pow,
    "RealDiv": mtf.divide,
    "SquaredDifference": mtf.math.squared_difference,
    "Sub": mtf.subtract,
}
# Of two Python numbers, in loops' counters and conditions.
_NUMBERS = {
    "Add": operator.add,
    "AddV2": operator.add,
    "Less": operator.lt,
    "LogicalAnd": lambda a, b: a and b,
    "Mul": operator.mul,
    "Sub": operator.sub,
}


@rule(*UNARY)
class Unary:
    """An operation of one tensor."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.set(node.outputs[0], analysis.of(node.inputs[0]))

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        return UNARY[node.kind](lowering.tensor(node.inputs[0]))


@rule("LeakyRelu")
class LeakyRelu(Unary):
    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        return mtf.leaky_relu(lowering.tensor(node.inputs[0]), node.attributes["alpha"])


@rule("Cast")
class Cast(Unary):
    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        return mtf.cast(lowering.tensor(node.inputs[0]), node.outputs[0].dtype.name)


@rule(*BINARY)
class Binary:
    """An operation of two tensors that broadcast."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.broadcast(node.inputs, node.outputs[0])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        x, y = operands(lowering, node)
        function = BINARY[node.kind]
        if not hasattr(x, "shape") and not hasattr(y, "shape"):
            if node.kind in _NUMBERS:
                return _NUMBERS[node.kind](x, y)
            x = lowering.tensor(node.inputs[0])
        names = [set(z.shape.names) for z in (x, y) if hasattr(z, "shape")]
        if len(names) == 2 and not (names[0] <= names[1] or names[1] <= names[0]):
            result = mtf.outer(x, y, function)
        else:
            result = function(x, y)
        return _complete(lowering, result, output)


@rule("Select", "SelectV2")
class Select:
    """`where`."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.broadcast(node.inputs, node.outputs[0])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        condition, x, y = operands(lowering, node)
        if not hasattr(condition, "shape"):
            return lowering.full(
                node.inputs[1 if condition else 2], lowering.axes(output), output
            )
        names = [set(z.shape.names) for z in (condition, x, y) if hasattr(z, "shape")]
        if set().union(*names) not in names:
            condition = mtf.broadcast(condition, lowering.shape(output))
        return _complete(lowering, mtf.where(condition, x, y), output)


@rule("AddN")
class AddN:
    """A sum of tensors."""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        analysis.broadcast(node.inputs, node.outputs[0])

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        axes = lowering.axes(node.outputs[0])
        tensors = [lowering.full(v, axes, node.outputs[0]) for v in node.inputs]
        return mtf.add_n(tensors)


@rule("Assign")
class Assign:
    """The new value of a variable has the dimensions of the old one. (Runs nothing.)"""

    @staticmethod
    def dimensions(analysis: Analysis, node: Node) -> None:
        old, new = node.inputs
        analysis.unify_all(analysis.of(old), analysis.of(new))

    @staticmethod
    def lower(lowering: Lowering, node: Node) -> Any:
        return []


def operands(lowering: Lowering, node: Node) -> list[Any]:
    """Returns operands that broadcast, with the names of the result."""
    axes = lowering.axes(node.outputs[0])
    return [
        lowering.aligned(v, axes[len(axes) - len(lowering.axes(v)) :])
        for v in node.inputs
    ]


def _complete(lowering: Lowering, x: mtf.Tensor, output: Any) -> mtf.Tensor:
    """Returns a result with all its dimensions: some may come from no operand, since they
    broadcast numbers.
    """
    if set(x.shape.names) < set(lowering.names_of(output)):
        return mtf.broadcast(x, lowering.shape(output))
    return x
