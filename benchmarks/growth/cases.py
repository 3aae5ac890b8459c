"""The cases of `benchmarks.growth`: for each panel, groups of cases of one size. The first
case of a group is the one that the others are compared with.

Example:

    for group in GROUPS["layers"](sizes=[1, 2, 4]):
      print([case.name for case in group])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

from benchmarks.step.cases.sizes import Config, Dumped

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
_BOTH = "batch:data; heads:model; d_ff:model; vocab:model"


@dataclasses.dataclass(frozen=True)
class Case(Dumped):
    """One model of one size."""

    series: str  # the line that it is a point of
    size: int  # where on that line: positions, layers, experts or tokens
    config: Config
    meshed: bool = True  # or by hand, in plain TensorFlow
    axes: str = ""
    layout: str = ""
    devices: str | None = None  # None: one device with shared storage; or "logical:8"
    scanned: bool = False  # whether blocks are one traced body
    attention: str = "full"
    forecast: bool = False  # whether its memory is asked for

    @property
    def name(self) -> str:
        return f"{self.series}, {self.size}"


Groups = Iterator[list[Case]]


def positions(sizes: Sequence[int], config: Config = SMALL) -> Groups:
    """Yields cases on meshes of n positions, each with `config.batch` examples of the batch."""
    for n in sizes:
        scaled_config = dataclasses.replace(config, batch=config.batch * n)
        group = [Case(PLAIN, n, scaled_config, meshed=False)]
        for where, devices in (("one device", None), (f"{n} devices", f"logical:{n}")):
            device_names = where.replace(str(n), "as many") if devices else where
            group.append(
                Case(
                    f"{device_names}, data",
                    n,
                    scaled_config,
                    axes=f"data:{n}",
                    layout="batch:data",
                    devices=devices,
                )
            )
            if n > 1:
                group.append(
                    Case(
                        f"{device_names}, data x model",
                        n,
                        scaled_config,
                        axes=f"data:{n // 2};model:2",
                        layout=_BOTH,
                        devices=devices,
                    )
                )
        yield group


def layers(sizes: Sequence[int], config: Config = SMALL) -> Groups:
    """Yields models of n layers, on eight positions of one device."""
    for n in sizes:
        deep = dataclasses.replace(config, batch=8 * config.batch, layers=n)
        eight = Case("one by one", n, deep, axes="data:8", layout="batch:data")
        yield [
            Case(PLAIN, n, deep, meshed=False),
            eight,
            dataclasses.replace(eight, series="scanned", scanned=True),
        ]


def experts(sizes: Sequence[int], config: Config = SMALL) -> Groups:
    """Yields mixtures of n experts, of which each token goes to two."""
    for n in sizes:
        # Examples so long that an expert has no additional slots.
        mixed = dataclasses.replace(
            config,
            model="moe",
            batch=4 * config.batch,
            experts=n,
            length=max(config.length, 128),
        )
        yield [
            Case(PLAIN, n, mixed, meshed=False),
            Case("one position", n, mixed),
            Case(
                "4 positions, experts sharded",
                n,
                mixed,
                axes="data:4",
                layout="batch:data; experts:data",
            ),
        ]


def tokens(sizes: Sequence[int], config: Config = SMALL) -> Groups:
    """Yields models on examples of n tokens."""
    for n in sizes:
        long = dataclasses.replace(config, length=n)
        yield [
            Case(PLAIN, n, long, meshed=False),
            Case("full attention", n, long, forecast=True),
            Case("blockwise attention", n, long, attention="blockwise", forecast=True),
        ]


GROUPS: Mapping[str, Callable[..., Groups]] = {
    "devices": positions,
    "layers": layers,
    "experts": experts,
    "tokens": tokens,
}
SIZES = {
    "devices": [1, 2, 4, 8, 16, 32, 64],
    "planning": [2**i for i in range(12)],
    "layers": [1, 2, 4, 8, 16, 32],
    "experts": [4, 8, 16, 32, 64],
    "tokens": [64, 128, 256, 512, 1024],
}
COUNTED = {
    "devices": "positions",
    "planning": "positions",
    "layers": "layers",
    "experts": "experts",
    "tokens": "tokens per example",
}
