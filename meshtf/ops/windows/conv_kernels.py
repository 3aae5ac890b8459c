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
    def _same(self) -> bool:
        """Whether the kernel's "SAME" padding is that of x: faster than to pad first."""
        totals = [
            max((-(-size // step) - 1) * step + taps - size, 0)
            for size, step, taps in zip(self.sizes, self._steps, self.taps)
        ]
        same_pads = tuple((n // 2, n - n // 2) for n in totals)
        return not self._dilated and self.pads == same_pads

    @property
    def _attributes(self) -> dict[str, Any]:
        # A stride over an added dimension of size 1 has no effect; kernels require
        # equal strides.
        return {
            "strides": [1, *self._lift(self._steps, self._steps[-1]), 1],
            "padding": "SAME" if self._same else "VALID",
        }

    # Conversions from and to the shapes that the kernel takes.

    @property
    def _windows(self) -> list[int]:
        """The number of windows at stride 1."""
        return [
            size + sum(pads) - (taps - 1) * dilation
            for size, taps, dilation, pads in zip(
                self.sizes, self.taps, self.dilations, self.pads
            )
        ]

    @property
    def _extra(self) -> list[int]:
        """Padding after x that makes its size divisible by the dilation."""
        return [
            -windows % dilation
            for windows, dilation in zip(self._windows, self.dilations)
        ]

    @property
    def _margins(self) -> list[tuple[int, int]]:
        """Padding of x before and after, other than the kernel's."""
        if self._same:
            return [(0, 0)] * len(self.sizes)
        return [
            (before, after + extra)
            for (before, after), extra in zip(self.pads, self._extra)
        ]

    @property
    def _block_sizes(self) -> list[int]:
        """The spatial sizes of x after padding and `space_to_batch`."""
        return [
            (size + sum(margin)) // dilation
            for size, margin, dilation in zip(self.sizes, self._margins, self.dilations)
        ]

    def _wide(self, x: Any) -> Any:
        return self._to_kernel_shape(x, self._margins)

    def _narrow(self, dy: Any) -> Any:
        """Returns dy as the kernel takes it, with zeros for windows between strides."""
        for axis, (windows, stride) in enumerate(
            zip(self._windows, self.strides), start=1
        ):
            if self._subsampled and stride > 1:
                sizes = dy.shape.as_list()
                rank = len(dy.shape)
                pads = [
                    [0, stride - 1] if k == axis + 1 else [0, 0]
                    for k in range(rank + 1)
                ]
                dy = tf.reshape(
                    tf.pad(tf.expand_dims(dy, axis + 1), pads),
                    [*sizes[:axis], sizes[axis] * stride, *sizes[axis + 1 :]],
                )
                dy = dy[(slice(None),) * axis + (slice(windows),)]
        return self._to_kernel_shape(dy, [(0, e) for e in self._extra])

    def _strided(self, y: Any) -> Any:
        """Returns every stride-th window."""
        strided = [slice(None), *(slice(None, None, s) for s in self.strides)]
        return y[strided] if self._subsampled else y

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
            inner = [
                slice(None),
                *(slice(a, n - b) for n, (a, b) in zip(sizes, margins)),
            ]
            x = x[inner]
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
        pairs = zip(*(tf.split(x, self.groups, k) for x, k in (a, b)))
        return tf.concat([fn(single, *pair) for pair in pairs], axis)
