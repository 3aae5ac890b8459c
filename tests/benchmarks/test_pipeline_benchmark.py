"""benchmarks.pipeline: what it tells of numbers, and that a measured time line is a
real one.
"""

from __future__ import annotations

import pytest

from benchmarks.pipeline import __main__ as pipeline
from meshtf.pipeline import interleaved


def test_speed_up_is_the_median_of_quiet_pairs():
    pairs = [
        pipeline.Pair((wall, 2.0), (4.0, 3.0), other_cores)
        for wall, other_cores in ((4.0, 0.0), (9.0, 0.5), (3.0, 0.05), (3.5, 0.0))
    ]
    row = pipeline.Row(8, pairs, (1.0, 1.0), ({}, {"first": 2.0, "first_cpu": 1.0}))
    assert (row.speed_up, row.ideal, row.median("wall", 0), len(row.counted_pairs)) == (
        1.75,
        16 / 9,
        3.5,
        3,
    )
    words = pipeline.line(row).split()
    assert (
        "98%" in words and words[-3:] == ["3", "of", "4"] and "1.50" in words
    )  # cores


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("microbatches, chunks", [(3, 1), (4, 2)])
def test_time_lines_are_of_the_schedule(microbatches, chunks):
    lines = pipeline.timelines(microbatches, chunks, tries=1)
    schedule = interleaved(2, microbatches, chunks)
    for line in lines.values():
        ends = {span.task: span.end for span in line.spans}
        for stage, tasks in enumerate(schedule.tasks):
            sorted_spans = sorted(
                (s for s in line.spans if s.task.stage == stage), key=lambda s: s.start
            )
            assert tuple(s.task for s in sorted_spans) == tasks
            assert all(a.end <= b.start for a, b in zip(sorted_spans, sorted_spans[1:]))
        for span in line.spans:
            before = schedule.before(span.task)
            assert before is None or ends[before] <= span.start
