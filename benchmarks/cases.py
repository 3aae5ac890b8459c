"""What is compared: a case is one model in one mode, built and run in a process of its own.

    for case in cases(CONFIGS["quick"], modes=["graph"], dropouts=[0.0]): print(case.name)
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator

from benchmarks.lm_plain import Config

CONFIGS = {
    "tiny": Config(vocab=512, batch=8, length=32, d_model=64, d_ff=256, layers=2),
    "quick": Config(vocab=1024, batch=16, length=64, d_model=128, d_ff=512, layers=2),
    "full": Config(),
}

_LAYOUTS = {
    "1x1": ("", ""),
    "8x1": ("data:8", "batch:data"),
    "4x2": ("data:4;model:2", "batch:data;heads:model;d_ff:model;vocab:model"),
    "1x8": ("model:8", "heads:model;d_ff:model;vocab:model"),
}


@dataclasses.dataclass(frozen=True)
class Case:
  """One row of the table: which library, mesh, devices and mode."""

  config: Config
  grid: str = ""                # "": plain TensorFlow; else a mesh, such as "4x2"
  devices: str | None = None    # None: one device with shared storage; or "logical:8"
  jit: bool = False
  runtime: str = "placed"       # of meshtf; or "spmd", its exported module; or "jax"

  @property
  def mesh(self) -> str:
    return _LAYOUTS[self.grid][0]

  @property
  def layout(self) -> str:
    return _LAYOUTS[self.grid][1]

  @property
  def name(self) -> str:
    if not self.grid:
      return "plain TensorFlow"
    if self.runtime == "jax":
      return f"JAX {self.grid}, NamedSharding"
    if self.runtime == "spmd":
      return f"meshtf {self.grid}, exported module"
    where = "8 logical devices" if self.devices else "one device"
    return f"meshtf {self.grid}, {where}"

  @property
  def group(self) -> str:
    """What its numbers may be compared with: cases of the same mode."""
    return f"{'XLA' if self.jit else 'graph'}, dropout {self.config.dropout:g}"

  def dump(self) -> str:
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def load(cls, text: str) -> Case:
    values = json.loads(text)
    return cls(**values | {"config": Config(**values["config"])})


def spmd_cases(config: Config, grids: Iterable[str], with_jax: bool) -> Iterator[list[Case]]:
  """Yields for each mesh the model in JAX, the exported module, and meshtf's placed runtime."""
  for grid in grids:
    runtimes = ["jax", "spmd"] if with_jax else ["spmd"]
    group = [Case(config, grid, jit=True, runtime=runtime) for runtime in runtimes]
    yield [*group, Case(config, grid, devices="logical:8")]


def cases(config: Config, modes: Iterable[str], dropouts: Iterable[float],
          wanted: str = "") -> Iterator[list[Case]]:
  """Yields groups of cases to be compared, plain TensorFlow first; `wanted` picks by name."""
  for mode in modes:
    for rate in dropouts:
      common = {"config": dataclasses.replace(config, dropout=rate), "jit": mode == "xla"}
      eight = [g for g in _LAYOUTS if g != "1x1"]
      group = [Case(grid="", **common), Case(grid="1x1", **common)]
      group += [Case(grid=g, devices=d, **common) for d in (None, "logical:8") for g in eight]
      yield [case for case in group if wanted in case.name or not case.grid]
