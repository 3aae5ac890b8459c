"""Schedules: what each stage does, what waits for what, what is held; and what is
refused.
"""

from __future__ import annotations

import pytest

from meshtf.errors import PlanError
from meshtf.pipeline import (
    Schedule,
    Task,
    gpipe,
    interleaved,
    one_f_one_b,
    peak_activations,
)
from tests.support.refusals import refuses

SIZES = [(1, 1), (1, 3), (2, 1), (2, 4), (3, 2), (4, 4), (4, 9), (5, 10)]
SCHEDULES = {
    f"{make.__name__}-{k}-{m}": make(k, m)
    for k, m in SIZES
    for make in (gpipe, one_f_one_b)
}
SCHEDULES |= {
    f"interleaved-{k}-{m}-{v}": interleaved(k, m, v)
    for k, m in SIZES
    if m % k == 0
    for v in (1, 2, 3)
}


def words(tasks):
    """Returns tasks in short."""
    return " ".join(task.label for task in tasks)


def test_gpipe_goes_forward_with_all_and_comes_back_in_reverse():
    assert [*map(words, gpipe(3, 3).tasks)] == ["F0 F1 F2 B2 B1 B0"] * 3


def test_1f1b_turns_as_soon_as_it_can():
    assert [*map(words, one_f_one_b(3, 4).tasks)] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    assert [*map(words, one_f_one_b(3, 1).tasks)] == ["F0 B0"] * 3


def test_interleaved_takes_as_many_microbatches_through_a_chunk_as_there_are_stages():
    assert [*map(words, interleaved(2, 4, 2).tasks)] == [
        "F0 F1 F0b F1b F2 B0b F3 B1b F2b B0 F3b B1 B2b B3b B2 B3",
        "F0 F1 F0b B0b F1b B1b F2 B0 F3 B1 F2b B2b F3b B3b B2 B3",
    ]
    assert interleaved(3, 4, 1) == one_f_one_b(3, 4)


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_one_order_keeps_all_that_waits(schedule):
    order = schedule.order()
    place = {task: i for i, task in enumerate(order)}
    chunks = schedule.stages * schedule.chunks
    assert len(order) == len(place) == 2 * chunks * schedule.microbatches
    for stage, tasks in enumerate(schedule.tasks):
        assert [task for task in order if task.stage == stage] == [*tasks]
    for m in range(schedule.microbatches):  # there and back again
        ways = {
            kind: [
                Task(c % schedule.stages, m, kind, c // schedule.stages)
                for c in range(chunks)
            ]
            for kind in ("forward", "backward")
        }
        way = [place[task] for task in (*ways["forward"], *reversed(ways["backward"]))]
        assert way == sorted(way)


def test_stages_work_side_by_side():
    assert [f"{task.label}/{task.stage}" for task in gpipe(3, 2).order()[:6]] == [
        "F0/0",
        "F1/0",
        "F0/1",
        "F1/1",
        "F0/2",
        "F1/2",
    ]


@pytest.mark.parametrize("stages, microbatches", SIZES)
def test_what_is_held(stages, microbatches):
    assert (
        peak_activations(gpipe(stages, microbatches).order())
        == (microbatches,) * stages
    )
    assert peak_activations(one_f_one_b(stages, microbatches).order()) == tuple(
        min(stages - k, microbatches) for k in range(stages)
    )


@pytest.mark.parametrize(
    "stages, microbatches, chunks", [(2, 8, 2), (4, 16, 2), (4, 16, 4)]
)
def test_an_interleaved_stage_holds_a_little_more(stages, microbatches, chunks):
    # v K chunks are all of a stage's share K times; the K - 1 more are a share (K - 1)
    # / (v K).
    assert (
        peak_activations(interleaved(stages, microbatches, chunks).order())[0]
        == (chunks + 1) * stages - 1
    )


def test_what_is_held_counts_each_chunk_by_its_size():
    order = interleaved(2, 2, 2).order()
    assert peak_activations(order, [1, 10, 100, 1000]) == (202, 2020 - 1000)


def test_a_list_that_cannot_run_is_refused():
    good = one_f_one_b(2, 2).tasks
    stuck = Schedule((good[0], (good[1][1], good[1][0], *good[1][2:])))
    with refuses(
        PlanError,
        "wait for each other",
        "stage=0.*waits for.*stage=1",
        "stage=1.*'backward'.*waits for.*stage=1.*'forward'",
    ):
        stuck.order()


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda mine, other: (mine[:-1], other),
            "2 stages, 2 microbatches and 1 chunks has no Task",
        ),
        (lambda mine, other: (mine + mine[:1], other), "is there twice"),
        (lambda mine, other: (other, mine), "stage 0 has Task.stage=1"),
    ],
)
def test_each_task_is_there_once_where_it_belongs(change, words):
    with refuses(PlanError, words):
        Schedule(change(*one_f_one_b(2, 2).tasks))


def test_sizes_that_cannot_be_are_refused():
    with refuses(
        PlanError, "6 microbatches cannot be interleaved over 4 stages", "multiple of 4"
    ):
        interleaved(4, 6, 2)
    for make in (
        lambda: gpipe(0, 1),
        lambda: one_f_one_b(1, 0),
        lambda: interleaved(2, 2, 0),
    ):
        with refuses(PlanError, "each is at least 1"):
            make()
