"""The cases of `benchmarks.growth`: for each panel (a quantity that grows, with a table and
charts), groups of cases of one size. The first case of a group is the one that the others
are compared with.

Example:

    for group in GROUPS["layers"](sizes=[1, 2, 4]):
      print([case.name for case in group])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.step.cases.sizes import Config, JsonCase

SMALL = Config(
    vocab=512,
    batch=2,
    length=32,
    d_model=64,
    d_ff=256,
    heads=8,
    layers=2,
)
PLAIN = "plain TensorFlow"
_DATA_AND_MODEL = "batch:data; heads:model; d_ff:model; vocab:model"


@dataclasses.dataclass(frozen=True)
class Case(JsonCase):
    """A model of one size: a point of a panel.

    Attributes:
      series: the name of the series of points, such as "scanned".
      size: the number of mesh positions, layers, experts or tokens: the point's coordinate.
      config: the sizes of the model.
      meshed: whether the model is meshtf's; otherwise it is hand-written in TensorFlow.
      axes: the axes of the mesh.
      layout: the layout of the mesh.
      devices: the devices of the mesh, such as "logical:8"; None: one device for all
        positions.
      scanned: whether all blocks are one traced body.
      attention: the attention of the model: "full" or "blockwise".
      forecast: whether the peak of memory is forecast.
    """

    series: str
    size: int
    config: Config
    meshed: bool = True
    axes: str = ""
    layout: str = ""
    devices: str | None = None
    scanned: bool = False
    attention: str = "full"
    forecast: bool = False

    @property
    def name(self) -> str:
        """The name of the case in errors."""
        return f"{self.series}, {self.size}"


Groups = Iterator[list[Case]]  # each group has the cases of one size


def positions(sizes: Sequence[int], config: Config = SMALL) -> Groups:
    """Yields cases on meshes of n positions, each with `config.batch` examples of the batch."""
    for n in sizes:
        config_of_n = dataclasses.replace(config, batch=config.batch * n)
        group = [Case(PLAIN, n, config_of_n, meshed=False)]
        for device_words, devices in (
            ("one device", None),
            ("as many devices", f"logical:{n}"),
        ):
            group.append(
                Case(
                    series=f"{device_words}, data",
                    size=n,
                    config=config_of_n,
                    axes=f"data:{n}",
                    layout="batch:data",
                    devices=devices,
                )
            )
            if n > 1:
                group.append(
                    Case(
                        series=f"{device_words}, data x model",
                        size=n,
                        config=config_of_n,
                        axes=f"data:{n // 2};model:2",
                        layout=_DATA_AND_MODEL,
                        devices=devices,
                    )
                )
        yield group


def layers(sizes: Sequence[int], config: Config = SMALL) -> Groups:
    """Yields models of n layers, on eight positions of one device."""
    for n in sizes:
        config_of_n = dataclasses.replace(config, batch=8 * config.batch, layers=n)
        unscanned = Case(
            series="one by one",
            size=n,
            config=config_of_n,
            axes="data:8",
            layout="batch:data",
        )
        yield [
            Case(PLAIN, n, config_of_n, meshed=False),
            unscanned,
            dataclasses.replace(unscanned, series="scanned", scanned=True),
        ]


def experts(sizes: Sequence[int], config: Config = SMALL) -> Groups:
    """Yields mixtures of n experts, of which each token goes to two."""
    for n in sizes:
        # Long examples, since an expert has at least four slots (tokens that it can take)
        # for each example.
        config_of_n = dataclasses.replace(
            config,
            model="moe",
            batch=4 * config.batch,
            experts=n,
            length=max(config.length, 128),
        )
        yield [
            Case(PLAIN, n, config_of_n, meshed=False),
            Case("one position", n, config_of_n),
            Case(
                series="4 positions, experts sharded",
                size=n,
                config=config_of_n,
                axes="data:4",
                layout="batch:data; experts:data",
            ),
        ]


def tokens(sizes: Sequence[int], config: Config = SMALL) -> Groups:
    """Yields models on examples of n tokens."""
    for n in sizes:
        config_of_n = dataclasses.replace(config, length=n)
        full = Case("full attention", n, config_of_n, forecast=True)
        yield [
            Case(PLAIN, n, config_of_n, meshed=False),
            full,
            dataclasses.replace(
                full, series="blockwise attention", attention="blockwise"
            ),
        ]


# By panel: the function of `sizes` and `config` that yields its groups.
GROUPS: Mapping[str, Callable[..., Groups]] = {
    "devices": positions,
    "layers": layers,
    "experts": experts,
    "tokens": tokens,
}
# By panel: the sizes that are measured by default.
SIZES = {
    "devices": [1, 2, 4, 8, 16, 32, 64],
    "planning": [2**i for i in range(12)],
    "layers": [1, 2, 4, 8, 16, 32],
    "experts": [4, 8, 16, 32, 64],
    "tokens": [64, 128, 256, 512, 1024],
}
# What `size` counts, for the table and the horizontal axis of each panel.
SIZE_LABELS = {
    "devices": "positions",
    "planning": "positions",
    "layers": "layers",
    "experts": "experts",
    "tokens": "tokens per example",
}
