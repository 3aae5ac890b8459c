"""The roles of names in a convolution: spatial, taps, summed, added, groups, batch.

Example:

    x[batch h w c_in]   kernel[k_h k_w c_in c_out]   windows of k_h over h, of k_w over w
    y[batch h w c_out]  c_in is summed over, c_out is added

The role of a name follows from the tensors that have it:

    role       x     kernel  y
    batch      yes   no      yes
    spatial    yes   no      yes   windows slide over it
    taps       no    yes     no    the elements of a window
    groups     yes   yes     yes   listed in the argument `groups`
    summed     yes   yes     no
    added      no    yes     yes
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from meshtf.errors import DTypeError, ShapeError, explain_error
from meshtf.graph import LocalContext, Spec
from meshtf.names import Dimension, Names, Shape, names_of, parse_pairs
from meshtf.names.arguments import as_mapping
from meshtf.ops.common.broadcasting import conflicting_sizes
from meshtf.ops.common.checks import require_dim_of_caller, require_floating
from meshtf.ops.common.local_reshape import reshape, transpose
from meshtf.ops.windows.conv_kernels import ConvKernels
from meshtf.ops.windows.sliding_window import MAX_DIMS, SlidingWindow, sliding_windows

# The names that each axis of a packed tensor merges: [("batch",), ("h",), ("c", "d")].
PackedAxes = list[tuple[str, ...]]


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How windows slide over x, and the roles of the kernel's names. All other names of the
    kernel are groups.

    Attributes:
      windows: how windows slide over each spatial dimension of x.
      taps: the kernel's names that index the elements of a window, one for each of
        `windows`.
      summed: names of x and the kernel that are summed over.
      added: names of the kernel that x lacks and y has.
    """

    windows: tuple[SlidingWindow, ...]
    taps: tuple[str, ...]
    summed: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """The spatial names of x, which windows slide over."""
        return tuple(window.dim for window in self.windows)

    def window_over(self, dim: str) -> SlidingWindow | None:
        """Returns how windows slide over dimension `dim`; None if it is not spatial."""
        for window in self.windows:
            if window.dim == dim:
                return window
        return None

    def sizes(self, *xs: Spec) -> dict[str, int]:
        """Returns the sizes of all names except for spatial ones.

        Args:
          *xs: the specs of the inputs of an op, two of x, y and the kernel.

        Raises:
          ShapeError: a name has two sizes.
          DTypeError: data types differ, or are not of floats.
        """
        sizes = {tap: window.taps for tap, window in zip(self.taps, self.windows)}
        for x in xs:
            require_floating(x, function="a convolution")
            if x.dtype != xs[0].dtype:
                raise DTypeError(
                    explain_error(
                        f"a convolution takes one data type, not {xs[0].dtype} and "
                        f"{x.dtype}.",
                        way_out=f'Convert one of them: mtf.cast(x, "{xs[0].dtype}").',
                    )
                )
        shapes = [x.shape.without(*self.dims) for x in xs]
        for name, known_size, size in conflicting_sizes(
            [Shape(sizes.items()), *shapes]
        ):
            raise ShapeError(
                explain_error(
                    f'"{name}" has size {known_size} in one input and {size} in another.',
                    inputs=" ".join(repr(x.shape) for x in xs),
                    way_out="A name that joins inputs has one size: rename one of them.",
                )
            )
        return sizes | {dim.name: dim.size for shape in shapes for dim in shape}

    def packed_axes(
        self, x_names: Sequence[str], kernel_names: Sequence[str]
    ) -> dict[str, PackedAxes]:
        """Returns the names that each packed axis merges, as `ConvKernels` expects them: of x
        [batch, *spatial, groups, summed], of y [batch, *spatial, groups, added], and of k, the
        kernel, [*taps, groups, summed, added].

        Args:
          x_names: the names of x, in any order.
          kernel_names: the names of the kernel, in any order.
        """
        groups = tuple(
            name for name in x_names if name in kernel_names and name not in self.summed
        )
        other_roles = (*self.dims, *groups, *self.summed)
        batch = tuple(name for name in x_names if name not in other_roles)
        spatial = [(name,) for name in self.dims]
        taps = [(name,) for name in self.taps]
        return {
            "x": [batch, *spatial, groups, self.summed],
            "y": [batch, *spatial, groups, self.added],
            "k": [*taps, groups, self.summed, self.added],
        }

    def kernels(
        self,
        context: LocalContext,
        x_sizes: Sequence[int],
        axes: Mapping[str, PackedAxes],
        sizes: Mapping[str, int],
    ) -> ConvKernels:
        """Returns the TensorFlow ops of this convolution on this device.

        Args:
          context: the sizes of this device's shards. The exchange between devices has
            padded sharded dimensions already.
          x_sizes: the spatial sizes of x on the device.
          axes: the result of `packed_axes`.
          sizes: the size on the device of each name that is not spatial.
        """
        pads = []
        for window in self.windows:
            if context.num_shards(window.dim) == 1:
                pads.append((window.pad_before, window.pad_after))
            else:
                pads.append((0, 0))
        groups, c_in, c_out = (
            math.prod(sizes[name] for name in axis) for axis in axes["k"][-3:]
        )
        return ConvKernels(
            sizes=tuple(x_sizes),
            taps=tuple(window.taps for window in self.windows),
            strides=tuple(window.stride for window in self.windows),
            dilations=tuple(window.dilation for window in self.windows),
            pads=tuple(pads),
            groups=groups,
            c_in=c_in,
            c_out=c_out,
        )


def pack(x: Any, names: Sequence[str], axes: PackedAxes) -> Any:
    """Returns x in its packed form, such as [b, h, w, c] with axes [("b",), ("h", "w"),
    ("c",)] as [b, h * w, c].

    Args:
      x: the TensorFlow tensor.
      names: the name of each axis of x.
      axes: the names that each axis of the result merges.
    """
    sizes = dict(zip(names, x.shape))
    order = [names.index(name) for axis in axes for name in axis]
    packed_shape = []
    for axis in axes:
        axis_sizes = [sizes[name] for name in axis]
        packed_shape.append(math.prod(axis_sizes))
    return reshape(transpose(x, order), packed_shape)


def unpack(x: Any, shape: Shape, axes: PackedAxes) -> Any:
    """Returns the tensor whose packed form is x: the inverse of `pack`.

    Args:
      x: the packed TensorFlow tensor.
      shape: the shape of the result.
      axes: the names that each axis of x merges.
    """
    order = [name for axis in axes for name in axis]
    x = reshape(x, [shape[name] for name in order])
    return transpose(x, [order.index(name) for name in shape.names])


def replace_names(
    names: Sequence[str],
    kernel_names: Sequence[str],
    *,
    removed: Sequence[str],
    added: Sequence[str],
) -> tuple[str, ...]:
    """Returns the names of the result of a convolution or matmul with a kernel: `names` of x
    without the removed names, and with the added names.

    The added names follow the last of `names` that the kernel has too. If the kernel has
    none of them, they are last.
    """
    insertion_index = len(names)
    shared_indices = [i for i, name in enumerate(names) if name in kernel_names]
    if shared_indices:
        insertion_index = shared_indices[-1] + 1
    order = [*names[:insertion_index], *added, *names[insertion_index:]]
    return tuple(name for name in order if name not in removed)


def resized(shape: Shape, sizes: Mapping[str, int], names: Sequence[str]) -> Shape:
    """Returns the shape with dimensions `names`. Their sizes are those in `sizes`, or else
    those in `shape`.
    """
    dims = []
    for name in names:
        size = sizes[name] if name in sizes else shape[name]
        dims.append(Dimension(name, size))
    return Shape(dims)


def read_window(
    window: Mapping[str, str] | str, x: Shape, kernel: Shape, groups: Names
) -> dict[str, str]:
    """Returns the argument `window` of `conv` as a dictionary: for each spatial name of x,
    the name of its taps in the kernel.

    Args:
      window: the argument: a mapping, or text such as "h:k_h;w:k_w".
      x: the shape of x.
      kernel: the shape of the kernel.
      groups: the argument `groups` of `conv`.

    Raises:
      ShapeError: names are missing or conflict.
    """
    if isinstance(window, str):
        pairs = parse_pairs(window, kind="window")
    else:
        window = as_mapping("window", window, 'names by name, such as "h:k_h;w:k_w"')
        pairs = list(window.items())
    taps = dict(pairs)
    require_dim_of_caller(x, *taps)
    require_dim_of_caller(kernel, *taps.values())
    for shape in (x, kernel):
        require_dim_of_caller(shape, *names_of(groups, shape, argument="groups"))
    has_duplicates = len(set(taps.values())) < len(pairs)
    if not 1 <= len(taps) <= MAX_DIMS or has_duplicates:
        raise ShapeError(
            f"windows slide over 1 to {MAX_DIMS} names, each with a name of the "
            f"kernel that no other has, not {window!r}."
        )
    # x must not have the names of taps, and the kernel must not have spatial names.
    for shape, forbidden_names in ((x, taps.values()), (kernel, taps)):
        for name in forbidden_names:
            if name in shape:
                raise ShapeError(
                    explain_error(
                        "the dimension that windows slide over and the taps of a "
                        f'window are both called "{name}".',
                        x=repr(x),
                        kernel=repr(kernel),
                        window=repr(window),
                        way_out=f'Give the kernel another name, such as "k_{name}".',
                    )
                )
    return taps


def convolution_geometry(
    x: Shape,
    kernel: Shape,
    taps: dict[str, str],
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: Names,
) -> tuple[Geometry, tuple[str, ...]]:
    """Returns the geometry of a convolution of x, and the names of its result in order.

    Args:
      x: the shape of x.
      kernel: the shape of the kernel.
      taps: the result of `read_window`: the name of the taps by spatial name.
      stride, padding, dilation, groups: the arguments of `conv`.
    """
    window_sizes = {dim: kernel[tap] for dim, tap in taps.items()}
    windows = sliding_windows(
        x, window_sizes, stride=stride, padding=padding, dilation=dilation
    )
    summed, added = summed_and_added(x, kernel, taps, groups)
    geometry = Geometry(
        windows=windows, taps=tuple(taps.values()), summed=summed, added=added
    )
    names = replace_names(x.names, kernel.names, removed=summed, added=added)
    return geometry, names


def summed_and_added(
    x: Shape, kernel: Shape, taps: dict[str, str], groups: Names
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the kernel whose role is summed, and those whose role is added.

    Args:
      x: the shape of x.
      kernel: the shape of the kernel.
      taps: the result of `read_window`.
      groups: the argument `groups` of `conv`.
    """
    group_names = names_of(groups, x, kernel)
    summed = []
    added = []
    for name in kernel.names:
        if name not in x and name not in taps.values():
            added.append(name)
        elif name in x and name not in group_names:
            summed.append(name)
    return tuple(summed), tuple(added)
