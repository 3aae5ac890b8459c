"""The roles of names in a convolution: spatial, taps, summed, new, groups, batch.

Example:

    x[batch h w c_in]   kernel[k_h k_w c_in c_out]   windows of k_h over h, of k_w over w
    c_in is summed over, c_out is new; y[batch h w c_out]
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
from meshtf.ops.common.checks import require_dim, require_floating
from meshtf.ops.common.local_reshape import reshape, transpose
from meshtf.ops.windows.conv_kernels import Kernels
from meshtf.ops.windows.sliding_window import MAX_DIMS, Slide, slides

PackedAxes = list[tuple[str, ...]]  # the names that each axis of a packed tensor merges


@dataclasses.dataclass(frozen=True)
class Geometry:
    """How windows slide over x, and the roles of the names of the kernel.

    `taps` index the elements of windows, `reduced` are summed over, and `new` are those
    that x lacks.
    """

    slides: tuple[Slide, ...]
    taps: tuple[str, ...]
    reduced: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def dims(self) -> tuple[str, ...]:
        """The names that windows slide over."""
        return tuple(s.dim for s in self.slides)

    def slide(self, dim: str) -> Slide | None:
        """Returns how windows slide over a dimension, or None."""
        return next((s for s in self.slides if s.dim == dim), None)

    def sizes(self, *xs: Spec) -> dict[str, int]:
        """Returns the sizes of all names but those that windows slide over.

        Raises:
          ShapeError: a name has two sizes.
          DTypeError: data types differ, or are not of floats.
        """
        sizes = {tap: s.taps for tap, s in zip(self.taps, self.slides)}
        for x in xs:
            require_floating(x, "a convolution")
            if x.dtype != xs[0].dtype:
                raise DTypeError(
                    explain_error(
                        f"a convolution takes one data type, not {xs[0].dtype} and "
                        f"{x.dtype}.",
                        way_out=f'Convert one of them: mtf.cast(x, "{xs[0].dtype}").',
                    )
                )
            for d in x.shape.without(*self.dims):
                if sizes.setdefault(d.name, d.size) != d.size:
                    raise ShapeError(
                        explain_error(
                            f'"{d.name}" has size {sizes[d.name]} in one input and '
                            f"{d.size} in another.",
                            inputs=" ".join(repr(x.shape) for x in xs),
                            way_out="A name that joins inputs has one size: rename one "
                            "of them.",
                        )
                    )
        return sizes

    def packed_axes(
        self, x: Sequence[str], kernel: Sequence[str]
    ) -> tuple[PackedAxes, PackedAxes, PackedAxes]:
        """Returns the names that form each axis of x, kernel and y, as `Kernels` expects."""
        groups = tuple(n for n in x if n in kernel and n not in self.reduced)
        batch = tuple(n for n in x if n not in (*self.dims, *groups, *self.reduced))
        dims = [(n,) for n in self.dims]
        taps = [(n,) for n in self.taps]
        return (
            [batch, *dims, groups, self.reduced],
            [*taps, groups, self.reduced, self.new],
            [batch, *dims, groups, self.new],
        )

    def kernels(
        self, context: LocalContext, sizes: Sequence[int], channels: Sequence[int]
    ) -> Kernels:
        """Returns the TensorFlow ops for x of these spatial sizes on this device.

        Sharded dimensions are padded already.
        """
        pads = [
            (s.before, s.after) if context.num_shards(s.dim) == 1 else (0, 0)
            for s in self.slides
        ]
        return Kernels(
            tuple(sizes),
            tuple(s.taps for s in self.slides),
            tuple(s.stride for s in self.slides),
            tuple(s.dilation for s in self.slides),
            tuple(pads),
            *channels,
        )


def pack(x: Any, names: Sequence[str], axes: PackedAxes) -> Any:
    """Returns a TensorFlow tensor whose axes merge the names of each of `axes`."""
    sizes = dict(zip(names, x.shape))
    order = [names.index(name) for axis in axes for name in axis]
    packed_shape = []
    for axis in axes:
        axis_sizes = [sizes[name] for name in axis]
        packed_shape.append(math.prod(axis_sizes))
    return reshape(transpose(x, order), packed_shape)


def unpack(x: Any, shape: Shape, axes: PackedAxes) -> Any:
    """Undoes `pack`."""
    order = [n for axis in axes for n in axis]
    x = reshape(x, [shape[n] for n in order])
    return transpose(x, [order.index(n) for n in shape.names])


def replace_names(
    names: Sequence[str], kernel: Sequence[str], old: Sequence[str], new: Sequence[str]
) -> tuple[str, ...]:
    """Returns names without the old ones, and with the new ones.

    The new ones follow the last name that the kernel has as well.
    """
    end = len(names)
    kernel_indices = [i for i, name in enumerate(names) if name in kernel]
    if kernel_indices:
        end = kernel_indices[-1] + 1
    order = [*names[:end], *new, *names[end:]]
    return tuple(name for name in order if name not in old)


def resized(shape: Shape, sizes: Mapping[str, int], names: Sequence[str]) -> Shape:
    """Returns a shape of these names, with sizes of `sizes`, or else of `shape`."""
    return Shape(Dimension(n, sizes[n] if n in sizes else shape[n]) for n in names)


def read_window(
    window: Mapping[str, str] | str, x: Shape, kernel: Shape, groups: Names
) -> dict[str, str]:
    """Returns, for each name of x that windows slide over, the kernel's name of its taps.

    Raises:
      ShapeError: names are missing or clash.
    """
    if not isinstance(window, str):
        as_mapping("window", window, 'names by name, such as "h:k_h;w:k_w"')
    if isinstance(window, str):
        pairs = parse_pairs(window, kind="window")
    else:
        pairs = list(window.items())
    taps = dict(pairs)
    require_dim(x, *taps)
    require_dim(kernel, *taps.values())
    for shape in (x, kernel):
        require_dim(shape, *names_of(groups, shape, argument="groups"))
    if not 1 <= len(taps) <= MAX_DIMS or len(set(taps.values())) < len(pairs):
        raise ShapeError(
            f"windows slide over 1 to {MAX_DIMS} names, each with a name of the "
            f"kernel that no other has, not {window!r}."
        )
    for shape, names in ((x, taps.values()), (kernel, taps)):
        for name in names:
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
    """Returns the geometry of a convolution of x, and the names of its result."""
    window_sizes = {dim: kernel[tap] for dim, tap in taps.items()}
    over = slides(x, window_sizes, stride, padding, dilation)
    reduced, new = reduced_and_new(x, kernel, taps, groups)
    geometry = Geometry(over, tuple(taps.values()), reduced, new)
    return geometry, replace_names(x.names, kernel.names, reduced, new)


def reduced_and_new(
    x: Shape, kernel: Shape, taps: dict[str, str], groups: Names
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the kernel that are summed over, and those that are new."""
    group_names = names_of(groups, x, kernel)
    reduced = []
    new = []
    for name in kernel.names:
        if name not in x and name not in taps.values():
            new.append(name)
        elif name in x and name not in group_names:
            reduced.append(name)
    return tuple(reduced), tuple(new)
