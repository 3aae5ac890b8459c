"""benchmarks.moe on tiny mixtures: what is measured and how it is told."""

from __future__ import annotations

import pytest

from benchmarks.moe import __main__ as moe

TINY = {"batch": 2, "length": 16, "d_model": 8, "d_ff": 8}


@pytest.mark.parametrize(
    "mesh",
    [{}, {"axes": "data:2", "layout": "batch:data; experts:data", "update": True}],
    ids=["one position", "two"],
)
def test_all_questions_are_answered(mesh):
    results = moe.measure(moe.Size(**TINY, **mesh), experts=(4,), rounds=1)
    assert [len(rows) for rows in results.values()] == [2, 5, 4]
    assert all(
        rows[0]["ratio"] == 1 and all(row["ms"] > 0 for row in rows)
        for rows in results.values()
    )
    assert len(moe.table(results).splitlines()) == 3 + 2 + 5 + 4


def test_a_dense_layer_does_as_much_for_each_token():
    size = moe.Size(**TINY, factor=1.25)
    slots = size.gate.keywords["capacity"].slots(2, size.length, 4, True)
    assert 4 * slots * size.d_ff == size.length * int(2 * size.factor * size.d_ff)


def test_ways_that_disagree_are_refused():
    runs = [
        moe.dispatch_run(moe.Size(**TINY), experts, moe.by_index) for experts in (4, 2)
    ]
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        moe._check_equal(runs)
