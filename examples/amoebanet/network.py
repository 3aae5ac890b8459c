"""AmoebaNet-D on named dimensions: a sequence of layers, each of which may lie on
another stage.

    layers = amoebanet_d(mesh, cells=18, filters=256, classes=1000)              # 24 of them
    pipe = mtf.pipeline.GPipe([partial(layer, training=True) for layer in layers], stages=4, ...)
    logits = pipe(images)                     # [batch height width color] -> [batch classes]

The cell was found by evolution (Real et al. 2019, arXiv:1802.01548). Sizes are those
that GPipe was shown with (Huang et al. 2019, arXiv:1811.06965): (cells, filters) = (18,
256) has 122,470,120 parameters. A cell takes the results of the two before it, so what
is passed on is a pair.
"""

from collections.abc import Callable

import meshtf as mtf

Operation = Callable[[mtf.Tensor, bool], mtf.Tensor]
Pair = tuple[mtf.Tensor, mtf.Tensor]
MOMENTUM = 0.9  # of the averages of batch norms

# Five pairs of (state, operation). A pair's sum is the next state; 0 and 1 are the
# cell's inputs.
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
RESULTS = {
    NORMAL: (0, 3, 4, 6),
    REDUCTION: (4, 5, 6),
}  # the states that make a cell's result


class ReluConvNorm(mtf.Module):
    """x[... channels:before] -> [... channels:after]: a convolution without bias, and a
    norm.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        before: int,
        after: int,
        window: tuple[int, int] = (1, 1),
        stride: tuple[int, int] = (1, 1),
        name: str = "conv",
    ) -> None:
        super().__init__(name)
        with self.scope():
            self.conv = mtf.layers.Conv(
                mesh,
                f"height:{window[0]};width:{window[1]}",
                f"channels_in:{before}",
                f"channels:{after}",
                dict(zip(("height", "width"), stride)),
                use_bias=False,
            )
            self.norm = mtf.layers.BatchNorm(mesh, f"channels:{after}", MOMENTUM)

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        x = mtf.rename(mtf.relu(x), "channels", "channels_in")
        return self.norm(self.conv(x), training)


class FactorizedReduce(mtf.Module):
    """x[... channels:before] -> half as many rows and columns, [... channels:after].

    One half of the channels is made of the pixels at even places, the other of those at
    odd ones.
    """

    def __init__(
        self, mesh: mtf.Mesh, before: int, after: int, name: str = "reduce"
    ) -> None:
        super().__init__(name)
        with self.scope():
            self.even, self.odd = (
                mtf.layers.Conv(
                    mesh,
                    "height:1;width:1",
                    f"channels_in:{before}",
                    f"channels:{after // 2}",
                    stride=2,
                    use_bias=False,
                    name=name,
                )
                for name in ("even", "odd")
            )
            self.norm = mtf.layers.BatchNorm(mesh, f"channels:{after}", MOMENTUM)

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        x = mtf.rename(mtf.relu(x), "channels", "channels_in")
        shifted = mtf.shift(mtf.shift(x, "height", -1), "width", -1)
        return self.norm(
            mtf.concat([self.even(x), self.odd(shifted)], "channels"), training
        )


class Convolutions(mtf.Module):
    """Convolutions on as many channels as come out; those of windows larger than 1 are
    on a 4th.
    """

    def __init__(
        self, mesh: mtf.Mesh, channels: int, windows: str, stride: int, name: str
    ) -> None:
        super().__init__(name)
        inner = [tuple(map(int, window.split("x"))) for window in windows.split()]
        few = channels if inner == [(1, 1)] else channels // 4
        self.convs = []
        with self.scope():
            if few < channels:
                self.convs.append(ReluConvNorm(mesh, channels, few, name="down"))
            for i, window in enumerate(inner):  # each strides along its own rows
                strides = tuple(stride if size > 1 else 1 for size in window)
                self.convs.append(
                    ReluConvNorm(mesh, few, few, window, strides, name=f"conv_{i}")
                )
            if few < channels:
                self.convs.append(ReluConvNorm(mesh, few, channels, name="up"))

    def __call__(self, x: mtf.Tensor, training: bool) -> mtf.Tensor:
        for conv in self.convs:
            x = conv(x, training)
        return x


def operation(
    mesh: mtf.Mesh, what: str, channels: int, stride: int, name: str
) -> Operation:
    """Returns one operation of a pair, which maps (x, training) to a tensor of as many
    channels.
    """
    kind, _, size = what.partition(" ")
    if kind == "conv":
        return Convolutions(mesh, channels, size, stride, name)
    if kind == "none":
        return lambda x, training: x
    pool = mtf.max_pool if kind == "max" else mtf.avg_pool
    return lambda x, training: pool(x, f"height:{size};width:{size}", stride, "same")


class Stem(mtf.Module):
    """Images -> the first pair, twice the same: a convolution that halves rows and
    columns.
    """

    def __init__(self, mesh: mtf.Mesh, colors: int, channels: int) -> None:
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
    """(last result, the one before it) -> (result, last result).

    Args:
      mesh: where the variables lie.
      pairs: NORMAL or REDUCTION; the latter halves rows and columns.
      channels: of each state.
      before: the channels of the two inputs.
      reduced: whether the last cell was a reduction, so the second input has twice as
        many rows.
      name: the last part of the path of its variables.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        pairs: tuple,
        channels: int,
        before: tuple[int, int],
        reduced: bool,
        name: str,
    ) -> None:
        super().__init__(name)
        self.pairs, self.outputs = pairs, len(RESULTS[pairs]) * channels
        with self.scope():
            self.last = ReluConvNorm(mesh, before[0], channels, name="last")
            self.before: Operation = lambda x, training: x
            if reduced or before[1] != channels:
                make = FactorizedReduce if reduced else ReluConvNorm
                self.before = make(mesh, before[1], channels, name="before")
            self.operations = [
                [
                    operation(
                        mesh,
                        what,
                        channels,
                        2 if pairs is REDUCTION and state < 2 else 1,
                        f"state_{number}_{'ab'[i]}",
                    )
                    for i, (state, what) in enumerate(pair)
                ]
                for number, pair in enumerate(pairs, start=2)
            ]

    def __call__(self, pair: Pair, training: bool = False) -> Pair:
        states = [self.last(pair[0], training), self.before(pair[1], training)]
        for ((i, _), (j, _)), (f, g) in zip(self.pairs, self.operations):
            states.append(f(states[i], training) + g(states[j], training))
        return mtf.concat([states[i] for i in RESULTS[self.pairs]], "channels"), pair[0]


class Classifier(mtf.Module):
    """A pair -> logits[batch classes] of the last result's mean over rows
    and columns.
    """

    def __init__(self, mesh: mtf.Mesh, channels: int, classes: int) -> None:
        super().__init__("classifier")
        with self.scope():
            self.dense = mtf.layers.Dense(
                mesh, f"channels:{channels}", f"classes:{classes}"
            )

    def __call__(self, pair: Pair, training: bool = False) -> mtf.Tensor:
        return self.dense(mtf.reduce_mean(pair[0], "height;width"))


def amoebanet_d(
    mesh: mtf.Mesh, cells: int, filters: int, classes: int, colors: int = 3
) -> list[mtf.Module]:
    """Returns cells + 6 layers: a stem, cells with four reductions among them, and a
    classifier.

    Each takes what the one before returned, and whether it is in training.
    """
    channels = filters // 4
    layers: list[mtf.Module] = [Stem(mesh, colors, channels)]
    before = (channels, channels)
    last = NORMAL
    group = cells // 3 * [NORMAL]
    for pairs in [REDUCTION, REDUCTION, *group, REDUCTION, *group, REDUCTION, *group]:
        channels *= 2 if pairs is REDUCTION else 1
        cell = Cell(
            mesh, pairs, channels, before, last is REDUCTION, name=f"cell_{len(layers)}"
        )
        layers.append(cell)
        before = (cell.outputs, before[0])
        last = pairs
    return [*layers, Classifier(mesh, before[0], classes)]
