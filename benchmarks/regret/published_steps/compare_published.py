"""Forecasts compared with published measurements: `python -m benchmarks.regret --published`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.regret.published_steps.gpt_programs import GptPrograms
from benchmarks.regret.published_steps.known_runs import known_run_lines
from benchmarks.regret.published_steps.megatron import (
    LINKS,
    fit_constants,
    fit_layers,
    layer_factors,
    layer_kind,
)
from benchmarks.regret.published_steps.published import groups, read_runs, split_groups
from benchmarks.regret.published_steps.scores import scores_of_times
from benchmarks.regret.published_steps.step_times import Constants, StepTimes
from benchmarks.regret.published_steps.tables import (
    constant_lines,
    score_lines,
    worst_group_lines,
    worst_layer_lines,
)
from meshtf.hardware import as_hardware

PROFILE = "a100"


def compare_published(path: str | Path, seed: int) -> Iterator[str]:
    """Yields the lines of the report.

    Args:
      path: the file of measured runs.
      seed: the seed that draws the groups which constants are fitted on.
    """
    fitted_runs, judged_runs = split_groups(read_runs(path), seed)
    profile = as_hardware(PROFILE)
    programs = GptPrograms()
    fitted = StepTimes(fitted_runs, programs)
    judged = StepTimes(judged_runs, programs)
    yield (
        f"fitted on {len(fitted_runs)} runs of {len(groups(fitted_runs))} groups, judged on "
        f"{len(judged_runs)} of {len(groups(judged_runs))}"
    )
    constants = fit_constants(fitted, profile, progress=_progress)
    layer_constants, layers = fit_layers(fitted, profile, constants, _progress)
    held = fit_constants(fitted, profile, fixed=LINKS, progress=_progress)
    factors = layer_factors(judged_runs, layers)
    predictions = {
        f"{PROFILE}.json, nothing fitted": judged.seconds(Constants(profile)),
        "fitted but for links": judged.seconds(held),
        "constants fitted": judged.seconds(constants),
        "and times of layers": judged.seconds(layer_constants, factors),
    }
    yield from score_lines(judged_runs, predictions)
    known = sum(layer_kind(run) in layers for run in judged_runs)
    yield ""
    yield f"{known} of {len(judged_runs)} judged runs have layers of a known time"
    own_scores = scores_of_times(fitted_runs, fitted.seconds(constants))
    yield f"error on the runs that constants were fitted on: {own_scores.error:.1%}"
    yield ""
    yield "constants"
    yield from constant_lines(constants)
    yield ""
    yield "groups with the largest error, constants fitted; and their worst run"
    yield from worst_group_lines(judged_runs, predictions["constants fitted"])
    yield ""
    yield "layers whose time is farthest from the predicted one"
    yield from worst_layer_lines(layers)
    yield ""
    yield "known runs: seconds of a step"
    columns = {f"{PROFILE}.json": Constants(profile), "constants fitted": constants}
    yield from known_run_lines(columns, programs)


def _progress(iteration: int, cost: float) -> None:
    """Prints how far a fit is, to stderr."""
    print(f"iteration {iteration}: cost {cost:.1f}", file=sys.stderr, flush=True)
