"""How many floating-point operations a node of a program computes, roughly."""

from __future__ import annotations

import math

from meshtf.tensorflow_import.graph.program import Node, Value

_CONVOLUTIONS = ("Conv2D", "Conv3D")
_TRANSPOSED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")
_PRODUCTS = ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum", "MatMul")


def flops_of(node: Node) -> float:
    """Returns a node's FLOPs: 2 for each multiplication and addition of products and
    convolutions, 1 for each element of what other nodes compute.
    """
    outputs = sum(_size(v) for v in node.outputs if v.is_tensor)
    if node.kind in _PRODUCTS and len(node.inputs) == 2:
        return 2 * _product(node)
    if node.kind in _CONVOLUTIONS or node.kind in _TRANSPOSED:
        kernel = node.inputs[1]
        pixels = node.outputs[0] if node.kind in _CONVOLUTIONS else node.inputs[2]
        return 2 * _size(kernel) * _size(pixels) / pixels.shape[-1]
    if node.kind == "DepthwiseConv2dNative":
        return 2 * outputs * math.prod(node.inputs[1].shape[:2])
    return outputs


def _product(node: Node) -> float:
    """Returns how many pairs of elements a product multiplies."""
    first, second, output = (_size(v) for v in (*node.inputs, node.outputs[0]))
    equation = node.attributes.get("equation", b"...").decode()
    if "..." not in equation:
        letters = zip(
            equation.split("->")[0].replace(",", ""),
            [size for value in node.inputs for size in value.shape],
        )
        return math.prod(dict(letters).values())
    # [batch, m, k] x [batch, k, n] -> [batch, m, n]
    batch = output / max(1, math.prod(node.outputs[0].shape[-2:]))
    return math.sqrt(first * second * output / max(1, batch))


def _size(value: Value) -> int:
    return math.prod(value.shape or (1,))
