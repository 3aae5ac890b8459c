"""AmoebaNet-D's parameters and multiplications, layer by layer, counted by hand.

The network of GPipe (Huang et al. 2019, arXiv:1811.06965, section 4.1) with L normal
cells and D filters: a stem, two reduction cells, three groups of L / 3 normal cells
with a reduction cell between them, and a classifier. Each cell takes the results of the
two before it. It is kept apart from any model, so that one can be held against the
other.
"""

from __future__ import annotations

import dataclasses

CLASSES = 1000
# Five pairs of (state, op); each pair is summed to the next state. States 0 and 1 are
# the inputs.
NORMAL = (
    ((1, "conv_1x1"), (1, "pool")),
    ((1, "none"), (0, "conv_1x7_7x1")),
    ((0, "conv_1x1"), (0, "conv_1x7_7x1")),
    ((2, "pool"), (2, "none")),
    ((1, "pool"), (5, "conv_1x1")),
)
REDUCTION = (
    ((0, "pool"), (0, "pool")),
    ((2, "none"), (1, "conv_3x3")),
    ((2, "conv_1x7_7x1"), (2, "pool")),
    ((3, "none"), (1, "pool")),
    ((2, "pool"), (3, "conv_1x1")),
)
NORMAL_CONCAT, REDUCTION_CONCAT = 4, 3


@dataclasses.dataclass
class Count:
    """The parameters of a layer, and its multiplications for one image."""

    parameters: int = 0
    macs: int = 0

    def conv(
        self, kernel: tuple[int, int], inputs: int, outputs: int, size: tuple[int, int]
    ) -> None:
        """Adds a convolution without bias whose result has some height and width."""
        weights = kernel[0] * kernel[1] * inputs * outputs
        self.parameters += weights
        self.macs += weights * size[0] * size[1]

    def conv_norm(
        self, kernel: tuple[int, int], inputs: int, outputs: int, *size: int
    ) -> None:
        """Adds a convolution and a batch norm with scale and offset."""
        self.conv(kernel, inputs, outputs, size)
        self.parameters += 2 * outputs

    def factorized_reduce(self, inputs: int, outputs: int, size: int) -> None:
        """Adds two convolutions of stride 2 to half of the channels each, and a batch
        norm.
        """
        for _ in range(2):
            self.conv((1, 1), inputs, outputs // 2, (size, size))
        self.parameters += 2 * outputs

    def op(self, name: str, c: int, stride: int, size: int) -> None:
        """Adds an op of a pair, on c channels; `size` is that of its result."""
        if name == "none" and stride == 2:
            self.factorized_reduce(c, c, size)
        elif name == "conv_1x1":
            self.conv_norm((1, 1), c, c, size, size)
        elif name == "conv_3x3":
            self.conv_norm((1, 1), c, c // 4, size * stride, size * stride)
            self.conv_norm((3, 3), c // 4, c // 4, size, size)
            self.conv_norm((1, 1), c // 4, c, size, size)
        elif name == "conv_1x7_7x1":
            self.conv_norm((1, 1), c, c // 4, size * stride, size * stride)
            self.conv_norm(
                (1, 7), c // 4, c // 4, size * stride, size
            )  # each strides along its own
            self.conv_norm((7, 1), c // 4, c // 4, size, size)
            self.conv_norm((1, 1), c // 4, c, size, size)


def amoebanet_d(cells: int, filters: int, image: int = 224) -> list[Count]:
    """Returns what each layer costs, L + 6 of them."""
    stem = Count()
    c, size = filters // 4, image // 2
    stem.conv_norm((3, 3), 3, c, size, size)
    layers, reduced = [stem], False
    prev, prev_prev = c, c  # the channels of the results before
    for reduction in [True, True, *([False] * (cells // 3) + [True]) * 3][:-1]:
        c, into = (2 * c, size // 2) if reduction else (c, size)
        layers.append(_cell(reduction, reduced, (prev, prev_prev, c), size, into))
        prev, prev_prev = c * (REDUCTION_CONCAT if reduction else NORMAL_CONCAT), prev
        reduced, size = reduction, into
    return [*layers, Count(prev * CLASSES + CLASSES, prev * CLASSES)]


def _cell(
    reduction: bool, reduced: bool, channels: tuple[int, int, int], size: int, into: int
) -> Count:
    """Returns what a cell costs, whose input has one size and whose result another."""
    count, (prev, prev_prev, c) = Count(), channels
    count.conv_norm((1, 1), prev, c, size, size)
    if reduced:  # the one before the last is twice as large
        count.factorized_reduce(prev_prev, c, size)
    elif prev_prev != c:
        count.conv_norm((1, 1), prev_prev, c, size, size)
    for pair in REDUCTION if reduction else NORMAL:
        for state, name in pair:
            count.op(name, c, 2 if reduction and state < 2 else 1, into)
    return count
