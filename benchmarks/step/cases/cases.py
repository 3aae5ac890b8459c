"""The cases of `benchmarks.step`: a model in one library, mesh and mode, which runs in a
separate process.

Example:

    for group in cases(make_config("bert", "quick"), modes=["graph"], dropouts=[0.0]):
      print([case.name for case in group])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.step.cases.sizes import Config, JsonCase

SIZES = {
    "tiny": {
        "vocab": 512,
        "batch": 8,
        "length": 32,
        "d_model": 64,
        "d_ff": 256,
        "layers": 2,
    },
    "quick": {
        "vocab": 1024,
        "batch": 16,
        "length": 64,
        "d_model": 128,
        "d_ff": 512,
        "layers": 2,
    },
    "full": {},
}


class Grid(NamedTuple):
    """A mesh of data x model positions: the arguments `axes` and `layout` of `mtf.Mesh`."""

    axes: str
    layout: str


GRIDS = {
    "1x1": Grid(axes="", layout=""),
    "8x1": Grid(axes="data:8", layout="batch:data; experts:data"),
    "4x2": Grid(
        axes="data:4;model:2",
        layout="batch:data; experts:data; heads:model; d_ff:model; vocab:model",
    ),
    "1x8": Grid(axes="model:8", layout="heads:model; d_ff:model; vocab:model"),
}
_SHARDED_OVER_DATA = "d_model:data"  # a rule for variables or the optimizer's state
_GRIDS_OF_EIGHT = ("8x1", "4x2", "1x8")


class Peer(NamedTuple):
    """A program, other than meshtf's placed runtime, that trains the model on eight devices.

    Attributes:
      name: the name of its cases, in which {} is the grid.
      grids: the grids on which it is measured.
    """

    name: str
    grids: Sequence[str]


PEERS = {
    "towers": Peer("by hand {}, towers", ["8x1"]),
    "mirrored": Peer("by hand {}, mirrored", ["8x1"]),
    "dtensor": Peer("DTensor {}", _GRIDS_OF_EIGHT),
    "jax": Peer("JAX {}, NamedSharding", _GRIDS_OF_EIGHT),
    "spmd": Peer("meshtf {}, live SPMD", _GRIDS_OF_EIGHT),
}
# Peers of other libraries, which may not support a model.
FOREIGN = ("dtensor", "jax")
# Peers that run TensorFlow's kernels.
_BY_TENSORFLOW = ("towers", "mirrored", "dtensor")


@dataclasses.dataclass(frozen=True)
class Case(JsonCase):
    """A training step of a model, which is one row of the table.

    Attributes:
      config: the sizes of the model.
      grid: a key of `GRIDS`, data x model; "": no mesh, plain TensorFlow.
      devices: the devices of the mesh, "logical:8"; None: one device for all positions.
      jit: whether XLA compiles the step.
      runtime: the program that runs the step: "placed" for meshtf's placed runtime and for
        plain TensorFlow, or a key of `PEERS`.
      sharded_over_data: what is sharded along the data axis as well: "state" of the
        optimizer (ZeRO-1), "variables" (FSDP), or "".
      recompute: whether the backward pass recomputes each block.
      onednn: whether TensorFlow uses oneDNN for its matmuls.
    """

    config: Config
    grid: str = ""
    devices: str | None = None
    jit: bool = False
    runtime: str = "placed"
    sharded_over_data: str = ""
    recompute: bool = False
    onednn: bool = False

    @property
    def mesh(self) -> str:
        """The axes of the mesh."""
        return GRIDS[self.grid].axes

    @property
    def layout(self) -> str:
        """The layout of the mesh."""
        return GRIDS[self.grid].layout

    @property
    def variable_layout(self) -> str:
        """The layout of variables, in addition to `layout`."""
        return _SHARDED_OVER_DATA if self.sharded_over_data == "variables" else ""

    @property
    def optimizer_layout(self) -> str:
        """The layout of the optimizer's state, in addition to `layout`."""
        return _SHARDED_OVER_DATA if self.sharded_over_data == "state" else ""

    @property
    def name(self) -> str:
        """The name of the row."""
        onednn_suffix = ", oneDNN" if self.onednn else ""
        if not self.grid:
            return f"plain TensorFlow{onednn_suffix}"
        if self.runtime in PEERS:
            return PEERS[self.runtime].name.format(self.grid) + onednn_suffix
        suffixes = {"": "", "state": " ZeRO-1", "variables": " FSDP"}
        suffix = suffixes[self.sharded_over_data]
        if self.recompute:
            suffix += " recompute"
        devices_text = "8 logical devices" if self.devices else "one device"
        return f"meshtf {self.grid}{suffix}, {devices_text}"

    @property
    def environment(self) -> dict[str, str]:
        """Additional environment variables of its process."""
        return {"TF_ENABLE_ONEDNN_OPTS": "1"} if self.onednn else {}

    @property
    def group(self) -> str:
        """The name of the group of cases that are compared: those of one mode."""
        mode = "XLA" if self.jit else "graph"
        return f"{self.config.model}, {mode}, dropout {self.config.dropout:g}"

    @property
    def forecasts(self) -> bool:
        """Whether its memory can be compared with a forecast: positions do not share memory."""
        return self.runtime == "placed" and (self.grid == "1x1" or bool(self.devices))


def make_config(model: str, size: str) -> Config:
    """Returns the config of a model, one of `MODELS`, of a size, one of `SIZES`."""
    return Config(model, **SIZES[size])


def spmd_cases(config: Config, grids: Iterable[str]) -> Iterator[list[Case]]:
    """Yields for each mesh the model in JAX, on a live mesh, and meshtf's placed
    runtime.
    """
    for grid in grids:
        yield [
            Case(config, grid, jit=True, runtime="jax"),
            Case(config, grid, jit=True, runtime="spmd"),
            Case(config, grid, devices="logical:8"),
        ]


def cases(
    config: Config,
    modes: Iterable[str],
    dropouts: Iterable[float],
    words: Iterable[str] = ("",),
    peers: Iterable[str] = (),
    onednn: bool = False,
) -> Iterator[list[Case]]:
    """Yields groups of cases to be compared, plain TensorFlow first.

    Args:
      config: the config of all cases, except for the dropout rate.
      modes: "graph", "xla" or both.
      dropouts: the dropout rates; peers are only compared without dropout.
      words: the name of a case must contain one of them, except for plain TensorFlow.
      peers: the names of the `PEERS` that are compared as well.
      onednn: whether the cases of TensorFlow without meshtf are also run with oneDNN.
    """
    for mode in modes:
        for rate in dropouts:
            plain = Case(dataclasses.replace(config, dropout=rate), jit=mode == "xla")
            group = [plain, *_placed_cases(plain)]
            if not rate:
                group += _peer_cases(plain, peers)
            if onednn and not plain.jit:
                group += [
                    dataclasses.replace(case, onednn=True)
                    for case in group
                    if not case.grid or case.runtime in _BY_TENSORFLOW
                ]
            yield [
                case
                for case in group
                if not case.grid or any(word in case.name for word in words)
            ]


def _placed_cases(plain: Case) -> Iterator[Case]:
    """Yields the cases of meshtf's placed runtime, with the config and mode of `plain`."""
    for recompute in (False, True):
        yield dataclasses.replace(plain, grid="1x1", recompute=recompute)
    for devices in (None, "logical:8"):
        for grid, sharded_over_data in (
            ("8x1", ""),
            ("8x1", "state"),
            ("8x1", "variables"),
            ("4x2", ""),
            ("1x8", ""),
        ):
            yield dataclasses.replace(
                plain,
                grid=grid,
                sharded_over_data=sharded_over_data,
                devices=devices,
            )
    yield dataclasses.replace(
        plain,
        grid="8x1",
        sharded_over_data="variables",
        devices="logical:8",
        recompute=True,
    )


def _peer_cases(plain: Case, peers: Iterable[str]) -> Iterator[Case]:
    """Yields the cases of peers that have the model and the mode of `plain`."""
    for peer in peers:
        # JAX and live meshes always compile by XLA, also if the mode is "graph".
        is_compiled = peer in ("jax", "spmd")
        has_model = peer != "jax" or plain.config.model == "lm"
        if has_model and (is_compiled or not plain.jit):
            for grid in PEERS[peer].grids:
                yield dataclasses.replace(
                    plain, grid=grid, runtime=peer, jit=is_compiled
                )
