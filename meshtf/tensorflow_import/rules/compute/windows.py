"""Convolutions, pooling and resizing of images, `[batch, height, width, channels]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Tensor
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.reductions.broadcast import broadcast
from meshtf.ops.reductions.reduce import reduce_sum
from meshtf.ops.shapes.reshape import rename
from meshtf.ops.windows.convolution import conv, conv_transpose
from meshtf.ops.windows.pooling import avg_pool, max_pool
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.dimensions.atoms import flat
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule

# Axes of an image's rows and columns.
_SPACE = (1, 2)


@rule("AvgPool", "Conv2D", "Conv2DBackpropInput", "DepthwiseConv2dNative", "MaxPool")
class Window(Rule):
    """A window that slides over rows and columns."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        if node.attributes.get("data_format", b"NHWC") != b"NHWC":
            raise NoRule("images whose channels come first")
        image, output = _image(node), node.outputs[0]
        x = analysis.of(image)
        space = [analysis.resized(x[k], output.shape[k]) for k in _SPACE]
        if node.kind.endswith("Pool"):
            analysis.set(output, [x[0], *space, x[3]])
            return
        kernel = analysis.of(node.inputs[1])
        if node.kind == "Conv2DBackpropInput":
            analysis.set(output, [x[0], *space, kernel[2]])
            analysis.unify_all([x[3]], [kernel[3]])
        elif node.kind == "DepthwiseConv2dNative":
            analysis.set(output, [x[0], *space, (*x[3], *kernel[3])])
            analysis.unify_all([x[3]], [kernel[2]])
        else:
            _convolution(analysis, node, space)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        image, output = _image(node), node.outputs[0]
        x, axes = lowering.tensor(image), lowering.axes(image)
        result = lowering.axes(output)
        names, added = [], []
        for k in _SPACE:
            name = f"one_{k}" if not axes[k] else lowering.name(axes[k], "a window")
            names.append(name)
            if not axes[k]:
                added.append(name)
        x = _with_ones(x, added)
        stride = {a: int(node.attributes["strides"][k]) for a, k in zip(names, _SPACE)}
        padding = node.attributes["padding"].decode().lower()
        if padding not in ("same", "valid"):
            raise NoRule("explicit padding")
        if node.kind.endswith("Pool"):
            sizes = [node.attributes["ksize"][k] for k in _SPACE]
            window = "; ".join(f"{a}:{size}" for a, size in zip(names, sizes))
            pool = max_pool if node.kind == "MaxPool" else avg_pool
            y = pool(x, window, stride, padding)
        else:
            y = _convolve(lowering, node, x, names, stride, padding)
        gone = [a for a, k in zip(names, _SPACE) if not result[k]]
        if gone:
            y = reduce_sum(y, gone)
        pairs = {
            a: lowering.name(result[k], "a window")
            for a, k in zip(names, _SPACE)
            if result[k]
        }
        pairs = {a: b for a, b in pairs.items() if a != b}
        return rename(y, pairs) if pairs else y


@rule("ResizeBilinear", "ResizeNearestNeighbor")
class Resize(Rule):
    """Rows and columns apart: each is a product with a constant matrix."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        x, output = analysis.of(node.inputs[0]), node.outputs[0]
        analysis.set(
            output, [analysis.resized(a, size) for a, size in zip(x, output.shape)]
        )

    def lower(self, lowering: Lowering, node: Node) -> Any:
        source, output = node.inputs[0], node.outputs[0]
        x, axes = lowering.tensor(source), lowering.axes(source)
        if node.kind == "ResizeBilinear":
            x = cast(x, "float32")
        for k in _SPACE:
            old = lowering.name(axes[k], "resize")
            new = lowering.name(lowering.axes(output)[k], "resize")
            matrix = _resize_matrix(node, source.shape[k], output.shape[k], source)
            weights = constant(
                lowering.mesh,
                matrix.numpy(),
                f"resized:{output.shape[k]}; {old}:{source.shape[k]}",
            )
            names = ["resized" if name == old else name for name in x.shape.names]
            x = rename(einsum([x, weights], names), "resized", new)
        return x


def _image(node: Node) -> Value:
    """Returns the images that a window slides over."""
    return node.inputs[2 if node.kind == "Conv2DBackpropInput" else 0]


def _convolution(analysis: Analysis, node: Node, space: Sequence[Any]) -> None:
    """The dimensions of a convolution, which may have groups of channels."""
    image, filters = node.inputs
    x, kernel = analysis.of(image), analysis.of(filters)
    inner = filters.shape[2]
    groups = image.shape[3] // inner
    analysis.set(node.outputs[0], [x[0], *space, kernel[3]])
    if groups == 1:
        analysis.unify_all([x[3]], [kernel[2]])
        return
    factors = (*analysis.new(groups), *analysis.new(inner))
    analysis.unify(factors, x[3])
    if inner > 1:
        analysis.unify(flat(factors)[1:], kernel[2])
    outer = analysis.new(node.outputs[0].shape[3] // groups)
    analysis.unify((*flat(factors)[:1], *outer), kernel[3])


def _convolve(
    lowering: Lowering,
    node: Node,
    x: Tensor,
    names: Sequence[str],
    stride: dict[str, int],
    padding: str,
) -> Tensor:
    filters, image, output = node.inputs[1], _image(node), node.outputs[0]
    channels = lowering.axes(image)[3]
    result = lowering.axes(output)[3]
    groups: list[str] = []
    if node.kind == "Conv2DBackpropInput":
        kernel = lowering.aligned(filters, [None, None, result, channels])
    elif node.kind == "DepthwiseConv2dNative":
        kernel = lowering.aligned(filters, [None, None, channels, None])
        groups = lowering.names(channels)
    else:
        count = image.shape[3] // filters.shape[2]
        grouped = count > 1
        groups = lowering.names(channels[:1]) if grouped else []
        inner = channels[1:] if grouped else channels
        kernel = lowering.aligned(filters, [None, None, inner, result])
    axes = lowering.axes(filters)
    taps = [f"tap_{k}" if not axes[k] else lowering.names(axes[k])[0] for k in (0, 1)]
    kernel = _with_ones(kernel, [a for a, k in zip(taps, (0, 1)) if not axes[k]])
    window = dict(zip(names, taps))
    if node.kind == "Conv2DBackpropInput":
        sizes = {a: output.shape[k] for a, k in zip(names, _SPACE)}
        return conv_transpose(x, kernel, window, stride, padding, output_size=sizes)
    dilation = {a: int(node.attributes["dilations"][k]) for a, k in zip(names, _SPACE)}
    return conv(x, kernel, window, stride, padding, dilation, groups)


def _with_ones(x: Tensor, names: Sequence[str]) -> Tensor:
    """Returns a tensor with more dimensions, of size 1."""
    if not names:
        return x
    ones = [f"{name}:1" for name in names]
    return broadcast(x, "; ".join(ones + [f"{d.name}:{d.size}" for d in x.shape]))


def _resize_matrix(node: Node, old: int, new: int, source: Value) -> tf.Tensor:
    """Returns how much each old row contributes to each new one, `[new, old]`."""
    with tf.init_scope():
        dtype = tf.float32 if source.dtype != tf.float64 else tf.float64
        rows = tf.reshape(tf.eye(old, dtype=dtype), [1, old, 1, old])
        resized = getattr(tf.raw_ops, node.kind)(
            images=rows,
            size=[new, 1],
            align_corners=node.attributes["align_corners"],
            half_pixel_centers=node.attributes["half_pixel_centers"],
        )
        return resized[0, :, 0, :]
