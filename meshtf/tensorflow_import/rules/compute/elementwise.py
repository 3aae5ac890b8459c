"""Operations element by element."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshtf.graph import Tensor
from meshtf.ops.control.stop_gradient import stop_gradient
from meshtf.ops.elementwise import arithmetic, unary
from meshtf.ops.elementwise.add_n import add_n
from meshtf.ops.elementwise.complex import complex, conj, imag, real
from meshtf.ops.elementwise.where_cast_clip import cast, clip, where
from meshtf.ops.nn.activations import elu, leaky_relu, relu, selu
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.variables.fill import ones_like, zeros_like
from meshtf.tensorflow_import.dimensions.analysis import Analysis
from meshtf.tensorflow_import.graph.program import Node
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import BroadcastRule, Rule, rule

# Kinds whose names are those of meshtf's functions.
_UNARY = (
    "Abs Ceil Cos Erf Exp Expm1 Floor Log Log1p Reciprocal Round Rsqrt Sigmoid Sign Sin "
    "Softplus Sqrt Square Tanh"
)
_BINARY = "Add Equal FloorDiv FloorMod Greater Less Maximum Minimum Pow"


def _functions(kinds: str, module: Any) -> dict[str, Callable[..., Tensor]]:
    """Returns the functions of a module that are called as some kinds are."""
    return {kind: getattr(module, kind.lower()) for kind in kinds.split()}


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    **_functions(_UNARY, unary),
    "ComplexAbs": unary.abs,
    "Conj": conj,
    "Elu": elu,
    "Erfc": lambda x: 1.0 - unary.erf(x),
    "Imag": imag,
    "IsFinite": unary.is_finite,
    "IsInf": lambda x: ~(unary.is_finite(x) | unary.is_nan(x)),
    "IsNan": unary.is_nan,
    "LogicalNot": unary.logical_not,
    "Neg": unary.negative,
    "OnesLike": ones_like,
    "PreventGradient": stop_gradient,
    "Real": real,
    "Relu": relu,
    "Relu6": lambda x: clip(x, 0.0, 6.0),
    "Rint": unary.round,
    "Selu": selu,
    "StopGradient": stop_gradient,
    "ZerosLike": zeros_like,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **_functions(_BINARY, arithmetic),
    "AddV2": arithmetic.add,
    "BiasAdd": arithmetic.add,
    "Complex": complex,
    "DivNoNan": arithmetic.divide_no_nan,
    "GreaterEqual": arithmetic.greater_equal,
    "LessEqual": arithmetic.less_equal,
    "LogicalAnd": arithmetic.logical_and,
    "LogicalOr": arithmetic.logical_or,
    "Mul": arithmetic.multiply,
    "NotEqual": arithmetic.not_equal,
    "RealDiv": arithmetic.divide,
    "SquaredDifference": arithmetic.squared_difference,
    "Sub": arithmetic.subtract,
}


@rule(*UNARY)
class Unary(Rule):
    """An operation of one tensor."""

    is_uniform = True

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return UNARY[node.kind](lowering.tensor(node.inputs[0]))


@rule("LeakyRelu")
class LeakyRelu(Unary):
    """`leaky_relu`."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return leaky_relu(lowering.tensor(node.inputs[0]), node.attributes["alpha"])


@rule("Cast")
class Cast(Unary):
    """A conversion to another type."""

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return cast(lowering.tensor(node.inputs[0]), node.outputs[0].dtype.name)


@rule(*BINARY)
class Binary(BroadcastRule):
    """An operation of two tensors that broadcast."""

    is_uniform = True

    def lower(self, lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        x, y = operands(lowering, node)
        function = BINARY[node.kind]
        if not hasattr(x, "shape") and not hasattr(y, "shape"):
            x = lowering.tensor(node.inputs[0])
        names = [set(z.shape.names) for z in (x, y) if hasattr(z, "shape")]
        if len(names) == 2 and not (names[0] <= names[1] or names[1] <= names[0]):
            result = arithmetic.outer(x, y, function)
        else:
            result = function(x, y)
        return _complete(lowering, result, output)


@rule("Select", "SelectV2")
class Select(BroadcastRule):
    """`where`."""

    is_uniform = True

    def lower(self, lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        condition, x, y = operands(lowering, node)
        if not hasattr(condition, "shape"):
            return lowering.full(node.inputs[1 if condition else 2], output)
        names = [set(z.shape.names) for z in (condition, x, y) if hasattr(z, "shape")]
        if set().union(*names) not in names:
            condition = broadcast(condition, lowering.shape(output))
        return _complete(lowering, where(condition, x, y), output)


@rule("AddN")
class AddN(BroadcastRule):
    """A sum of tensors."""

    is_uniform = True

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return add_n([lowering.full(v, node.outputs[0]) for v in node.inputs])


@rule("Assign")
class Assign(Rule):
    """The new value of a variable has the dimensions of the old one. (Runs nothing.)"""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        old, new = node.inputs
        analysis.unify_all(analysis.of(old), analysis.of(new))

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return []


def operands(lowering: Lowering, node: Node) -> list[Any]:
    """Returns operands that broadcast, with the names of the result."""
    output = node.outputs[0]
    return [lowering.operand(v, lowering.last_axes(v, output)) for v in node.inputs]


def _complete(lowering: Lowering, x: Tensor, output: Any) -> Tensor:
    """Returns a result with all its dimensions: some may come from no operand, since they
    broadcast numbers.
    """
    if set(x.shape.names) < set(lowering.names_of(output)):
        return broadcast(x, lowering.shape(output))
    return x
