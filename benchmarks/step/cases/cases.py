"""The cases of `benchmarks.step`: a model in one library, mesh and mode, which runs in a
separate process.

Example:

    for group in cases(sized("bert", "quick"), modes=["graph"], dropouts=[0.0]):
      print([case.name for case in group])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from benchmarks.step.cases.sizes import Config, Dumped

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

_LAYOUTS = {
    "1x1": ("", ""),
    "8x1": ("data:8", "batch:data; experts:data"),
    "4x2": (
        "data:4;model:2",
        "batch:data; experts:data; heads:model; d_ff:model; vocab:model",
    ),
    "1x8": ("model:8", "heads:model; d_ff:model; vocab:model"),
}
_ALONG_DATA = "d_model:data"
_EIGHT = ("8x1", "4x2", "1x8")

# What trains the model besides meshtf's placed runtime, on eight devices, and on which
# meshes.
PEERS = {
    "towers": ("by hand {}, towers", ["8x1"]),
    "mirrored": ("by hand {}, mirrored", ["8x1"]),
    "dtensor": ("DTensor {}", _EIGHT),
    "jax": ("JAX {}, NamedSharding", _EIGHT),
    "spmd": ("meshtf {}, exported module", _EIGHT),
}
FOREIGN = ("dtensor", "jax")  # libraries that may not support a model
_BY_TENSORFLOW = (
    "towers",
    "mirrored",
    "dtensor",
)  # peers that run TensorFlow's kernels


@dataclasses.dataclass(frozen=True)
class Case(Dumped):
    """One row of the table.

    Attributes:
      config: the sizes of the model.
      grid: "" for plain TensorFlow, otherwise data x model, such as "4x2".
      devices: None: one device for all positions; or "logical:8".
      jit: whether XLA compiles the step.
      runtime: "placed" for meshtf, or one of PEERS.
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
        return _LAYOUTS[self.grid][0]

    @property
    def layout(self) -> str:
        return _LAYOUTS[self.grid][1]

    @property
    def variable_layout(self) -> str:
        return _ALONG_DATA if self.sharded_over_data == "variables" else ""

    @property
    def optimizer_layout(self) -> str:
        return _ALONG_DATA if self.sharded_over_data == "state" else ""

    @property
    def name(self) -> str:
        if self.runtime in PEERS or not self.grid:
            known = PEERS[self.runtime][0] if self.grid else "plain TensorFlow"
            return known.format(self.grid) + (", oneDNN" if self.onednn else "")
        suffix = {"": "", "state": " ZeRO-1", "variables": " FSDP"}[
            self.sharded_over_data
        ]
        suffix += " recompute" if self.recompute else ""
        where = "8 logical devices" if self.devices else "one device"
        return f"meshtf {self.grid}{suffix}, {where}"

    @property
    def environment(self) -> dict[str, str]:
        """Additional environment variables of its process."""
        return {"TF_ENABLE_ONEDNN_OPTS": "1"} if self.onednn else {}

    @property
    def group(self) -> str:
        """The group of cases that it is compared with: those of the same mode."""
        mode = "XLA" if self.jit else "graph"
        return f"{self.config.model}, {mode}, dropout {self.config.dropout:g}"

    @property
    def forecasts(self) -> bool:
        """Whether its memory can be compared with a forecast: positions do not share memory."""
        return self.runtime == "placed" and (self.grid == "1x1" or bool(self.devices))


def sized(model: str, size: str) -> Config:
    """Returns the config of a model of one of `SIZES`."""
    return Config(model, **SIZES[size])


def spmd_cases(
    config: Config, grids: Iterable[str], with_jax: bool
) -> Iterator[list[Case]]:
    """Yields for each mesh the model in JAX, the exported module, and meshtf's placed
    runtime.
    """
    for grid in grids:
        runtimes = ["jax", "spmd"] if with_jax else ["spmd"]
        group = [Case(config, grid, jit=True, runtime=runtime) for runtime in runtimes]
        yield [*group, Case(config, grid, devices="logical:8")]


def cases(
    config: Config,
    modes: Iterable[str],
    dropouts: Iterable[float],
    names: Iterable[str] = ("",),
    peers: Iterable[str] = (),
    onednn: bool = False,
) -> Iterator[list[Case]]:
    """Yields groups of cases to be compared, plain TensorFlow first.

    Args:
      config: of all, but for dropout.
      modes: "graph" and "xla".
      dropouts: rates; peers come in where it is 0.
      wanted: parts of names, of which a case must have one.
      peers: which of `PEERS` are compared as well.
      onednn: whether what TensorFlow computes without meshtf is compared with oneDNN as
        well.
    """
    for mode in modes:
        for rate in dropouts:
            one = Case(dataclasses.replace(config, dropout=rate), jit=mode == "xla")
            group = [one, *_placed(one), *(() if rate else _beside(one, peers))]
            if onednn and not one.jit:
                group += [
                    dataclasses.replace(case, onednn=True)
                    for case in group
                    if not case.grid or case.runtime in _BY_TENSORFLOW
                ]
            yield [
                case
                for case in group
                if not case.grid or any(name_part in case.name for name_part in names)
            ]


def _placed(one: Case) -> Iterator[Case]:
    """Yields the cases of meshtf's placed runtime."""
    for recompute in (False, True):
        yield dataclasses.replace(one, grid="1x1", recompute=recompute)
    for devices in (None, "logical:8"):
        for grid, sharded_over_data in (
            ("8x1", ""),
            ("8x1", "state"),
            ("8x1", "variables"),
            ("4x2", ""),
            ("1x8", ""),
        ):
            yield dataclasses.replace(
                one,
                grid=grid,
                sharded_over_data=sharded_over_data,
                devices=devices,
            )
    yield dataclasses.replace(
        one,
        grid="8x1",
        sharded_over_data="variables",
        devices="logical:8",
        recompute=True,
    )


def _beside(one: Case, peers: Iterable[str]) -> Iterator[Case]:
    """Yields the cases of peers that know this model and mode."""
    for peer in peers:
        compiled = peer in ("jax", "spmd")
        if (peer != "jax" or one.config.model == "lm") and (compiled or not one.jit):
            for grid in PEERS[peer][1]:
                yield dataclasses.replace(
                    one,
                    grid=grid,
                    runtime=peer,
                    jit=compiled,
                )
