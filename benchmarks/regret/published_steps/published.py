"""Published measurements of training steps: runs, and groups of rival layouts.

    runs = read_runs(PUBLISHED)
    fitted, judged = split_groups(runs, seed=0)

The file `megatron_a100_steps.csv` has a line for each measured run, see NOTICE.md. A group is
what shares all but the degrees of parallelism and the microbatch: its runs are rival layouts
of one job.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from meshtf.errors import ParseError

PUBLISHED = Path(__file__).with_name("megatron_a100_steps.csv")


class Job(NamedTuple):
    """What the runs of a group share.

    Attributes:
      nodes: "single", all GPUs in one node, or "multi".
      gpus: the count of GPUs.
      global_batch: the count of sequences of a step.
      hidden: the size of the residual stream.
      heads: the count of attention heads.
      layers: the count of layers.
      length: the tokens of a sequence.
    """

    nodes: str
    gpus: int
    global_batch: int
    hidden: int
    heads: int
    layers: int
    length: int

    @property
    def recomputes(self) -> bool:
        """Whether the backward pass computes activations again. The file does not say so; those
        of the jobs on several nodes do not fit without it.
        """
        return self.nodes == "multi"

    def __str__(self) -> str:
        return (
            f"{self.gpus:>4} GPUs, batch {self.global_batch:>4}, hidden "
            f"{self.hidden:>4}, {self.layers} layers"
        )


class Run(NamedTuple):
    """A measured run.

    Attributes:
      job: what it trains, and on what.
      micro_batch: the count of sequences of a microbatch.
      tensor, data, pipeline: the degrees of parallelism.
      seconds: the measured seconds of a step.
    """

    job: Job
    micro_batch: int
    tensor: int
    data: int
    pipeline: int
    seconds: float

    @property
    def microbatches(self) -> int:
        """The count of microbatches of a step."""
        return self.job.global_batch // (self.data * self.micro_batch)


def read_runs(path: str | Path) -> list[Run]:
    """Returns the runs of a file. Raises ParseError if it has none."""
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        runs = [_run(row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ParseError(f"{path} has no measured runs: {error!r}") from None
    if not runs:
        raise ParseError(f"{path} has no measured runs.")
    return runs


def _run(row: dict[str, str]) -> Run:
    """Returns the run of a line."""
    sizes = {name: int(row[name]) for name in Job._fields if name != "nodes"}
    degrees = {name: int(row[name]) for name in Run._fields[1:-1]}
    job = Job(row["nodes"], **sizes)
    return Run(job, **degrees, seconds=float(row["step_ms"]) / 1e3)


def groups(runs: Sequence[Run]) -> dict[Job, list[int]]:
    """Returns the indices of the runs of each job."""
    result: dict[Job, list[int]] = {}
    for i, run in enumerate(runs):
        result.setdefault(run.job, []).append(i)
    return result


def split_groups(runs: Sequence[Run], seed: int) -> tuple[list[Run], list[Run]]:
    """Returns the runs of one half of the groups, drawn by a seed, and those of the other."""
    jobs = sorted(groups(runs))
    order = np.random.default_rng(seed).permutation(len(jobs))
    drawn = {jobs[i] for i in order[: len(jobs) // 2]}
    return (
        [run for run in runs if run.job in drawn],
        [run for run in runs if run.job not in drawn],
    )
