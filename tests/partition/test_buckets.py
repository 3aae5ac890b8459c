"""Which reductions go together: those of one kind that wait for nothing else, up to a
size.
"""

from __future__ import annotations

import dataclasses

import pytest

import meshtf as mtf
from meshtf.graph import Spec
from meshtf.mesh import Partial, Placement, Replicated, Sharded
from meshtf.names import Shape
from meshtf.partition import Bucket, Reshard, ReshardStep, Value
from meshtf.partition.buckets import Buckets
from meshtf.partition.reshard_table import placement_after

MESH = mtf.Mesh("data:4; model:2", devices="abstract")


def reduction(size, axis="data", dtype="float32", kind="all_reduce", src=None):
    """Returns a reduction of `size` elements."""
    spec = Spec(Shape(f"d:{size}"), dtype)
    before = Placement(**{axis: Partial("sum")})
    after = Replicated if kind == "all_reduce" else Sharded("d")
    reshard = Reshard(kind, (axis,), Partial("sum"), after)
    src = src or Value(spec, before)
    return ReshardStep(
        reshard, src, Value(spec, placement_after(before, reshard)), None
    )


def groups(steps, limit):
    """Returns the indices in `steps` of each bucket."""
    buckets = Buckets(MESH, limit)
    closed = [*buckets.add(steps, []), *buckets.close_all()]
    return [
        [steps.index(m) for m in (s.reductions if isinstance(s, Bucket) else [s])]
        for s in closed
    ]


def test_up_to_a_limit_of_bytes():
    assert groups([reduction(10) for _ in range(5)], 80) == [[0, 1], [2, 3], [4]]
    assert groups([reduction(10) for _ in range(5)], 10**6) == [[0, 1, 2, 3, 4]]
    assert groups([reduction(10), reduction(100), reduction(10)], 80) == [[0, 1], [2]]


def test_they_wait_for_each_other_until_a_segment_needs_one():
    buckets = Buckets(MESH, 10**6)
    steps = [reduction(10) for _ in range(4)]
    assert buckets.add(steps[:1], []) == []
    (both,) = buckets.add(steps[1:2], [steps[0].out])
    assert both.reductions == tuple(steps[:2])
    assert buckets.add(steps[2:3], [steps[0].out]) == []
    assert buckets.add([], []) == []
    assert buckets.add(steps[3:], [steps[3].out])[0].reductions == tuple(steps[2:])
    assert buckets.close_all() == []


@pytest.mark.parametrize(
    "change", [{"axis": "model"}, {"dtype": "bfloat16"}, {"kind": "reduce_scatter"}]
)
def test_reductions_of_another_kind_have_another_bucket(change):
    steps = [
        reduction(16),
        reduction(16, **change),
        reduction(16),
        reduction(16, **change),
    ]
    assert groups(steps, 10**6) == [[0, 2], [1, 3]]


def test_what_needs_a_sum_comes_after_it():
    early = reduction(8)
    other = reduction(8)
    then = reduction(8, axis="model", src=early.out)
    assert groups([early, then, other], 10**6) == [[0], [1], [2]]
    gated = dataclasses.replace(reduction(8), waits_for=(other.out,))
    assert groups([early, other, gated, reduction(8)], 10**6) == [[0, 1], [2], [3]]
