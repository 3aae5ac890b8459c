"""Convolutions, pooling and resizing of images, `[batch, height, width, channels]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from meshtf.graph import Tensor
from meshtf.ops.elementwise.where_cast_clip import cast
from meshtf.ops.linear.einsum import einsum
from meshtf.ops.shapes.reshape import flatten, rename, unflatten
from meshtf.ops.windows.convolution import conv, conv_transpose
from meshtf.ops.windows.pooling import avg_pool, max_pool
from meshtf.runtime.storage.asarray import constant
from meshtf.tensorflow_import.dimensions.analysis import Analysis, NoRule
from meshtf.tensorflow_import.dimensions.atoms import Atom, Axis, flat
from meshtf.tensorflow_import.graph.program import Node, Value
from meshtf.tensorflow_import.lowering import Lowering
from meshtf.tensorflow_import.rules.table import Rule, rule

_RESIZED = ".resized"  # a name for the time of a product: no layout has a rule for it
# The axis of rows; columns follow.
_SPACE = (1, 2)
_POOLS = {
    "AvgPool": avg_pool,
    "AvgPool3D": avg_pool,
    "MaxPool": max_pool,
    "MaxPool3D": max_pool,
}
_TRANSPOSED = ("Conv2DBackpropInput", "Conv3DBackpropInputV2")


@rule(*_POOLS, *_TRANSPOSED, "Conv2D", "Conv3D", "DepthwiseConv2dNative")
class WindowRule(Rule):
    """A window that slides over rows and columns, or over the three axes of a volume."""

    def dimensions(self, analysis: Analysis, node: Node) -> None:
        if node.attributes.get("data_format", b"NHWC") not in (b"NHWC", b"NDHWC"):
            raise NoRule("images whose channels come first")
        image, output = _image(node), node.outputs[0]
        x = analysis.of(image)
        space = [analysis.resized(x[k], output.shape[k]) for k in range(1, len(x) - 1)]
        if node.kind in _POOLS:
            analysis.set(output, [x[0], *space, x[-1]])
            return
        kernel = analysis.of(node.inputs[1])
        if node.kind in _TRANSPOSED:
            analysis.set(output, [x[0], *space, kernel[-2]])
            analysis.unify_all([x[-1]], [kernel[-1]])
        elif node.kind == "DepthwiseConv2dNative":
            analysis.set(output, [x[0], *space, (*x[3], *kernel[3])])
            analysis.unify_all([x[3]], [kernel[2]])
        else:
            _convolution(analysis, node, space)

    def lower(self, lowering: Lowering, node: Node) -> Any:
        image, output = _image(node), node.outputs[0]
        x, axes = lowering.tensor(image), lowering.axes(image)
        space, names = range(1, len(axes) - 1), []
        for k in space:
            x, name = lowering.merged(x, axes[k], f"space_{k}")
            names.append(name)
        y = _Windows(lowering, node, names).slide(x)
        # Two of them may swap their names.
        y = rename(y, {a: f"moved_{k}" for a, k in zip(names, space)})
        for k in space:
            y = lowering.split(y, f"moved_{k}", lowering.axes(output)[k])
        return y


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
            x, old = lowering.merged(x, axes[k], "rows")
            matrix = _resize_matrix(node, source.shape[k], output.shape[k], source)
            shape = [(_RESIZED, output.shape[k]), (old, source.shape[k])]
            weights = constant(lowering.mesh, matrix.numpy(), shape)
            names = [_RESIZED if name == old else name for name in x.shape.names]
            x = einsum([x, weights], names)
            x = lowering.split(x, _RESIZED, lowering.axes(output)[k])
        return x


def _image(node: Node) -> Value:
    """Returns the images that a window slides over."""
    return node.inputs[2 if node.kind in _TRANSPOSED else 0]


def _convolution(analysis: Analysis, node: Node, space: Sequence[Any]) -> None:
    """The dimensions of a convolution, which may have groups of channels."""
    image, filters = node.inputs
    x, kernel = analysis.of(image), analysis.of(filters)
    inner = filters.shape[-2]
    groups = image.shape[-1] // inner
    if groups == 1:
        analysis.set(node.outputs[0], [x[0], *space, kernel[-1]])
        analysis.unify_all([x[-1]], [kernel[-2]])
        return
    channels = (*analysis.new(groups), *analysis.new(inner))
    analysis.unify(channels, x[-1])
    group, *rest = flat(channels)
    if len(flat(channels)) > 1:
        analysis.unify(rest, kernel[-2])
    outer = analysis.new(node.outputs[0].shape[-1] // groups)
    analysis.unify((group, *outer), kernel[-1])
    analysis.set(node.outputs[0], [x[0], *space, analysis.of(filters)[-1]])


class _Windows:
    """How the windows of a node slide over images whose rows and columns have some names."""

    def __init__(self, lowering: Lowering, node: Node, names: Sequence[str]) -> None:
        self.lowering = lowering
        self.node = node
        self.names = names
        self.stride = self._sizes("strides")
        self.padding: Any = node.attributes["padding"].decode().lower()
        if self.padding == "explicit":
            pads = [int(size) for size in node.attributes["explicit_paddings"]]
            pairs = list(zip(pads[::2], pads[1::2]))
            self.padding = dict(zip(names, pairs[1:]))

    def slide(self, x: Tensor) -> Tensor:
        """Returns a pooling or convolution of images."""
        lowering, node, free = self.lowering, self.node, [None] * len(self.names)
        if node.kind in _POOLS:
            extents = self._sizes("ksize").items()
            extent = "; ".join(f"{a}:{size}" for a, size in extents)
            return _POOLS[node.kind](x, extent, self.stride, self.padding)
        filters, image, output = node.inputs[1], _image(node), node.outputs[0]
        channels, result = (lowering.axes(v)[-1] for v in (image, output))
        if node.kind in _TRANSPOSED:
            kernel = lowering.aligned(filters, [*free, result, channels])
            kernel, window = self._with_taps(kernel)
            sizes = {a: output.shape[k] for k, a in enumerate(self.names, start=1)}
            return conv_transpose(
                x, kernel, window, self.stride, self.padding, output_size=sizes
            )
        if node.kind == "DepthwiseConv2dNative":
            kernel = lowering.aligned(filters, [*free, channels, None])
            return self._convolve(x, kernel, lowering.names(channels))
        if image.shape[-1] == filters.shape[-2]:
            kernel = lowering.aligned(filters, [*free, channels, result])
            return self._convolve(x, kernel)
        return self._convolve_groups(x)

    def _convolve(self, x: Tensor, kernel: Tensor, groups: Any = ()) -> Tensor:
        kernel, window = self._with_taps(kernel)
        dilation = self._sizes("dilations")
        return conv(x, kernel, window, self.stride, self.padding, dilation, groups)

    def _convolve_groups(self, x: Tensor) -> Tensor:
        """Returns the convolution of groups of channels, each with filters of its own."""
        lowering, (image, filters) = self.lowering, self.node.inputs
        count = image.shape[-1] // filters.shape[-2]
        *_, inner, outer = lowering.axes(filters)
        x = _in_groups(lowering, x, lowering.axes(image)[-1], count, "inner")
        kernel = _in_groups(lowering, lowering.tensor(filters), outer, count, "outer")
        kernel = lowering.as_dimension(kernel, inner, "inner")
        y = self._convolve(x, kernel, "group")
        axis = lowering.axes(self.node.outputs[0])[-1]
        group, rest = _first(axis, count)
        if group is None:
            y = flatten(y, "group; outer", "channels_now")
            return lowering.split(y, "channels_now", axis)
        y = rename(y, "group", lowering.names([group])[0])
        return lowering.split(y, "outer", rest)

    def _with_taps(self, kernel: Tensor) -> tuple[Tensor, dict[str, str]]:
        """Returns filters with a name for each axis of their windows, and these names."""
        window = {}
        axes = self.lowering.axes(self.node.inputs[1])
        for k, name in enumerate(self.names):
            kernel, window[name] = self.lowering.merged(kernel, axes[k], f"tap_{k}")
        return kernel, window

    def _sizes(self, attribute: str) -> dict[str, int]:
        """Returns numbers for rows, columns and so on: an attribute has one for each axis."""
        values = self.node.attributes[attribute][1:]
        return {name: int(size) for name, size in zip(self.names, values)}


def _in_groups(
    lowering: Lowering, x: Tensor, axis: Axis, count: int, inner: str
) -> Tensor:
    """Returns a tensor whose channels are two dimensions: "group", and those of a group."""
    group, rest = _first(axis, count)
    if group is None:
        x, name = lowering.merged(x, axis, "channels_now")
        return unflatten(x, name, f"group:{count}; {inner}:{x.shape[name] // count}")
    x, name = lowering.merged(x, rest, inner)
    return rename(x, {lowering.names([group])[0]: "group", name: inner})


def _first(axis: Axis, size: int) -> tuple[Atom | None, Axis]:
    """Returns the first atom of an axis, if it has a size, and the others."""
    if axis and axis[0].size == size:
        return axis[0], axis[1:]
    return None, axis


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
