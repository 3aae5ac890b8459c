"""Which folder of the library calls which."""

from __future__ import annotations

from benchmarks.tour.__main__ import ROOT, Tour, traced, training_step


def test_a_first_step_is_followed():
    step = training_step("logical:8")
    with traced() as first:
        step()
    with traced() as second:
        step()
    assert first.calls["partition", "mesh"] > 0
    assert first.returns_between("partition", "mesh") > 0
    # A second step is planned no more.
    assert second.returns_between("partition") == 0
    assert sum(second.calls.values()) < sum(first.calls.values()) / 5


def test_a_return_is_a_stay_in_a_file_that_was_left():
    a, b, other = (ROOT / path for path in ("mesh/a.py", "mesh/b.py", "ops/c.py"))
    tour = Tour([a, b, a, other, a, b], {}, {})
    assert tour.returns_between("mesh") == 2
