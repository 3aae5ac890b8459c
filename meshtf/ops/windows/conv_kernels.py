"""TensorFlow's convolutions, for any sizes, groups and dilations, forward and backward.

    x [batch, *sizes, groups, c_in]   kernel [*taps, groups, c_in, c_out]
    y [batch, *num_windows, groups, c_out]

TensorFlow has kernels for two and three spatial dimensions, and for one group or groups of
one channel each (depthwise). A CPU without oneDNN lacks other convolutions, so these are
computed by the available kernels:

    one dimension        as two, one of them of size 1
    dilation d           as d interleaved convolutions, concatenated along the batch
    dilated and strided  with stride 1, then every stride-th window is taken
    other groups         by one convolution for each group

Taps are the elements of a window, as in a filter. An example with one spatial dimension:

    kernels = ConvKernels(sizes=(8,), taps=(3,), strides=(1,), dilations=(1,),
                          pads=((1, 1),), groups=1, c_in=4, c_out=2)
    y = kernels.compute("y", x, kernel)       # x [batch, 8, 1, 4], kernel [3, 1, 4, 2]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.ops.common.local_reshape import reshape

# For each kind of convolution, the ops of `tf.raw_ops` that compute y, dx and dkernel.
_DENSE_2D = ("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter")
_DENSE_3D = ("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2")
_DEPTHWISE = (
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
)

# Of each tensor of a convolution, x, y or k for the kernel, the two from which it is computed: it,
# or its gradient.
INPUTS = {"y": "xk", "x": "yk", "k": "yx"}
# The axis of `groups` in each of them, from the end.
_GROUPS_AXIS = {"x": -2, "y": -2, "k": -3}

Ints = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class ConvKernels:
    """One convolution, as the TensorFlow ops that compute y, dx and dkernel.

    Attributes:
      sizes: the spatial sizes of x.
      taps: the spatial sizes of the kernel.
      strides: the stride of each spatial dimension.
      dilations: the dilation of each spatial dimension.
      pads: the numbers of zeros before and after each spatial dimension of x.
      groups: the number of groups of channels.
      c_in: the number of channels of x in a group.
      c_out: the number of channels of y in a group.
    """

    sizes: Ints
    taps: Ints
    strides: Ints
    dilations: Ints
    pads: tuple[tuple[int, int], ...]
    groups: int
    c_in: int
    c_out: int

    def compute(self, output: str, a: Any, b: Any) -> Any:
        """Returns y [batch, *num_windows, groups, c_out], or the gradient in x [batch, *sizes,
        groups, c_in] or in the kernel [*taps, groups, c_in, c_out].

        Args:
          output: "y", "x" or "k" for the kernel.
          a, b: the tensors that `INPUTS[output]` names.
        """
        if self._unrolled:
            single_group = dataclasses.replace(self, groups=1)
            groups_of_inputs = []
            for letter, x in zip(INPUTS[output], (a, b)):
                groups_of_inputs.append(tf.split(x, self.groups, _GROUPS_AXIS[letter]))
            pairs = zip(*groups_of_inputs)
            results = [single_group.compute(output, *pair) for pair in pairs]
            return tf.concat(results, _GROUPS_AXIS[output])
        functions = {
            "y": self._forward,
            "x": self._input_gradient,
            "k": self._kernel_gradient,
        }
        return functions[output](a, b)

    def _forward(self, x: Any, kernel: Any) -> Any:
        y = self._op("y")(
            input=self._op_input(x),
            filter=self._op_filter(kernel),
            **self._op_attributes,
        )
        margins = [(0, extra) for extra in self._dilation_padding]
        y = self._from_op_layout(y, margins, self.c_out)
        return self._subsampled(y)

    def _input_gradient(self, dy: Any, kernel: Any) -> Any:
        dy = self._op_output_gradient(dy)
        spatial = self._at_least_2d(self._block_sizes)
        dx = self._op("x")(
            input_sizes=[dy.shape[0], *spatial, self.groups * self.c_in],
            filter=self._op_filter(kernel),
            out_backprop=dy,
            **self._op_attributes,
        )
        return self._from_op_layout(dx, self._margins, self.c_in)

    def _kernel_gradient(self, dy: Any, x: Any) -> Any:
        taps = self._at_least_2d(self.taps)
        dkernel = self._op("k")(
            input=self._op_input(x),
            filter_sizes=[*taps, self.groups * self.c_in, self.c_out],
            out_backprop=self._op_output_gradient(dy),
            **self._op_attributes,
        )
        return reshape(dkernel, [*self.taps, self.groups, self.c_in, self.c_out])

    # The choice of TensorFlow's ops, and their attributes.

    @property
    def _depthwise(self) -> bool:
        """Whether each group has one channel, and TensorFlow's depthwise ops apply."""
        return self.groups > 1 and self.c_in == 1 and len(self.taps) <= 2

    @property
    def _unrolled(self) -> bool:
        """Whether groups are computed by one op each."""
        return self.groups > 1 and not self._depthwise

    @property
    def _dilated(self) -> bool:
        """Whether any dimension is dilated."""
        return max(self.dilations) > 1

    @property
    def _needs_subsampling(self) -> bool:
        """Whether the op runs with stride 1, and strides are applied to its output."""
        if max(self.strides) == 1:
            return False
        # Depthwise ops take one stride for both dimensions.
        has_unequal_strides = len(set(self.strides)) > 1
        return self._dilated or (self._depthwise and has_unequal_strides)

    def _op(self, output: str) -> Callable[..., Any]:
        """Returns the TensorFlow op that computes y, dx or dkernel."""
        names = _DENSE_3D if len(self.taps) == 3 else _DENSE_2D
        if self._depthwise:
            names = _DEPTHWISE
        op: Callable[..., Any] = getattr(tf.raw_ops, names["yxk".index(output)])
        return op

    @property
    def _op_strides(self) -> Ints:
        """The strides that the op is given."""
        if self._needs_subsampling:
            return (1,) * len(self.taps)
        return self.strides

    @property
    def _has_same_padding(self) -> bool:
        """Whether `pads` equals the op's "SAME" padding, which is faster than `tf.pad`."""
        if self._dilated:
            return False
        same_pads = []
        for size, stride, taps in zip(self.sizes, self._op_strides, self.taps):
            num_windows = -(-size // stride)  # the ceiling of the quotient
            total = max((num_windows - 1) * stride + taps - size, 0)
            before = total // 2
            same_pads.append((before, total - before))
        return self.pads == tuple(same_pads)

    @property
    def _op_attributes(self) -> dict[str, Any]:
        """The attributes of the op, for dimensions [batch, *spatial, channels]."""
        # Ops require equal strides, so an added dimension of size 1 gets the stride of the
        # other one. It has one window, whatever the stride.
        spatial = self._at_least_2d(self._op_strides, added=self._op_strides[-1])
        return {
            "strides": [1, *spatial, 1],
            "padding": "SAME" if self._has_same_padding else "VALID",
        }

    # Conversions from and to the layout of the ops, [batch, *spatial, channels].

    @property
    def _stride_1_windows(self) -> list[int]:
        """The number of windows of each dimension if its stride were 1."""
        num_windows = []
        spatial = zip(self.sizes, self.taps, self.dilations, self.pads)
        for size, taps, dilation, pads in spatial:
            num_windows.append(size + sum(pads) - (taps - 1) * dilation)
        return num_windows

    @property
    def _dilation_padding(self) -> list[int]:
        """Padding after x that makes the number of windows divisible by the dilation, as
        `tf.space_to_batch` requires.
        """
        pairs = zip(self._stride_1_windows, self.dilations)
        # -n % d is the distance from n to the next multiple of d.
        return [-num_windows % dilation for num_windows, dilation in pairs]

    @property
    def _margins(self) -> list[tuple[int, int]]:
        """Padding of each spatial dimension of x (before, after), to be added before the op
        runs. None is added if the op's "SAME" padding suffices.
        """
        if self._has_same_padding:
            return [(0, 0)] * len(self.sizes)
        margins = []
        for (before, after), extra in zip(self.pads, self._dilation_padding):
            margins.append((before, after + extra))
        return margins

    @property
    def _block_sizes(self) -> list[int]:
        """The spatial sizes of x after padding and `tf.space_to_batch`."""
        block_sizes = []
        for size, margin, dilation in zip(self.sizes, self._margins, self.dilations):
            padded_size = size + sum(margin)
            block_sizes.append(padded_size // dilation)
        return block_sizes

    def _op_input(self, x: Any) -> Any:
        """Returns x in the layout of the op, padded."""
        return self._to_op_layout(x, self._margins)

    def _op_output_gradient(self, dy: Any) -> Any:
        """Returns dy in the layout of the op, with zeros for windows that strides skip."""
        if self._needs_subsampling:
            pairs = zip(self._stride_1_windows, self.strides)
            for axis, (num_windows, stride) in enumerate(pairs, start=1):
                if stride > 1:
                    dy = _insert_zeros(dy, axis, stride, size=num_windows)
        margins = [(0, extra) for extra in self._dilation_padding]
        return self._to_op_layout(dy, margins)

    def _subsampled(self, y: Any) -> Any:
        """Returns y with every stride-th window, if the op ran with stride 1."""
        if not self._needs_subsampling:
            return y
        spatial = [slice(None, None, stride) for stride in self.strides]
        index = (slice(None), *spatial)
        return y[index]

    def _to_op_layout(self, x: Any, margins: Sequence[tuple[int, int]]) -> Any:
        """Returns x [batch, *sizes, groups, channels] as [batch, *sizes, groups * channels].

        Args:
          x: x or dy.
          margins: the padding before and after each spatial dimension. If the convolution
            is dilated, `tf.space_to_batch` also moves interleaved elements to the batch.
        """
        if self._dilated:
            x = tf.space_to_batch(x, self.dilations, margins)
        elif any(map(any, margins)):
            x = tf.pad(x, [(0, 0), *margins, (0, 0), (0, 0)])
        batch, *sizes, groups, channels = x.shape.as_list()
        return reshape(x, [batch, *self._at_least_2d(sizes), groups * channels])

    def _from_op_layout(
        self, x: Any, margins: Sequence[tuple[int, int]], channels: int
    ) -> Any:
        """Returns the output of an op as [batch, *sizes, groups, channels], without
        margins: the inverse of `_to_op_layout`.
        """
        # The last spatial sizes: without the dimension that `_at_least_2d` added in front.
        sizes = x.shape.as_list()[-1 - len(self.sizes) : -1]
        x = reshape(x, [x.shape[0], *sizes, self.groups, channels])
        if self._dilated:
            return tf.batch_to_space(x, self.dilations, margins)
        if any(map(any, margins)):
            spatial = []
            for size, (before, after) in zip(sizes, margins):
                spatial.append(slice(before, size - after))
            index = (slice(None), *spatial)
            x = x[index]
        return x

    def _op_filter(self, kernel: Any) -> Any:
        """Returns the kernel in the layout of the op, [*taps, groups * c_in, c_out]."""
        taps = self._at_least_2d(self.taps)
        return reshape(kernel, [*taps, self.groups * self.c_in, self.c_out])

    def _at_least_2d(self, values: Sequence[Any], added: Any = 1) -> list[Any]:
        """Returns a value for each spatial dimension of the op: `values`, but with `added`
        in front if there is only one. Ops have two or three spatial dimensions.
        """
        if len(values) == 1:
            return [added, *values]
        return list(values)


def _insert_zeros(x: Any, axis: int, stride: int, size: int) -> Any:
    """Returns the first `size` elements of x with stride - 1 zeros after each element along
    an axis: [a, b, c], stride 2, size 5 -> [a, 0, b, 0, c].
    """
    sizes_before = x.shape.as_list()[:axis]
    sizes_after = x.shape.as_list()[axis + 1 :]
    # Zeros are padded along a new axis, which is then merged with `axis`.
    expanded = tf.expand_dims(x, axis + 1)
    pads = [[0, 0] for _ in expanded.shape]
    pads[axis + 1] = [0, stride - 1]
    merged_size = x.shape[axis] * stride
    with_zeros = tf.reshape(
        tf.pad(expanded, pads), [*sizes_before, merged_size, *sizes_after]
    )
    return with_zeros[(slice(None),) * axis + (slice(size),)]
