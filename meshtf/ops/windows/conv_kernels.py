"""TensorFlow's convolutions, for any sizes, groups and dilations, forward and backward.

    x [batch, *sizes, groups, c_in]   kernel [*taps, groups, c_in, c_out]
    y [batch, *windows, groups, c_out]

TensorFlow has kernels for two and three spatial dimensions, for one group or groups of
one channel each. Convolutions that a CPU without oneDNN lacks are converted to these:

    one dimension        two, of which one has size 1
    dilation d           d interleaved convolutions, concatenated along the batch
    dilated and strided  stride 1, then every stride-th window
    other groups         one after another
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.local_reshape import reshape

_RAW = tf.raw_ops
_DENSE_2D = (_RAW.Conv2D, _RAW.Conv2DBackpropInput, _RAW.Conv2DBackpropFilter)
_DENSE_3D = (_RAW.Conv3D, _RAW.Conv3DBackpropInputV2, _RAW.Conv3DBackpropFilterV2)
_DEPTHWISE = (
    _RAW.DepthwiseConv2dNative,
    _RAW.DepthwiseConv2dNativeBackpropInput,
    _RAW.DepthwiseConv2dNativeBackpropFilter,
)

Ints = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Kernels:
    """One convolution, as the TensorFlow ops that make y, dx and dkernel.

    `sizes` are the spatial sizes of x, and `pads` the zeros before and after.
    """

    sizes: Ints
    taps: Ints
    strides: Ints
    dilations: Ints
    pads: tuple[tuple[int, int], ...]
    groups: int
    c_in: int
    c_out: int

    def forward(self, x: Any, kernel: Any) -> Any:
        """Returns y."""
        if self._unrolled:
            return self._each_group(Kernels.forward, (x, -2), (kernel, -3), -2)
        y = self._ops[0](
            input=self._wide(x), filter=self._flat_kernel(kernel), **self._attributes
        )
        return self._strided(
            self._from_kernel_shape(y, [(0, e) for e in self._extra], self.c_out)
        )

    def input_gradient(self, dy: Any, kernel: Any) -> Any:
        """Returns dx, which is the transposed convolution of dy."""
        if self._unrolled:
            return self._each_group(Kernels.input_gradient, (dy, -2), (kernel, -3), -2)
        dy = self._narrow(dy)
        sizes = [dy.shape[0], *self._lift(self._block_sizes), self.groups * self.c_in]
        dx = self._ops[1](
            input_sizes=sizes,
            filter=self._flat_kernel(kernel),
            out_backprop=dy,
            **self._attributes,
        )
        return self._from_kernel_shape(dx, self._margins, self.c_in)

    def kernel_gradient(self, x: Any, dy: Any) -> Any:
        """Returns dkernel."""
        if self._unrolled:
            return self._each_group(Kernels.kernel_gradient, (x, -2), (dy, -2), -3)
        sizes = [*self._lift(self.taps), self.groups * self.c_in, self.c_out]
        dkernel = self._ops[2](
            input=self._wide(x),
            filter_sizes=sizes,
            out_backprop=self._narrow(dy),
            **self._attributes,
        )
        return reshape(dkernel, [*self.taps, self.groups, self.c_in, self.c_out])

    # The choice of TensorFlow's kernel, and its attributes.

    @property
    def _depthwise(self) -> bool:
        return self.groups > 1 and self.c_in == 1 and len(self.taps) <= 2

    @property
    def _unrolled(self) -> bool:
        return self.groups > 1 and not self._depthwise

    @property
    def _dilated(self) -> bool:
        return max(self.dilations) > 1

    @property
    def _subsampled(self) -> bool:
        """Whether the kernel runs with stride 1, and strides are applied to its output."""
        uneven = self._depthwise and len(set(self.strides)) > 1
        return max(self.strides) > 1 and (self._dilated or uneven)

    @property
    def _ops(self) -> tuple[Callable[..., Any], ...]:
        if self._depthwise:
            return _DEPTHWISE
        if len(self.taps) == 3:
            return _DENSE_3D
        return _DENSE_2D

    @property
    def _steps(self) -> Ints:
        """The strides that the kernel takes."""
        if self._subsampled:
            return (1,) * len(self.taps)
        return self.strides

    @property
    def _has_same_padding(self) -> bool:
        """Whether the kernel's "SAME" padding is that of x: faster than to pad first."""
        if self._dilated:
            return False
        same_pads = []
        for size, step, taps in zip(self.sizes, self._steps, self.taps):
            num_windows = -(-size // step)
            total = max((num_windows - 1) * step + taps - size, 0)
            before = total // 2
            same_pads.append((before, total - before))
        return self.pads == tuple(same_pads)

    @property
    def _attributes(self) -> dict[str, Any]:
        # A stride over an added dimension of size 1 has no effect; kernels require
        # equal strides.
        return {
            "strides": [1, *self._lift(self._steps, self._steps[-1]), 1],
            "padding": "SAME" if self._has_same_padding else "VALID",
        }

    # Conversions from and to the shapes that the kernel takes.

    @property
    def _windows(self) -> list[int]:
        """The number of windows at stride 1."""
        windows = []
        spatial = zip(self.sizes, self.taps, self.dilations, self.pads)
        for size, taps, dilation, pads in spatial:
            extent = (taps - 1) * dilation
            windows.append(size + sum(pads) - extent)
        return windows

    @property
    def _extra(self) -> list[int]:
        """Padding after x that makes its size divisible by the dilation."""
        pairs = zip(self._windows, self.dilations)
        return [-windows % dilation for windows, dilation in pairs]

    @property
    def _margins(self) -> list[tuple[int, int]]:
        """Padding of x before and after, other than the kernel's."""
        if self._has_same_padding:
            return [(0, 0)] * len(self.sizes)
        margins = []
        for (before, after), extra in zip(self.pads, self._extra):
            margins.append((before, after + extra))
        return margins

    @property
    def _block_sizes(self) -> list[int]:
        """The spatial sizes of x after padding and `space_to_batch`."""
        block_sizes = []
        for size, margin, dilation in zip(self.sizes, self._margins, self.dilations):
            padded = size + sum(margin)
            block_sizes.append(padded // dilation)
        return block_sizes

    def _wide(self, x: Any) -> Any:
        return self._to_kernel_shape(x, self._margins)

    def _narrow(self, dy: Any) -> Any:
        """Returns dy as the kernel takes it, with zeros for windows between strides."""
        if self._subsampled:
            pairs = zip(self._windows, self.strides)
            for axis, (windows, stride) in enumerate(pairs, start=1):
                if stride > 1:
                    dy = _insert_zeros(dy, axis, stride, windows)
        margins = [(0, extra) for extra in self._extra]
        return self._to_kernel_shape(dy, margins)

    def _strided(self, y: Any) -> Any:
        """Returns every stride-th window."""
        if not self._subsampled:
            return y
        spatial = [slice(None, None, stride) for stride in self.strides]
        return y[[slice(None), *spatial]]

    def _to_kernel_shape(self, x: Any, margins: Sequence[tuple[int, int]]) -> Any:
        """Returns x padded, with groups and channels merged.

        Where it is dilated, interleaved elements are moved to the batch.
        """
        if self._dilated:
            x = tf.space_to_batch(x, self.dilations, margins)
        elif any(map(any, margins)):
            x = tf.pad(x, [(0, 0), *margins, (0, 0), (0, 0)])
        batch, *sizes, groups, channels = x.shape.as_list()
        return reshape(x, [batch, *self._lift(sizes), groups * channels])

    def _from_kernel_shape(
        self, x: Any, margins: Sequence[tuple[int, int]], channels: int
    ) -> Any:
        """Undoes `_to_kernel_shape`."""
        sizes = x.shape.as_list()[-1 - len(self.sizes) : -1]
        x = reshape(x, [x.shape[0], *sizes, self.groups, channels])
        if self._dilated:
            return tf.batch_to_space(x, self.dilations, margins)
        if any(map(any, margins)):
            spatial = []
            for size, (before, after) in zip(sizes, margins):
                spatial.append(slice(before, size - after))
            x = x[[slice(None), *spatial]]
        return x

    def _flat_kernel(self, kernel: Any) -> Any:
        return reshape(
            kernel, [*self._lift(self.taps), self.groups * self.c_in, self.c_out]
        )

    def _lift(self, values: Sequence[Any], one: Any = 1) -> list[Any]:
        """Returns a value for each dimension of the kernel, which has two at least."""
        if len(values) == 1:
            return [one, *values]
        return list(values)

    def _each_group(
        self, fn: Callable[..., Any], a: tuple[Any, int], b: tuple[Any, int], axis: int
    ) -> Any:
        """Returns the results of `fn` for each group, concatenated along `axis`.

        `a` and `b` are the arguments of `fn`, each with its axis of groups.
        """
        single = dataclasses.replace(self, groups=1)
        a_tensor, a_axis = a
        b_tensor, b_axis = b
        a_groups = tf.split(a_tensor, self.groups, a_axis)
        b_groups = tf.split(b_tensor, self.groups, b_axis)
        results = []
        for a_group, b_group in zip(a_groups, b_groups):
            results.append(fn(single, a_group, b_group))
        return tf.concat(results, axis)


def _insert_zeros(x: Any, axis: int, stride: int, size: int) -> Any:
    """Returns the first `size` elements along `axis` of x with stride - 1 zeros after
    each element.
    """
    before = x.shape.as_list()[:axis]
    after = x.shape.as_list()[axis + 1 :]
    expanded = tf.expand_dims(x, axis + 1)
    pads = [[0, 0] for _ in expanded.shape]
    pads[axis + 1] = [0, stride - 1]
    spread_size = x.shape[axis] * stride
    with_zeros = tf.reshape(tf.pad(expanded, pads), [*before, spread_size, *after])
    section = [slice(None)] * axis + [slice(size)]
    return with_zeros[section]
