"""AmoebaNet-D on named dimensions: a sequence of layers, for a pipeline.

    layers = amoebanet_d(mesh, cells=18, filters=256, classes=1000)              # 24 layers
    pipe = mtf.pipeline.GPipe([partial(layer, training=True) for layer in layers], stages=4, ...)
    logits = pipe(images)                     # [batch height width color] -> [batch classes]

The architecture was found by evolution (Real et al. 2019, arXiv:1802.01548). Sizes are
those of the GPipe paper (Huang et al. 2019, arXiv:1811.06965): (cells, filters) = (18,
256) has 122,470,120 parameters. A cell takes the outputs of the two layers before it. So
each layer but the last returns two tensors: its output, and that of the layer before it.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import meshtf as mtf

Operation = Callable[[mtf.Tensor, bool], mtf.Tensor]  # (x, training) -> y
# The outputs of a layer and of the layer before it.
OutputPair = tuple[mtf.Tensor, mtf.Tensor]
MOMENTUM = 0.9  # of the moving averages of batch norms


class StateOperation(NamedTuple):
    """An operation on a state, which is a tensor [..., channels] inside of a cell.

    Attributes:
      state: the index of the state.
      description: the operation as text, such as "conv 1x1"; see the function `operation`.
    """

    state: int
    description: str


@dataclasses.dataclass(frozen=True)
class CellType:
    """The graph of a cell. States 0 and 1 are the cell's inputs. Each pairwise combination
    adds a state, the sum of the results of its two operations.

    Attributes:
      combinations: the two operations of states 2, 3, 4, 5 and 6.
      output_states: the indices of the states that are concatenated to the cell's output.
      stride: the stride of operations on states 0 and 1; 2 halves height and width.
    """

    combinations: tuple[tuple[StateOperation, StateOperation], ...]
    output_states: tuple[int, ...]
    stride: int


NORMAL = CellType(
    combinations=(
        (StateOperation(1, "conv 1x1"), StateOperation(1, "max 3")),
        (StateOperation(1, "identity"), StateOperation(0, "conv 1x7 7x1")),
        (StateOperation(0, "conv 1x1"), StateOperation(0, "conv 1x7 7x1")),
        (StateOperation(2, "max 3"), StateOperation(2, "identity")),
        (StateOperation(1, "avg 3"), StateOperation(5, "conv 1x1")),
    ),
    output_states=(0, 3, 4, 6),
    stride=1,
)
REDUCTION = CellType(
    combinations=(
        (StateOperation(0, "max 2"), StateOperation(0, "max 3")),
        (StateOperation(2, "identity"), StateOperation(1, "conv 3x3")),
        (StateOperation(2, "conv 1x7 7x1"), StateOperation(2, "max 3")),
        (StateOperation(3, "identity"), StateOperation(1, "max 2")),
        (StateOperation(2, "avg 3"), StateOperation(3, "conv 1x1")),
    ),
    output_states=(4, 5, 6),
    stride=2,
)


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
        window_height, window_width = window
        stride_height, stride_width = stride
        with self.scope():
            self.conv = mtf.layers.Conv(
                mesh,
                window=f"height:{window_height};width:{window_width}",
                reduced_dims=f"channels_in:{in_channels}",
                new_dims=f"channels:{out_channels}",
                stride={"height": stride_height, "width": stride_width},
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
            """Returns a 1x1 convolution on every second pixel, to half of the channels."""
            return mtf.layers.Conv(
                mesh,
                window="height:1;width:1",
                reduced_dims=f"channels_in:{in_channels}",
                new_dims=f"channels:{out_channels // 2}",
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
        # Pixel (i, j) of `shifted` is pixel (i + 1, j + 1) of x.
        shifted = mtf.shift(mtf.shift(x, "height", -1), "width", -1)
        return self.norm(
            mtf.concat([self.even(x), self.odd(shifted)], "channels"), training
        )


class Convolutions(mtf.Module):
    """Convolutions in sequence: x[..., channels] -> [..., channels], with as many channels.
    Unless it is a single 1x1 convolution, they run on a quarter of the channels, between
    two 1x1 convolutions.

    Args:
      mesh: the mesh of the variables.
      channels: the number of channels of input and output.
      windows: the windows of the convolutions, such as "1x7 7x1".
      stride: the stride along dimensions in which a window is larger than 1.
      name: the name of this module in the path of its variables.
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
        sizes = []
        for window in windows.split():
            height, width = window.split("x")
            sizes.append((int(height), int(width)))
        inner_channels = channels if sizes == [(1, 1)] else channels // 4
        self.convs = []
        with self.scope():
            if inner_channels < channels:
                self.convs.append(
                    ReluConvNorm(mesh, channels, inner_channels, name="down")
                )
            for i, (height, width) in enumerate(sizes):
                conv = ReluConvNorm(
                    mesh,
                    in_channels=inner_channels,
                    out_channels=inner_channels,
                    window=(height, width),
                    stride=(stride if height > 1 else 1, stride if width > 1 else 1),
                    name=f"conv_{i}",
                )
                self.convs.append(conv)
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
    """Returns an operation of a cell; its output has as many channels as its input.

    Args:
      mesh: the mesh of its variables.
      description: "conv" and the windows of convolutions, such as "conv 1x7 7x1"; "max" or
        "avg" and the window of a pool, such as "max 3"; "identity".
      channels: the number of channels.
      stride: the stride along height and width; 1 for the identity, which ignores it.
      name: the name of its variables.
    """
    kind, _, sizes = description.partition(" ")
    if kind == "conv":
        return Convolutions(mesh, channels, windows=sizes, stride=stride, name=name)
    if kind == "identity":
        # REDUCTION has no identity on states 0 and 1, the only ones with a stride of 2.
        return lambda x, training: x
    pool = mtf.max_pool if kind == "max" else mtf.avg_pool
    window = f"height:{sizes};width:{sizes}"
    return lambda x, training: pool(x, window, stride=stride, padding="same")


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
                window="height:3;width:3",
                reduced_dims=f"color:{colors}",
                new_dims=f"channels:{channels}",
                stride=2,
                use_bias=False,
            )
            self.norm = mtf.layers.BatchNorm(mesh, f"channels:{channels}", MOMENTUM)

    def __call__(self, x: mtf.Tensor, training: bool = False) -> OutputPair:
        y = self.norm(self.conv(x), training)
        return y, y


class Cell(mtf.Module):
    """A cell: (last output, output before it) -> (output, last output). The last output is
    that of the layer before this cell.

    Args:
      mesh: the mesh of the variables.
      cell_type: NORMAL or REDUCTION; the latter halves height and width.
      channels: the number of channels of each state.
      in_channels: the number of channels of the first and of the second input.
      after_reduction: whether the layer before this cell is a reduction cell, so that the
        second input has twice the height and width of the first one.
      name: the name of this module in the path of its variables.
    """

    def __init__(
        self,
        mesh: mtf.Mesh,
        cell_type: CellType,
        channels: int,
        in_channels: tuple[int, int],
        after_reduction: bool,
        name: str,
    ) -> None:
        super().__init__(name)
        self.cell_type = cell_type
        self.out_channels = len(cell_type.output_states) * channels
        last_channels, channels_before = in_channels
        with self.scope():
            # `last` and `before` give both inputs the same channels, height and width.
            self.last = ReluConvNorm(mesh, last_channels, channels, name="last")
            self.before: Operation = lambda x, training: x
            if after_reduction:
                self.before = FactorizedReduce(
                    mesh, channels_before, channels, name="before"
                )
            elif channels_before != channels:
                self.before = ReluConvNorm(
                    mesh, channels_before, channels, name="before"
                )
            self.operations: list[list[Operation]] = []
            for new_state, combination in enumerate(cell_type.combinations, start=2):
                self.operations.append(
                    [
                        operation(
                            mesh,
                            description=description,
                            channels=channels,
                            stride=cell_type.stride if state in (0, 1) else 1,
                            name=f"state_{new_state}_{letter}",
                        )
                        for letter, (state, description) in zip("ab", combination)
                    ]
                )

    def __call__(self, pair: OutputPair, training: bool = False) -> OutputPair:
        last_output, output_before = pair
        states = [
            self.last(last_output, training),
            self.before(output_before, training),
        ]
        for (left, right), (left_operation, right_operation) in zip(
            self.cell_type.combinations, self.operations
        ):
            left_result = left_operation(states[left.state], training)
            right_result = right_operation(states[right.state], training)
            states.append(left_result + right_result)
        outputs = [states[i] for i in self.cell_type.output_states]
        return mtf.concat(outputs, "channels"), last_output


class Classifier(mtf.Module):
    """A dense layer on the mean over height and width of the last output:
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

    def __call__(self, pair: OutputPair, training: bool = False) -> mtf.Tensor:
        x, _ = pair
        return self.dense(mtf.reduce_mean(x, "height;width"))


def amoebanet_d(
    mesh: mtf.Mesh,
    cells: int,
    filters: int,
    classes: int,
    colors: int = 3,
) -> list[mtf.Module]:
    """Returns cells + 6 layers: a stem, two reduction cells, a third of the normal cells, a
    reduction cell, a third of the normal cells, a reduction cell, the other normal cells and
    a classifier.

    Each layer is called with the result of the layer before it, and `training`.

    Args:
      mesh: the mesh of the variables.
      cells: the number of normal cells, a multiple of three.
      filters: four times the number of channels of the stem; each reduction cell doubles
        the number of channels.
      classes: the number of classes.
      colors: the number of channels of an image.
    """
    channels = filters // 4
    layers: list[mtf.Module] = [Stem(mesh, colors, channels)]
    in_channels = (channels, channels)
    last_type = NORMAL  # the stem is no reduction cell
    group = cells // 3 * [NORMAL]  # the normal cells between reductions
    cell_types = [REDUCTION, REDUCTION, *group, REDUCTION, *group, REDUCTION, *group]
    for cell_type in cell_types:
        if cell_type is REDUCTION:
            channels *= 2
        cell = Cell(
            mesh,
            cell_type,
            channels=channels,
            in_channels=in_channels,
            after_reduction=last_type is REDUCTION,
            name=f"cell_{len(layers)}",
        )
        layers.append(cell)
        last_channels, _ = in_channels
        in_channels = (cell.out_channels, last_channels)
        last_type = cell_type
    return [*layers, Classifier(mesh, cell.out_channels, classes)]
