"""What is compared: a case is one model in one mode, built and run in a process of its own.

    for case in cases(config("bert", "quick"), modes=["graph"], dropouts=[0.0]): print(case.name)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator

from benchmarks.training.sizes import Config

SIZES = {
    "tiny": {"vocab": 512, "batch": 8, "length": 32, "d_model": 64, "d_ff": 256, "layers": 2},
    "quick": {"vocab": 1024, "batch": 16, "length": 64, "d_model": 128, "d_ff": 512, "layers": 2},
    "full": {},
}

_LAYOUTS = {
    "1x1": ("", ""),
    "8x1": ("data:8", "batch:data; experts:data"),
    "4x2": ("data:4;model:2",
            "batch:data; experts:data; heads:model; d_ff:model; vocab:model"),
    "1x8": ("model:8", "heads:model; d_ff:model; vocab:model"),
}
_ALONG_DATA = "d_model:data"


@dataclasses.dataclass(frozen=True)
class Case:
  """One row of the table: which library, mesh, devices and mode."""

  config: Config
  grid: str = ""                # "": plain TensorFlow; else a mesh, such as "4x2"
  devices: str | None = None    # None: one device with shared storage; or "logical:8"
  jit: bool = False
  runtime: str = "placed"       # of meshtf; or "spmd", its exported module; or a peer's
  cut: str = ""                 # along the data as well: "state" of the optimizer, or "variables"
  recompute: bool = False       # whether the backward pass computes each block again

  @property
  def mesh(self) -> str:
    return _LAYOUTS[self.grid][0]

  @property
  def layout(self) -> str:
    return _LAYOUTS[self.grid][1]

  @property
  def variable_layout(self) -> str:
    return _ALONG_DATA if self.cut == "variables" else ""

  @property
  def optimizer_layout(self) -> str:
    return _ALONG_DATA if self.cut == "state" else ""

  @property
  def name(self) -> str:
    if not self.grid:
      return "plain TensorFlow"
    if self.runtime == "jax":
      return f"JAX {self.grid}, NamedSharding"
    if self.runtime == "spmd":
      return f"meshtf {self.grid}, exported module"
    more = {"": "", "state": " state cut", "variables": " FSDP"}[self.cut]
    more += " recompute" if self.recompute else ""
    where = "8 logical devices" if self.devices else "one device"
    return f"meshtf {self.grid}{more}, {where}"

  @property
  def group(self) -> str:
    """What its numbers may be compared with: cases of the same mode."""
    mode = "XLA" if self.jit else "graph"
    return f"{self.config.model}, {mode}, dropout {self.config.dropout:g}"

  def dump(self) -> str:
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def load(cls, text: str) -> Case:
    values = json.loads(text)
    return cls(**values | {"config": Config(**values["config"])})


def sized(model: str, size: str) -> Config:
  """Returns the config of a model of one of `SIZES`."""
  return Config(model, **SIZES[size])


def spmd_cases(config: Config, grids: Iterable[str], with_jax: bool) -> Iterator[list[Case]]:
  """Yields for each mesh the model in JAX, the exported module, and meshtf's placed runtime."""
  for grid in grids:
    runtimes = ["jax", "spmd"] if with_jax else ["spmd"]
    group = [Case(config, grid, jit=True, runtime=runtime) for runtime in runtimes]
    yield [*group, Case(config, grid, devices="logical:8")]


def cases(config: Config, modes: Iterable[str], dropouts: Iterable[float],
          wanted: str = "") -> Iterator[list[Case]]:
  """Yields groups of cases to be compared, plain TensorFlow first; `wanted` picks by name."""
  eight = [("8x1", ""), ("8x1", "state"), ("8x1", "variables"), ("4x2", ""), ("1x8", "")]
  for mode in modes:
    for rate in dropouts:
      one = Case(dataclasses.replace(config, dropout=rate), jit=mode == "xla")
      group = [one, dataclasses.replace(one, grid="1x1")]
      group += [dataclasses.replace(one, grid=grid, cut=cut, devices=devices)
                for devices in (None, "logical:8") for grid, cut in eight]
      yield [case for case in group if wanted in case.name or not case.grid]
