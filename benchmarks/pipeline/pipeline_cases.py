"""The cases of `benchmarks.pipeline.beside_jax`: a stack of Transformer blocks as a pipeline, in
JAX and on a live mesh, with equal batches and equal values of the variables.

    for group in pipeline_cases(CONFIGS["quick"], ["stage:4; data:2"], microbatches=8):
      print([case.name for case in group])
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks.step.cases.feeds import NUM_BATCHES, Batch
from benchmarks.step.cases.sizes import Config, JsonCase
from meshtf.names.parse import parse_pairs

LAYOUT = "layers:stage; batch:data; heads:model; d_ff:model"
CONFIGS = {
    "tiny": Config(batch=16, length=8, d_model=16, d_ff=32, heads=2, layers=8),
    "quick": Config(batch=32, length=64, d_model=128, d_ff=512, heads=4, layers=8),
    "full": Config(batch=32, length=128, d_model=256, d_ff=1024, heads=8, layers=8),
}
GRIDS = ("stage:4; data:2", "stage:2; data:2; model:2")
NORM = "norm/scale"  # the name of the norm after the last block


@dataclasses.dataclass(frozen=True)
class PipelineCase(JsonCase):
    """A training step of a stack of blocks, which is one row of the table.

    Attributes:
      config: the sizes of the stack.
      grid: the axes of the mesh, "stage:4; data:2".
      microbatches: the number of microbatches.
      recompute: whether the backward pass computes each stage again.
      runtime: "jax", or "spmd" for a live mesh.
      repeats: the groups of layers of a stage of the live mesh.
    """

    config: Config
    grid: str
    microbatches: int
    recompute: bool
    runtime: str
    repeats: int = 1

    @property
    def sizes(self) -> dict[str, int]:
        """The axes of the mesh and their sizes."""
        pairs = parse_pairs(self.grid, "mesh")
        return {axis: int(size) for axis, size in pairs}

    @property
    def ticks(self) -> int:
        """The number of ticks of the pipeline: in each, a stage computes one of its groups of
        layers for one microbatch. Stages divide the number of microbatches.
        """
        return self.repeats * self.microbatches + self.sizes["stage"] - 1

    @property
    def bubble(self) -> float:
        """The fraction of the ticks in which a stage has no microbatch."""
        return (self.sizes["stage"] - 1) / self.ticks

    @property
    def name(self) -> str:
        """The name of the row."""
        library = "JAX" if self.runtime == "jax" else "meshtf, live SPMD"
        repeats = f", {self.repeats} repeats" if self.repeats > 1 else ""
        return f"{library}, {self.grid}{repeats}"

    @property
    def group(self) -> str:
        """The name of the group of cases that are compared."""
        recomputed = ", recomputed" if self.recompute else ""
        return f"{self.microbatches} microbatches{recomputed}"

    @property
    def environment(self) -> dict[str, str]:
        """Additional environment variables of its process."""
        return {}

    @property
    def forecasts(self) -> bool:
        """Whether memory is compared with a forecast."""
        return False


def pipeline_cases(
    config: Config, grids: Iterable[str], microbatches: int, repeats: int = 1
) -> Iterator[list[PipelineCase]]:
    """Yields for each mesh, without and with recomputation, JAX and a live mesh; and with
    repeats, a live mesh with as many.
    """
    for grid in grids:
        for recompute in (False, True):
            cases = [
                PipelineCase(config, grid, microbatches, recompute, runtime)
                for runtime in ("jax", "spmd")
            ]
            if repeats > 1:
                cases.append(dataclasses.replace(cases[-1], repeats=repeats))
            yield cases


def batches(config: Config) -> list[Batch]:
    """Returns inputs and targets of the stack, float32 [batch, length, d_model]."""
    rng = np.random.default_rng(0)
    shape = (config.batch, config.length, config.d_model)
    return [
        {name: rng.standard_normal(shape, np.float32) for name in ("x", "target")}
        for _ in range(NUM_BATCHES)
    ]


def shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of the variables, by name: those of blocks are stacked, [layers, ...]."""
    of_model = config.shapes()
    prefix = f"{config.root}/decoder/block_0/"
    of_blocks = {
        name.removeprefix(prefix): (config.layers, *shape)
        for name, shape in of_model.items()
        if name.startswith(prefix)
    }
    return {**of_blocks, NORM: (config.d_model,)}


def values(config: Config) -> dict[str, Any]:
    """Returns values of all variables by name, equal for every case."""
    rng = np.random.default_rng(1)
    results = {}
    for name, shape in shapes(config).items():
        normal = rng.standard_normal(shape, np.float32)
        if name.endswith("scale"):
            results[name] = 1 + 0.1 * normal
            continue
        # Kernels are [layers, inputs, ...], and that of the output [layers, *inputs, d_model].
        inputs = shape[1:-1] if "output" in name else shape[1:2]
        results[name] = normal * np.float32(0.5 * np.prod(inputs) ** -0.5)
    return results
