"""Operations without a rule: each device runs the TensorFlow operation, on gathered operands, or
on its shards along axes whose entries do not depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from meshtf.errors import ArgumentError
from meshtf.graph import Tensor
from meshtf.ops.shapes.reshape import transpose
from meshtf.ops.slicewise.slicewise import slicewise
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.dimensions.atoms import Axes
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.graph.raw_ops import can_run_alone, run_operation
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule

# By how many leading axes of the first operand and of the result are independent; of a negative
# number: all but the last ones.
_KINDS_BY_AXES = {
    1: "Conv2D Conv3D DepthwiseConv2dNative Dilation2D ExtractImagePatches "
    "ExtractVolumePatches ImageProjectiveTransformV3 LRN ResizeArea ResizeBicubic",
    -1: "AdjustHue AdjustSaturation HSVToRGB IRFFT MatrixDiagV3 RFFT RGBToHSV",
    -2: "Cholesky IRFFT2D MatrixBandPart MatrixDeterminant MatrixDiagPartV3 MatrixInverse "
    "MatrixSetDiagV3 MatrixSolve MatrixTriangularSolve Qr RFFT2D Svd",
    -3: "AdjustContrastv2",
}
_INDEPENDENT = {
    kind: axes for axes, kinds in _KINDS_BY_AXES.items() for kind in kinds.split()
}
# Of these, whose other operands have the same leading axes.
_BATCHED = (
    "ImageProjectiveTransformV3",
    "MatrixSetDiagV3",
    "MatrixSolve",
    "MatrixTriangularSolve",
)

# Each element of the result depends on one element of each operand. (Those that a mesh has as
# operations of its own are in `compute/elementwise.py`.)
_ELEMENTWISE = (
    "Acos Acosh Angle Asin Asinh Atan Atan2 Atanh Betainc Bitcast BitwiseAnd BitwiseOr "
    "BitwiseXor ClipByValue Cosh Digamma Erfinv FakeQuantWithMinMaxArgs Igamma Igammac Invert "
    "LeftShift Lgamma Mod MulNoNan Ndtri NextAfter Polygamma RightShift Sinh Softsign Tan "
    "TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta "
    # Of TensorFlow's own gradients.
    "EluGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad SigmoidGrad "
    "SoftplusGrad SoftsignGrad SqrtGrad TanhGrad"
).split()


@rule(*_ELEMENTWISE)
class Elementwise(Rule):
    """An operation element by element, of operands that broadcast."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        if any(len(v.shape) > len(node.outputs[0].shape) for v in node.inputs):
            raise NoRule(f"{node.kind} to elements of another size")
        analysis.broadcast(node.inputs, node.outputs[0])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        output = node.outputs[0]
        seen = [lowering.last_axes(v, output) for v in node.inputs]
        return _run(lowering, node, seen, lowering.names_of(output))


@rule(*_INDEPENDENT)
class Independent(Rule):
    """An operation whose first axes are those of its first operand."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        axes, shape = analysis.of(node.inputs[0]), node.inputs[0].shape
        count = _independent(node)
        for value in node.outputs:
            rest = value.shape[count:]
            analysis.set(value, [*axes[:count], *map(analysis.new, rest)])
        for value in node.inputs[1:]:
            other_axes = analysis.of(value)
            if node.kind in _BATCHED and value.shape[:count] == shape[:count]:
                analysis.unify_all(axes[:count], other_axes[:count])

    def lower(self, lowering: Lowering, node: Node) -> Any:
        return run_replicated(lowering, node)


def run_replicated(lowering: Lowering, node: Node) -> Any:
    """Returns the results of a node, run as the TensorFlow operation that it is.

    Raises:
        ArgumentError: It has a state or bodies.
    """
    if not can_run_alone(node):
        raise ArgumentError(
            f"{node.kind} at {node.path} has no rule, and cannot run on gathered operands, "
            "since it has a state"
        )
    axes = [lowering.axes(v) for v in node.inputs]
    return _run(lowering, node, axes, _shardable(lowering, node))


def _fed_operands(node: Node, is_sharded: bool) -> set[int]:
    """Returns which operands are tensors of the mesh. Constants of many elements may have to
    be sharded as well; others are settings.
    """
    fed = {k for k, v in enumerate(node.inputs) if v.constant is None}
    if is_sharded:
        fed |= {
            k
            for k, v in enumerate(node.inputs)
            if np.size(v.constant) > 1
            and (v.dtype.is_floating or node.kind in _ELEMENTWISE)
        }
    return fed


def _operands(
    lowering: Lowering, node: Node, fed: set[int], seen: Sequence[Axes]
) -> tuple[list[Tensor], list[list[list[str]]]]:
    """Returns the operands that are tensors of the mesh, and for each the names of its axes."""
    tensors, axes = [], []
    for k in sorted(fed):
        value = node.inputs[k]
        x = lowering.aligned(value, seen[k])
        names = [
            lowering.names(expected if have else ())
            for have, expected in zip(lowering.axes(value), seen[k])
        ]
        tensors.append(transpose(x, [a for axis in names for a in axis]))
        axes.append(names)
    return tensors, axes


def _run(
    lowering: Lowering, node: Node, seen: Sequence[Axes], shardable: Sequence[str]
) -> Any:
    """Runs a node as the TensorFlow operation that it is.

    Args:
        lowering: The run.
        node: The node.
        seen: For each operand, axes whose names it gets, where it has several elements.
        shardable: Names along which a device may have a shard.
    """
    fed = _fed_operands(node, bool(shardable))
    tensors, axes = _operands(lowering, node, fed, seen)
    results = [lowering.names_of(v) for v in node.outputs]

    def run(*arguments: tf.Tensor) -> Any:
        # A name may have another size in each operand, but for those that are sharded.
        sharded: dict[str, int] = {}
        for x, operand_axes in zip(arguments, axes):
            flat_names = [a for axis in operand_axes for a in axis]
            sharded |= {a: n for a, n in zip(flat_names, x.shape) if a in shardable}
        fed_tensors = iter(zip(arguments, axes))

        def operand(k: int, value: Value) -> tf.Tensor:
            if k not in fed:
                return tf.constant(value.constant, value.dtype)
            x, names = next(fed_tensors)
            sizes = dict(zip([a for axis in names for a in axis], x.shape))
            return tf.reshape(x, [math.prod(sizes[a] for a in axis) for axis in names])

        inputs = [operand(k, v) for k, v in enumerate(node.inputs)]
        outputs = run_operation(node.kind, node.definition, node.attributes, inputs)
        named = []
        for x, value, names in zip(outputs, node.outputs, results):
            atoms = lowering.analysis.atoms_of(value)
            sizes = [sharded.get(a, atom.size) for a, atom in zip(names, atoms)]
            named.append(tf.reshape(x, sizes))
        return named if len(named) > 1 else named[0]

    shapes = [lowering.shape(v) for v in node.outputs]
    dtypes = [v.dtype.name for v in node.outputs]
    if not tensors:
        return run_of_nothing(lowering, run, shapes)
    if len(shapes) == 1:
        return slicewise(run, tensors, shapes[0], dtypes[0], shardable, check=False)
    return slicewise(run, tensors, shapes, dtypes, shardable, check=False)


def _independent(node: Node) -> int:
    """Returns how many leading axes of a node's first operand are independent."""
    count = _INDEPENDENT.get(node.kind, 0)
    return count if count >= 0 else max(len(node.inputs[0].shape) + count, 0)


def _shardable(lowering: Lowering, node: Node) -> list[str]:
    """Returns names along which a node may run on shards."""
    if node.kind not in _INDEPENDENT or node.inputs[0].constant is not None:
        return []
    count = _independent(node)
    axes = lowering.axes(node.inputs[0])[:count]
    names = lowering.names([atom for axis in axes for atom in axis])
    required = list(node.outputs)
    if node.kind in _BATCHED:
        required += [v for v in node.inputs if math.prod(v.shape[:count]) > 1]
    return [a for a in names if all(a in lowering.names_of(v) for v in required)]


def run_of_nothing(lowering: Lowering, run: Any, shapes: list[str]) -> Any:
    """Returns results that depend on no tensor, as constants."""
    with tf.init_scope():
        results = run()
    results = results if isinstance(results, list) else [results]
    return [constant(lowering.mesh, x.numpy(), s) for x, s in zip(results, shapes)]
