"""AmoebaNet-D on named dimensions: a sequence of layers, for a pipeline.

    layers = amoebanet_d(mesh, cells=18, filters=256, classes=1000)              # 24 layers
    pipe = mtf.pipeline.GPipe([partial(layer, training=True) for layer in layers], stages=4, ...)
    logits = pipe(images)                     # [batch height width color] -> [batch classes]

The architecture was found by evolution (Real et al. 2019, arXiv:1802.01548). Sizes are
those of the GPipe paper (Huang et al. 2019, arXiv:1811.06965): (cells, filters) = (18,
256) has 122,470,120 parameters. A cell takes the outputs of the two cells before it, so
layers pass on pairs of tensors.
"""

from collections.abc import Callable

import meshtf as mtf

Operation = Callable[[mtf.Tensor, bool], mtf.Tensor]  # (x, training) -> y
Pair = tuple[mtf.Tensor, mtf.Tensor]
MOMENTUM = 0.9  # of the moving averages of batch norms

# A cell: five pairs of (state, operation). States 0 and 1 are the cell's inputs; each pair
# adds a state, the sum of both operations, applied to the states that it names.
NORMAL = (
    ((1, "conv 1x1"), (1, "max 3")),
    ((1, "none"), (0, "conv 1x7 7x1")),
    ((0, "conv 1x1"), (0, "conv 1x7 7x1")),
    ((2, "max 3"), (2, "none")),
    ((1, "avg 3"), (5, "conv 1x1")),
)
REDUCTION = (
    ((0, "max 2"), (0, "max 3")),
    ((2, "none"), (1, "conv 3x3")),
    ((2, "conv 1x7 7x1"), (2, "max 3")),
    ((3, "none"), (1, "max 2")),
    ((2, "avg 3"), (3, "conv 1x1")),
)
# The states that are concatenated to a cell's output.
OUTPUT_STATES = {
    NORMAL: (0, 3, 4, 6),
    REDUCTION: (4, 5, 6),
}


class ReluConvNorm(mtf.Module):
    """ReLU, convolution without bias, batch norm:
    x[..., channels:in_channels] -> [..., channels:out_channels].
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        in_channels: int,
        out_channels: int,
        window: tuple[int, int] = (1, 1),
        stride: tuple[int, int] = (1, 1),
        name: str = "conv",
    ) -> None:
        super().__init__(name)
        with self.scope():
            self.conv = mtf.layers.Conv(
                mesh,
                f"height:{window[0]};width:{window[1]}",
                f"channels_in:{in_channels}",
                f"channels:{out_channels}",
                dict(zip(("height", "width"), stride)),
                use_bias=False,
            )
            self.norm = mtf.layers.BatchNorm(mesh, f"channels:{out_channels}", MOMENTUM)

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        x = mtf.rename(mtf.relu(x), "channels", "channels_in")
        return self.norm(self.conv(x), training)


class FactorizedReduce(mtf.Module):
    """Halves height and width: x[..., channels:in_channels] -> [..., channels:out_channels].

    Half of the output channels are computed from the pixels with even indices, the other
    half from those with odd indices.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        in_channels: int,
        out_channels: int,
        name: str = "reduce",
    ) -> None:
        super().__init__(name)

        def strided_conv(name: str) -> mtf.layers.Conv:
            return mtf.layers.Conv(
                mesh,
                "height:1;width:1",
                f"channels_in:{in_channels}",
                f"channels:{out_channels // 2}",
                stride=2,
                use_bias=False,
                name=name,
            )

        with self.scope():
            self.even = strided_conv("even")
            self.odd = strided_conv("odd")
            self.norm = mtf.layers.BatchNorm(mesh, f"channels:{out_channels}", MOMENTUM)

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        x = mtf.rename(mtf.relu(x), "channels", "channels_in")
        shifted = mtf.shift(mtf.shift(x, "height", -1), "width", -1)
        return self.norm(
            mtf.concat([self.even(x), self.odd(shifted)], "channels"), training
        )


class Convolutions(mtf.Module):
    """Convolutions of one number of channels; those with windows larger than 1x1 run on a
    quarter of the channels, between two 1x1 convolutions.

    Args:
      mesh: the mesh of the variables.
      channels: the number of channels of input and output.
      windows: the windows of the convolutions, such as "1x7 7x1".
      stride: the stride along dimensions in which a window is larger than 1.
      name: the last component of the path of its variables.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        channels: int,
        windows: str,
        stride: int,
        name: str,
    ) -> None:
        super().__init__(name)
        sizes = [tuple(map(int, window.split("x"))) for window in windows.split()]
        inner_channels = channels if sizes == [(1, 1)] else channels // 4
        self.convs = []
        with self.scope():
            if inner_channels < channels:
                self.convs.append(
                    ReluConvNorm(mesh, channels, inner_channels, name="down")
                )
            for i, window in enumerate(sizes):
                strides = tuple(stride if size > 1 else 1 for size in window)
                self.convs.append(
                    ReluConvNorm(
                        mesh,
                        inner_channels,
                        inner_channels,
                        window,
                        strides,
                        name=f"conv_{i}",
                    )
                )
            if inner_channels < channels:
                self.convs.append(
                    ReluConvNorm(mesh, inner_channels, channels, name="up")
                )

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        for conv in self.convs:
            x = conv(x, training)
        return x


def operation(
    mesh: mtf.Mesh,
    description: str,
    channels: int,
    stride: int,
    name: str,
) -> Operation:
    """Returns an operation of a cell, such as "conv 1x7 7x1", "max 3" or "none". It keeps
    the number of channels.
    """
    kind, _, size = description.partition(" ")
    if kind == "conv":
        return Convolutions(mesh, channels, size, stride, name)
    if kind == "none":
        return lambda x, training: x
    pool = mtf.max_pool if kind == "max" else mtf.avg_pool
    return lambda x, training: pool(x, f"height:{size};width:{size}", stride, "same")


class Stem(mtf.Module):
    """A convolution that halves height and width, and a batch norm: images[..., color] ->
    (y, y), the pair for the first cell.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        colors: int,
        channels: int,
    ) -> None:
        super().__init__("stem")
        with self.scope():
            self.conv = mtf.layers.Conv(
                mesh,
                "height:3;width:3",
                f"color:{colors}",
                f"channels:{channels}",
                stride=2,
                use_bias=False,
            )
            self.norm = mtf.layers.BatchNorm(mesh, f"channels:{channels}", MOMENTUM)

    def __call__(self, x: mtf.Tensor, training: bool = False) -> Pair:
        y = self.norm(self.conv(x), training)
        return y, y


class Cell(mtf.Module):
    """A cell: (previous output, output before it) -> (output, previous output).

    Args:
      mesh: the mesh of the variables.
      pairs: NORMAL or REDUCTION; the latter halves height and width.
      channels: the channels of each state.
      in_channels: the channels of both inputs.
      after_reduction: whether the previous cell was a reduction, so that the second input
        has twice the height and width of the first one.
      name: the last component of the path of its variables.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        pairs: tuple,
        channels: int,
        in_channels: tuple[int, int],
        after_reduction: bool,
        name: str,
    ) -> None:
        super().__init__(name)
        self.pairs = pairs
        self.out_channels = len(OUTPUT_STATES[pairs]) * channels
        with self.scope():
            self.last = ReluConvNorm(mesh, in_channels[0], channels, name="last")
            self.before: Operation = lambda x, training: x
            if after_reduction or in_channels[1] != channels:
                make = FactorizedReduce if after_reduction else ReluConvNorm
                self.before = make(mesh, in_channels[1], channels, name="before")
            self.operations: list[list[Operation]] = []
            for new_state, pair in enumerate(pairs, start=2):
                operations = []
                for letter, (state, description) in zip("ab", pair):
                    stride = 2 if pairs is REDUCTION and state < 2 else 1
                    name = f"state_{new_state}_{letter}"
                    operations.append(
                        operation(mesh, description, channels, stride, name)
                    )
                self.operations.append(operations)

    def __call__(self, pair: Pair, training: bool = False) -> Pair:
        states = [self.last(pair[0], training), self.before(pair[1], training)]
        for ((i, _), (j, _)), (f, g) in zip(self.pairs, self.operations):
            states.append(f(states[i], training) + g(states[j], training))
        outputs = [states[i] for i in OUTPUT_STATES[self.pairs]]
        return mtf.concat(outputs, "channels"), pair[0]


class Classifier(mtf.Module):
    """A dense layer on the mean over height and width of a pair's first tensor:
    (x[batch, height, width, channels], _) -> logits[batch, classes].
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        channels: int,
        classes: int,
    ) -> None:
        super().__init__("classifier")
        with self.scope():
            self.dense = mtf.layers.Dense(
                mesh, f"channels:{channels}", f"classes:{classes}"
            )

    def __call__(self, pair: Pair, training: bool = False) -> mtf.Tensor:
        return self.dense(mtf.reduce_mean(pair[0], "height;width"))


def amoebanet_d(
    mesh: mtf.Mesh,
    cells: int,
    filters: int,
    classes: int,
    colors: int = 3,
) -> list[mtf.Module]:
    """Returns cells + 6 layers: a stem, `cells` normal cells, four reduction cells among
    them, and a classifier.

    Each layer takes the output of the previous one, and `training`.
    """
    channels = filters // 4
    layers: list[mtf.Module] = [Stem(mesh, colors, channels)]
    in_channels = (channels, channels)
    previous = NORMAL
    group = cells // 3 * [NORMAL]
    for pairs in [REDUCTION, REDUCTION, *group, REDUCTION, *group, REDUCTION, *group]:
        channels *= 2 if pairs is REDUCTION else 1
        cell = Cell(
            mesh,
            pairs,
            channels,
            in_channels,
            after_reduction=previous is REDUCTION,
            name=f"cell_{len(layers)}",
        )
        layers.append(cell)
        in_channels = (cell.out_channels, in_channels[0])
        previous = pairs
    return [*layers, Classifier(mesh, in_channels[0], classes)]
