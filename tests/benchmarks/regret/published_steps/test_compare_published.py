"""Predicted steps of published runs: `benchmarks/regret/`."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import meshtf as mtf
from benchmarks.regret.published_steps import megatron
from benchmarks.regret.published_steps.compare_published import compare_published
from benchmarks.regret.published_steps.fit import Parameter, cost, fit
from benchmarks.regret.published_steps.gpt_programs import PLANNED, GptPrograms
from benchmarks.regret.published_steps.known_runs import KNOWN_RUNS, known_run_lines
from benchmarks.regret.published_steps.published import (
    PUBLISHED,
    groups,
    read_runs,
    split_groups,
)
from benchmarks.regret.published_steps.scores import (
    least_model_parallel,
    least_pipeline,
    rank_correlation,
    scores_of_chance,
    scores_of_rule,
    scores_of_times,
)
from benchmarks.regret.published_steps.step_times import (
    Constants,
    StepTimes,
    critical_path,
)
from meshtf.hardware import as_hardware
from meshtf.pipeline.schedule import interleaved, one_f_one_b
from meshtf.pipeline.simulator import simulate


@pytest.fixture(scope="module")
def programs():
    return GptPrograms()


@pytest.fixture(scope="module")
def small_runs():
    """Runs of two groups on eight GPUs."""
    runs = [
        run
        for run in read_runs(PUBLISHED)
        if run.job.gpus == 8 and run.job.global_batch == 8 and run.job.layers < 17
    ]
    assert len(groups(runs)) >= 2
    return runs


def test_published_runs_are_split_by_groups():
    runs = read_runs(PUBLISHED)
    assert len(runs) == 784 and len(groups(runs)) == 74
    fitted, judged = split_groups(runs, seed=0)
    assert len(fitted) + len(judged) == len(runs)
    assert not set(groups(fitted)) & set(groups(judged))
    assert split_groups(runs, seed=0)[0] == fitted != split_groups(runs, seed=1)[0]


@pytest.mark.parametrize("text", ["", "gpus\n8\n", "nodes,gpus\nsingle,many\n"])
def test_a_file_without_runs_is_refused(text, tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(mtf.ParseError, match="no measured runs"):
        read_runs(path)


def test_the_notice_goes_with_the_file():
    text = PUBLISHED.with_name("NOTICE.md").read_text(encoding="utf-8")
    assert "Copyright (c) 2024, VIA Research Group at KAIST" in text
    assert "Permission is hereby granted" in text


def test_sizes_take_the_place_of_planned_ones(programs, small_runs):
    doubled = {name: 2 * size for name, size in PLANNED.items()}
    constants = Constants(as_hardware("a100"))
    expected = StepTimes(small_runs, GptPrograms(doubled)).seconds(constants)
    seconds = StepTimes(small_runs, programs).seconds(constants)
    # Statistics of the cross entropy are exchanged in the planned sizes: microseconds.
    np.testing.assert_allclose(seconds, expected, rtol=1e-4)


@pytest.mark.parametrize("schedule", [one_f_one_b(4, 6), interleaved(2, 4, 2)])
def test_a_critical_path_adds_up_to_the_time_of_the_schedule(schedule):
    forward = [1.5, 1.0, 1.0, 1.25]
    backward = [2.0, 2.0, 2.0, 3.0]
    path = critical_path(schedule, forward, backward, send=0.125)
    seconds = (
        path.forward * schedule.chunks * 1.0
        + path.backward * schedule.chunks * 2.0
        + path.embed_forward * 0.5
        + path.head_forward * 0.25
        + path.head_backward * 1.0
        + path.sends * 0.125
    )
    timeline = simulate(schedule, forward, backward, send=0.125)
    assert seconds == pytest.approx(timeline.time)


def test_one_stage_has_no_bubble(programs, small_runs):
    runs = [run for run in small_runs if run.pipeline == 1 and run.data == 1]
    steps = StepTimes(runs, programs)
    constants = Constants(as_hardware("a100"))
    slower = dataclasses.replace(constants, microbatch_seconds=1e-3)
    added = steps.seconds(slower) - steps.seconds(constants)
    np.testing.assert_allclose(added, [1e-3 * run.microbatches for run in runs])


def test_a_fit_lowers_the_error(programs, small_runs, monkeypatch):
    monkeypatch.setattr(megatron, "_ROUNDS", 1)
    profile = as_hardware("a100")
    steps = StepTimes(small_runs, programs)
    before = scores_of_times(small_runs, steps.seconds(Constants(profile)))
    constants = megatron.fit_constants(steps, profile)
    after = scores_of_times(small_runs, steps.seconds(constants))
    assert after.error < 0.08 < before.error
    assert after.rank_correlation > 0.9 > before.rank_correlation
    constants, layers = megatron.fit_layers(steps, profile, constants)
    factors = megatron.layer_factors(small_runs, layers)
    with_layers = scores_of_times(small_runs, steps.seconds(constants, factors))
    assert with_layers.error < after.error / 2


def test_a_fit_finds_constants_and_stays_where_nothing_tells():
    def residuals(values, same_paths):
        return np.log(values["a"] / np.array([2.0, 2.0, 2.0, 20.0]))

    parameters = (Parameter("a", 1.0, 5.0), Parameter("unused", 3.0, 0.1))
    values = fit(residuals, parameters)
    # The run that does not fit has little weight.
    assert values["a"] == pytest.approx(2.0, rel=0.02)
    assert values["unused"] == pytest.approx(3.0)
    assert cost(np.array([1e-2])) == pytest.approx(0.5e-4, rel=1e-3)


def test_scores_by_hand(small_runs):
    runs = [small_runs[0]._replace(seconds=s) for s in (1.0, 1.2, 1.5, 3.0)]
    predicted = np.array([1.2, 1.0, 1.5, 3.0])
    scores = scores_of_times(runs, predicted)
    assert scores.error == pytest.approx((0.2 + 1 - 1 / 1.2) / 4)
    assert scores.regret == scores.max_regret == pytest.approx(1.2)
    assert scores.shortlist_regret == 1.0 and scores.num_groups == 1
    assert scores.rank_correlation == pytest.approx(0.8)
    assert scores_of_chance(runs).regret == pytest.approx(6.7 / 4)
    assert rank_correlation(np.array([1, 1, 2]), np.array([5, 5, 9])) == 1.0


def test_rules_of_thumb(small_runs):
    base = small_runs[0]
    wide = base._replace(tensor=4, data=2, pipeline=1, micro_batch=4, seconds=1.0)
    deep = base._replace(tensor=1, data=4, pipeline=2, micro_batch=1, seconds=2.0)
    runs = [wide, deep, deep._replace(micro_batch=2), wide._replace(tensor=8)]
    assert min(runs, key=least_model_parallel).micro_batch == 2
    assert min(runs, key=least_pipeline) == wide
    assert scores_of_rule(runs, least_pipeline).regret == 1.0
    assert scores_of_rule(runs, least_model_parallel).regret == 2.0


def test_known_runs_are_predicted_without_a_fit(programs):
    small = [known.run for known in KNOWN_RUNS if known.run.pipeline < 16]
    assert len(small) == 2
    profile = Constants(as_hardware("a100"))
    lines = known_run_lines({"a100.json": profile}, programs)
    head, smallest, *_ = (next(lines) for _ in range(2))
    assert "published" in head and smallest.startswith("22B")
    error = float(smallest.split()[-1].removesuffix("%")) / 100
    assert abs(error) < 0.1


def test_the_report_prints_its_tables(small_runs, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "benchmarks.regret.published_steps.known_runs.KNOWN_RUNS", KNOWN_RUNS[:1]
    )
    monkeypatch.setattr(megatron, "_ROUNDS", 1)
    lines = PUBLISHED.read_text(encoding="utf-8").splitlines()
    path = tmp_path / "runs.csv"
    chosen = [line for line in lines if line.startswith(("nodes", "single,8,4,"))]
    path.write_text("\n".join(chosen), encoding="utf-8")
    text = "\n".join(compare_published(path, seed=0))
    for title in ("constants fitted", "and times of layers", "random", "22B"):
        assert title in text
