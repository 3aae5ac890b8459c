"""Placements: for each dimension the axes that shard it, the major one first."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest

from meshtf.errors import ArgumentError
from meshtf.mesh import Mesh, OnStage, Partial, Placement, Replicated, Sharded
from meshtf.mesh.placement import lost_axes, num_kept_shards

AXES = ("x", "y", "z")
SUM = Partial("sum")
PLACEMENTS = [
    Placement(),
    Placement("a:x"),
    Placement("a:z+x;b:y"),
    Placement("a:x", y=SUM, z=OnStage(1)),
]


def test_equal_placements_are_one_object():
    assert Placement("a:x;b:y") is Placement("b:y; a:x")
    assert Placement(y=SUM, x=SUM) is Placement(x=SUM, y=SUM)
    assert Placement({"a": "x"}) is Placement.of({"a": ["x"], "b": []})
    assert len({*PLACEMENTS, Placement("a:x+z;b:y")}) == len(PLACEMENTS) + 1


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_placement_is_its_repr_and_its_copies(placement):
    assert eval(repr(placement)) is placement
    assert copy.deepcopy(placement) is placement
    assert pickle.loads(pickle.dumps(placement)) is placement


@pytest.mark.parametrize("order", list(itertools.permutations(AXES)))
def test_files_tell_the_order_of_axes(order):
    """Sorted by number, and axes of equal numbers by the mesh: that order."""
    orders = Placement.of({"a": order}).orders(AXES) or (0, 0, 0)
    assert tuple(sorted(AXES, key=lambda axis: orders[AXES.index(axis)])) == order
    assert (max(orders) == 0) == (order == AXES)


def test_states_along_axes():
    x = Placement("a:z+x", y=SUM)
    assert [x[axis] for axis in AXES] == [Sharded("a"), SUM, Sharded("a")]
    assert list(x.states(AXES)) == [
        ("z", Sharded("a")),
        ("y", SUM),
        ("x", Sharded("a")),
    ]
    assert x["other"] == Replicated and x.unreplicated == set(AXES)
    assert (x.stage, PLACEMENTS[3].stage) == (None, 1)


def test_partial_results_are_reduced_where_they_are():
    x = Placement("a:x", y=SUM, z=OnStage(2))
    assert x.reduced() == Placement("a:x", z=OnStage(2))
    assert x.with_stage("z", None) == Placement("a:x", y=SUM)
    assert x.with_dims(["b"]) == Placement(z=OnStage(2))


def test_another_state_along_one_axis():
    x = Placement("a:x+z", y=SUM)
    assert x.with_state("x", Replicated, AXES) == Placement("a:z", y=SUM)
    assert x.with_state("y", Sharded("a"), AXES) == Placement("a:x+y+z")
    assert x.with_state("x", OnStage(1), AXES) == Placement("a:z", x=OnStage(1), y=SUM)
    other_order = Placement("a:z+x")
    assert other_order.with_state("x", Sharded("a"), AXES) is other_order


def test_free_axes_are_filled_from_another_placement():
    preferred = Placement("a:x")
    assert preferred.filled_from(Placement("b:y", z=SUM)) == Placement("a:x;b:y", z=SUM)
    assert preferred.filled_from(Placement("a:y", x=SUM)) == preferred
    assert preferred.filled_from(Placement("b:x+y")) == Placement("a:x;b:y")


def test_axes_after_the_one_that_changes_change_too():
    assert lost_axes(Placement("a:z+x+y"), Placement("a:z+y+x")) == {"a": ("x", "y")}
    assert lost_axes(Placement("a:x+y"), Placement("a:x+z")) == {"a": ("y",)}
    assert lost_axes(Placement("a:x"), Placement("a:x+y")) == {}


@pytest.mark.parametrize("sizes, kept", [((2, 2), 2), ((2, 4), 2), ((3, 5), 3)])
def test_shards_that_stay_where_they_are(sizes, kept):
    """Of the positions of two axes, those whose index is the same in both orders."""
    assert num_kept_shards(dict(zip("ab", sizes, strict=True)), "ab", "ba") == kept


def test_a_placement_is_no_sequence_of_states():
    with pytest.raises(TypeError, match="not iterable"):
        list(Placement("a:x"))
    with pytest.raises(ArgumentError, match="name of an axis"):
        Placement("a:x")[0]
    with pytest.raises(ArgumentError, match="y="):
        Placement("a:x", y="sum")


@pytest.mark.parametrize("wrong", [(Sharded("a"),), Placement("a:other"), "a:x"])
def test_a_placement_on_other_axes_is_refused(wrong):
    with pytest.raises(ArgumentError, match="placement"):
        Mesh("x:2").has(wrong)
