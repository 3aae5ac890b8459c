"""Predicted and published steps of known models whose settings are published.

    for line in known_run_lines({"a100.json": Constants(as_hardware("a100"))}, GptPrograms()):
        print(line)

Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022, arXiv
2205.05198: sizes and parallelism are those of table 3, seconds those of table 5 with full
recomputation, on Selene: A100 of 80 GB, 8 in a node, each with an InfiniBand HDR of 200 Gb/s.
All sequences have 2,048 tokens, and microbatches are of one sequence, of four for 22B.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from benchmarks.regret.published_steps.gpt_programs import GptPrograms
from benchmarks.regret.published_steps.published import Job, Run
from benchmarks.regret.published_steps.step_times import Constants, StepTimes

_LENGTH = 2048
_SELENE_LINK = 25e9 * 0.8  # of InfiniBand, as a100.json has it of half as many links


class KnownRun(NamedTuple):
    """A known run.

    Attributes:
      name: the name of the model.
      run: its sizes, and the published seconds.
      chunks: the count of groups of layers of a stage, which are interleaved.
    """

    name: str
    run: Run
    chunks: int


def _known_run(name: str, chunks: int, job: tuple[int, ...], run: tuple) -> KnownRun:
    """Returns a known run.

    Args:
      name: the name of the model.
      chunks: the count of groups of layers of a stage.
      job: GPUs, global batch, hidden size, heads, layers.
      run: microbatch, tensor, data and pipeline degree, seconds.
    """
    return KnownRun(name, Run(Job("multi", *job, _LENGTH), *run), chunks)


KNOWN_RUNS = (
    _known_run("22B", 1, (8, 4, 6144, 64, 48), (4, 8, 1, 1, 1.42)),
    _known_run("GPT-3 175B", 3, (64, 64, 12288, 96, 96), (1, 8, 1, 8, 18.13)),
    _known_run("MT-NLG 530B", 3, (280, 280, 20480, 128, 105), (1, 8, 1, 35, 49.05)),
    _known_run("1T", 1, (512, 512, 25600, 160, 128), (1, 8, 1, 64, 94.42)),
)


def known_run_lines(
    constants: Mapping[str, Constants], programs: GptPrograms
) -> Iterator[str]:
    """Yields a table of predicted and published seconds of a step.

    Args:
      constants: the constants by which steps are predicted, by the title of their column.
      programs: the recorded pieces of GPT.
    """
    columns = "".join(f" {title:>22}" for title in constants)
    yield f"{'':12} {'GPUs':>5} {'published':>10}{columns}"
    for name, run, chunks in KNOWN_RUNS:
        steps = StepTimes([run], programs, chunks)
        cells = ""
        for values in constants.values():
            seconds = float(steps.seconds(_on_selene(values))[0])
            error = seconds / run.seconds - 1
            cells += f" {seconds:12.2f} s {error:+7.1%}"
        yield f"{name:12} {run.job.gpus:5} {run.seconds:8.2f} s{cells}"


def _on_selene(constants: Constants) -> Constants:
    """Returns constants with the links between nodes of Selene."""
    near, far = constants.hardware.links
    links = (near, dataclasses.replace(far, bandwidth=_SELENE_LINK))
    hardware = dataclasses.replace(constants.hardware, links=links)
    return dataclasses.replace(constants, hardware=hardware)
