"""benchmarks.pipeline.beside_jax on a tiny stack: both programs agree, and how it is told."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.report import Row, agreement
from benchmarks.harness.rounds import measure
from benchmarks.pipeline.beside_jax import WORKER, ratios
from benchmarks.pipeline.pipeline_cases import (
    CONFIGS,
    GRIDS,
    PipelineCase,
    batches,
    pipeline_cases,
    shapes,
    values,
)

TINY = CONFIGS["tiny"]


def test_cases_go_to_processes_and_back():
    groups = list(pipeline_cases(TINY, GRIDS, microbatches=8))
    names = {(case.name, case.group) for group in groups for case in group}
    assert len(names) == 8
    for group in groups:
        assert [PipelineCase.load(case.dump()) for case in group] == group


def test_batches_and_values_are_the_same_for_all():
    for once, again in zip(batches(TINY), batches(TINY), strict=True):
        assert all(np.array_equal(once[name], again[name]) for name in once)
    assert {name: value.shape for name, value in values(TINY).items()} == shapes(TINY)


def test_ratios_stand_beside_bars():
    cases, *_ = pipeline_cases(TINY, GRIDS, microbatches=8, repeats=2)
    rows = [
        Row(
            name,
            cases[0].group,
            losses=[1.0],
            step={"wall": [seconds]},
            start={"compile": seconds, "device_memory": 40 * seconds},
        )
        for name, seconds in (("JAX", 1.0), ("live", 1.25), ("repeats", 1.0))
    ]
    lines = [
        "11 ticks of 8 microbatches; bubble (4 - 1) / (8 + 4 - 1) = 27%",
        "live / JAX: step 1.25 (bar 1.00, missed), compile 1.25 (bar 1.30), "
        "memory of a device 1.25 (bar 1.00, missed)",
        "memory of a device: 50.0 and 40.0 MiB",
    ]
    assert ratios(cases[:2], rows[:2]).splitlines() == lines
    assert ratios(cases, rows).splitlines() == [
        *lines,
        # 19 ticks of half as many layers, beside 11.
        "2 repeats / 1: step 0.80, layers that a stage computes 0.86, memory of a device 0.80",
    ]


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("index", range(4))
def test_losses_agree(index):
    group = list(pipeline_cases(TINY, GRIDS, microbatches=8, repeats=2))[index]
    rows, refused = measure(group, rounds=1, starts=1, losses=3, worker=WORKER)
    assert not refused
    assert not agreement(rows, 1e-5)
    assert len({*rows[0].losses}) == 3
    assert all(row.start["device_memory"] > 0 for row in rows)
