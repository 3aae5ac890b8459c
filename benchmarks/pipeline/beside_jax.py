"""A pipeline on eight CPU devices: a stack of Transformer blocks in JAX, and on a live mesh.

    python -m benchmarks.pipeline.beside_jax                  # some minutes on two cores
    python -m benchmarks.pipeline.beside_jax --repeats=2 --microbatches=4
    python -m benchmarks.pipeline.beside_jax --size=full --rounds=20 --starts=3 --json=out.json

Both are one program for all devices, by the same compiler, with equal values, batches, microbatches
and ticks; JAX's is written as MaxText does it (see `jax_pipeline`). Processes take steps in turn.
The benchmark checks that losses agree, and prints the ratios to JAX of the step time, the time to
compile (tracing, lowering, compiling, and the first step), and the memory of a device: all
buffers that XLA plans for a step. In a tick of the bubble, stages compute something that no result
depends on, so that a step takes as long as its ticks, with or without the bubble.

It fails if losses differ. Bars, which it prints beside the ratios: 1.00 for the step and the
memory, 1.3 for compiling. JAX is in the extra "spmd".
"""

from __future__ import annotations

import importlib.util
import json
import sys

from absl import flags

from benchmarks.harness.report import Row, agreement, ratio, table
from benchmarks.harness.rounds import measure
from benchmarks.pipeline.pipeline_cases import (
    CONFIGS,
    GRIDS,
    PipelineCase,
    pipeline_cases,
)
from transformer.cli.program import run_main

WORKER = "benchmarks.pipeline.beside_jax_worker"
BARS = {"step": 1.0, "compile": 1.3, "memory of a device": 1.0}
_TOLERANCE = 1e-5  # the relative difference up to which losses agree


def ratios(cases: list[PipelineCase], rows: list[Row]) -> str:
    """Returns lines with the ticks of a pipeline, and the ratios of the live mesh to JAX; and of
    that with repeats to that without.

    Args:
      cases: the cases of the group.
      rows: their measurements: of JAX, of the live mesh, and maybe of that with repeats.
    """
    case = cases[0]
    jax, live, *with_repeats = rows
    of_repeats = ""
    for other, row in zip(cases[2:], with_repeats):
        ticks = other.ticks / other.repeats
        of_repeats = (
            f"\n{other.repeats} repeats / 1: step {ratio(row, live, 'wall'):.2f}, "
            f"layers that a stage computes {ticks / case.ticks:.2f}, memory of a device "
            f"{row.start['device_memory'] / live.start['device_memory']:.2f}"
        )
    values = {
        "step": ratio(live, jax, "wall"),
        "compile": live.start["compile"] / jax.start["compile"],
        "memory of a device": live.start["device_memory"] / jax.start["device_memory"],
    }
    texts = [
        f"{name} {value:.2f} (bar {BARS[name]:.2f}{'' if value <= BARS[name] else ', missed'})"
        for name, value in values.items()
    ]
    stages = case.sizes["stage"]
    memory = " and ".join(f"{row.start['device_memory']:.1f}" for row in (live, jax))
    return (
        f"{case.ticks} ticks of {case.microbatches} microbatches; bubble "
        f"({stages} - 1) / ({case.microbatches} + {stages} - 1) = {case.bubble:.0%}\n"
        f"live / JAX: {', '.join(texts)}\n"
        f"memory of a device: {memory} MiB{of_repeats}"
    )


def main(argv: list[str]) -> None:
    """Measures, prints, and fails if losses disagree."""
    del argv
    if importlib.util.find_spec("jax") is None:
        sys.exit("JAX is not installed here: pip install -e '.[spmd]'.")
    settings = flags.FLAGS
    measured = []
    disagreements = []
    for group in pipeline_cases(
        CONFIGS[settings.size],
        settings.grids,
        settings.microbatches,
        settings.repeats,
    ):
        rows, _ = measure(
            group,
            rounds=settings.rounds,
            starts=settings.starts,
            losses=settings.losses,
            worker=WORKER,
        )
        print(
            f"\n{table(rows, start_time='compile')}\n{ratios(group, rows)}",
            flush=True,
        )
        disagreements += agreement(rows, _TOLERANCE)
        measured += rows
    if settings.json:
        with open(settings.json, "w", encoding="utf-8") as file:
            json.dump([row.as_dict() for row in measured], file, indent=1)
    if disagreements:
        sys.exit("\n".join(["losses disagree:", *disagreements]))
    print(
        f"\nlosses agree over {settings.losses} steps to {_TOLERANCE:g}; "
        f"median of {settings.rounds} steps"
    )


if __name__ == "__main__":
    flags.DEFINE_enum("size", "quick", list(CONFIGS), "How large a model.")
    flags.DEFINE_multi_string("grids", GRIDS, "The axes of each mesh.")
    flags.DEFINE_integer("microbatches", 8, "How many microbatches.", lower_bound=1)
    flags.DEFINE_integer(
        "repeats", 1, "The groups of layers of a stage of a further live mesh."
    )
    flags.DEFINE_integer("rounds", 10, "How many steps of each case are timed.")
    flags.DEFINE_integer(
        "starts", 1, "How often each case is started; the fastest start counts."
    )
    flags.DEFINE_integer("losses", 5, "How many steps the losses are compared over.")
    flags.DEFINE_string("json", None, "A file to write all numbers to.")
    run_main(main)
