"""TensorFlow's convolutions, for any number of rows, groups and dilations, forward and
backward.

    x [batch, *rows, groups, c_in]   kernel [*taps, groups, c_in, c_out]
    y [batch, *windows, groups, c_out]

TensorFlow has kernels for two and three dimensions of rows, for one group or groups of
one channel each. What it has on no CPU without oneDNN is brought to these:

    one dimension        two, of which one has a single row
    dilation d           d interleaved convolutions, side by side in the batch
    dilated and strided  all windows, of which some are dropped
    other groups         one after the other
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

    `rows` are those of x, and `pads` the zeros that stand before and after them.
    """

    rows: Ints
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
        return self._thinned(self._joined(y, [(0, e) for e in self._extra], self.c_out))

    def input_gradient(self, dy: Any, kernel: Any) -> Any:
        """Returns dx, by the same token the transposed convolution of dy."""
        if self._unrolled:
            return self._each_group(Kernels.input_gradient, (dy, -2), (kernel, -3), -2)
        dy = self._narrow(dy)
        sizes = [dy.shape[0], *self._lift(self._block_rows), self.groups * self.c_in]
        dx = self._ops[1](
            input_sizes=sizes,
            filter=self._flat_kernel(kernel),
            out_backprop=dy,
            **self._attributes,
        )
        return self._joined(dx, self._margins, self.c_in)

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

    # Which kernel of TensorFlow's runs, and how.

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
    def _thin(self) -> bool:
        """Whether all windows are computed, and then some dropped."""
        uneven = self._depthwise and len(set(self.strides)) > 1
        return max(self.strides) > 1 and (self._dilated or uneven)

    @property
    def _ops(self) -> tuple[Callable[..., Any], ...]:
        if self._depthwise:
            return _DEPTHWISE
        return _DENSE_3D if len(self.taps) == 3 else _DENSE_2D

    @property
    def _steps(self) -> Ints:
        """The strides that the kernel takes."""
        return (1,) * len(self.taps) if self._thin else self.strides

    @property
    def _same(self) -> bool:
        """Whether the kernel knows the padding by itself, which is faster than to pad
        first.
        """
        totals = [
            max((-(-rows // step) - 1) * step + taps - rows, 0)
            for rows, step, taps in zip(self.rows, self._steps, self.taps)
        ]
        return not self._dilated and self.pads == tuple(
            (n // 2, n - n // 2) for n in totals
        )

    @property
    def _attributes(self) -> dict[str, Any]:
        # A stride over the one row of a dimension that was put in changes nothing;
        # kernels want equals.
        return {
            "strides": [1, *self._lift(self._steps, self._steps[-1]), 1],
            "padding": "SAME" if self._same else "VALID",
        }

    # Rows in and out of the shape that the kernel takes.

    @property
    def _windows(self) -> list[int]:
        """How many windows there are, before any are dropped."""
        return [
            rows + sum(pads) - (taps - 1) * dilation
            for rows, taps, dilation, pads in zip(
                self.rows, self.taps, self.dilations, self.pads
            )
        ]

    @property
    def _extra(self) -> list[int]:
        """The rows that are put behind, so that the dilation divides the rows."""
        return [
            -windows % dilation
            for windows, dilation in zip(self._windows, self.dilations)
        ]

    @property
    def _margins(self) -> list[tuple[int, int]]:
        """The rows that x gets before and behind, other than by the kernel."""
        if self._same:
            return [(0, 0)] * len(self.rows)
        return [
            (before, after + extra)
            for (before, after), extra in zip(self.pads, self._extra)
        ]

    @property
    def _block_rows(self) -> list[int]:
        """The rows of x as the kernel sees it."""
        return [
            (rows + sum(margin)) // dilation
            for rows, margin, dilation in zip(self.rows, self._margins, self.dilations)
        ]

    def _wide(self, x: Any) -> Any:
        return self._parted(x, self._margins)

    def _narrow(self, dy: Any) -> Any:
        """Returns dy with zeros for windows that were dropped."""
        for axis, (windows, stride) in enumerate(
            zip(self._windows, self.strides), start=1
        ):
            if self._thin and stride > 1:
                sizes, rank = dy.shape.as_list(), len(dy.shape)
                pads = [
                    [0, stride - 1] if k == axis + 1 else [0, 0]
                    for k in range(rank + 1)
                ]
                dy = tf.reshape(
                    tf.pad(tf.expand_dims(dy, axis + 1), pads),
                    [*sizes[:axis], sizes[axis] * stride, *sizes[axis + 1 :]],
                )
                dy = dy[(slice(None),) * axis + (slice(windows),)]
        return self._parted(dy, [(0, e) for e in self._extra])

    def _thinned(self, y: Any) -> Any:
        kept = [slice(None), *(slice(None, None, s) for s in self.strides)]
        return y[kept] if self._thin else y

    def _parted(self, x: Any, margins: Sequence[tuple[int, int]]) -> Any:
        """Returns x with margins, interleaved rows in the batch, and channels
        as one.
        """
        if self._dilated:
            x = tf.space_to_batch(x, self.dilations, margins)
        elif any(map(any, margins)):
            x = tf.pad(x, [(0, 0), *margins, (0, 0), (0, 0)])
        batch, *rows, groups, channels = x.shape.as_list()
        return reshape(x, [batch, *self._lift(rows), groups * channels])

    def _joined(self, x: Any, margins: Sequence[tuple[int, int]], channels: int) -> Any:
        """Undoes `_parted`."""
        rows = x.shape.as_list()[-1 - len(self.rows) : -1]
        x = reshape(x, [x.shape[0], *rows, self.groups, channels])
        if self._dilated:
            return tf.batch_to_space(x, self.dilations, margins)
        if any(map(any, margins)):
            inner = [
                slice(None),
                *(slice(a, n - b) for n, (a, b) in zip(rows, margins)),
            ]
            x = x[inner]
        return x

    def _flat_kernel(self, kernel: Any) -> Any:
        return reshape(
            kernel, [*self._lift(self.taps), self.groups * self.c_in, self.c_out]
        )

    def _lift(self, rows: Sequence[Any], one: Any = 1) -> list[Any]:
        return [one, *rows] if len(rows) == 1 else list(rows)

    def _each_group(
        self, fn: Callable[..., Any], a: tuple[Any, int], b: tuple[Any, int], axis: int
    ) -> Any:
        single = dataclasses.replace(self, groups=1)
        pairs = zip(*(tf.split(x, self.groups, k) for x, k in (a, b)))
        return tf.concat([fn(single, *pair) for pair in pairs], axis)
