"""Time lines: idle time by the published formulas, exactly, and what costs and sends do
to it.
"""

from __future__ import annotations

from fractions import Fraction

import pytest

from meshtf.errors import PlanError
from meshtf.pipeline import (
    Timeline,
    gpipe,
    ideal_speed_up,
    interleaved,
    one_f_one_b,
    peak_activations,
    simulate,
)
from tests.support.refusals import refuses

SIZES = [(1, 1), (1, 5), (2, 1), (2, 8), (3, 7), (4, 4), (4, 32), (8, 32)]


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
@pytest.mark.parametrize("k, m", SIZES)
def test_equal_chunks_are_idle_as_published(k, m, make):
    line = simulate(make(k, m), Fraction(1, 3))
    assert line.bubble == Fraction(k - 1, m + k - 1)
    assert line.idle_per_work == Fraction(k - 1, m)
    assert line.speed_up == Fraction(k * m, m + k - 1)
    assert ideal_speed_up(k, m) == k * m / (m + k - 1)
    assert line.time == (m + k - 1)  # a third forward, two thirds backward
    assert line.busy == (m,) * k


@pytest.mark.parametrize("backward", [1, 2, 5])
@pytest.mark.parametrize(
    "k, m, v", [(k, m, v) for k, m in SIZES if m % k == 0 for v in (1, 2, 4)]
)
def test_interleaved_chunks_are_idle_as_published(k, m, v, backward):
    line = simulate(interleaved(k, m, v), Fraction(1), backward)
    assert line.idle_per_work == Fraction(k - 1, m) / v
    assert line.speed_up == pytest.approx(ideal_speed_up(k, m, v), rel=1e-15)


def test_each_task_has_its_time():
    line = simulate(one_f_one_b(2, 2), [1, 2], [3, 4])
    assert [
        (s.task.label, s.start, s.end) for s in line.spans if s.task.stage == 0
    ] == [("F0", 0, 1), ("F1", 1, 2), ("B0", 7, 10), ("B1", 13, 16)]
    assert [
        (s.task.label, s.start, s.end) for s in line.spans if s.task.stage == 1
    ] == [("F0", 1, 3), ("B0", 3, 7), ("F1", 7, 9), ("B1", 9, 13)]
    assert (line.stages, line.start, line.time, line.busy) == (2, 0, 16, (8, 12))
    assert (
        line.bubble == 12 / 32
        and line.idle_per_work == 12 / 20
        and line.speed_up == 20 / 16
    )


@pytest.mark.parametrize("make", [gpipe, one_f_one_b])
def test_nothing_runs_before_it_can(make, rng):
    schedule = make(3, 5)
    forward, backward = rng.integers(1, 9, (2, 3)).tolist()
    line = simulate(schedule, forward, backward, send=2)
    end = {span.task: span.end for span in line.spans}
    for span in line.spans:
        before, mine = schedule.before(span.task), schedule.tasks[span.task.stage]
        sent = (
            0 if before is None else end[before] + 2 * (before.stage != span.task.stage)
        )
        i = mine.index(span.task)
        assert span.start == max(sent, end[mine[i - 1]] if i else 0)


def test_sending_takes_time_on_the_way_only():
    assert simulate(gpipe(3, 1), send=5).time == 9 + 4 * 5
    assert simulate(gpipe(1, 4), send=5).time == 12
    assert (
        simulate(interleaved(1, 4, 2), send=5).time == 24
    )  # a stage sends itself nothing


def test_recompute_is_work_and_may_be_done_while_waiting():
    late = simulate(gpipe(2, 2), recompute=1)
    assert late.busy == (8, 8) and late.time == 12
    early = simulate(gpipe(2, 2), recompute=1, early=True)
    assert (
        early.busy == (8, 8) and early.time == 11
    )  # the first one's first, while idle
    made = [(s.kind, s.start, s.end) for s in early.spans if s.task.stage == 0][2:]
    assert made == [
        ("recompute", 2, 3),
        ("backward", 6, 8),
        ("recompute", 8, 9),
        ("backward", 9, 11),
    ]
    assert simulate(gpipe(2, 2), recompute=[0, 1]).busy == (6, 8)


def test_a_time_line_knows_what_is_held():
    for schedule in (gpipe(3, 4), one_f_one_b(3, 4), interleaved(2, 4, 3)):
        line = simulate(schedule, recompute=1)
        assert line.peak_activations() == peak_activations(schedule.order())
        sizes = [7 * c + 1 for c in range(schedule.stages * schedule.chunks)]
        assert line.peak_activations(sizes) == peak_activations(schedule.order(), sizes)


def test_a_measured_line_may_start_at_any_time():
    line = simulate(gpipe(2, 3))
    later = Timeline(
        tuple(s._replace(start=s.start + 100, end=s.end + 100) for s in line.spans)
    )
    assert (later.start, later.time, later.bubble) == (100, line.time, line.bubble)


def test_there_are_as_many_costs_as_chunks():
    with refuses(PlanError, "4 chunks in this schedule, but costs of 2"):
        simulate(interleaved(2, 2, 2), [1, 1])
