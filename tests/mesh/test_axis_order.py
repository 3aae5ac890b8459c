"""The order of the axes that shard one dimension."""

from __future__ import annotations

import itertools

import pytest

from meshtf.mesh import Partial, Replicated, Sharded
from meshtf.mesh.axis_order import (
    NewOrder,
    Orders,
    axes_by_dim,
    changed_axes,
    new_orders,
    num_kept_shards,
    sharded_states,
    with_lowest_orders,
)

AXES = ("x", "y", "z")


def placed(**axes_of_dim):
    """Returns the placement on AXES in which axes shard dimensions: placed(a="zx")."""
    states = sharded_states(AXES, axes_of_dim)
    return tuple(states.get(axis, Replicated) for axis in AXES)


@pytest.mark.parametrize("order", list(itertools.permutations(AXES)))
def test_states_say_each_order(order):
    placement = placed(a=order)
    assert axes_by_dim(AXES, placement) == {"a": order}
    assert with_lowest_orders(placement) == placement
    is_that_of_the_mesh = order == AXES
    assert all(state.order == 0 for state in placement) == is_that_of_the_mesh


def test_an_axis_that_is_left_alone_has_no_order():
    _x, _y, z = placed(a="yz", b="x")
    assert placed(a="zyx")[0] == Sharded("a", order=2)
    assert with_lowest_orders((Sharded("a", order=2), Partial("sum"), z)) == (
        Sharded("a", order=1),
        Partial("sum"),
        Sharded("a"),
    )
    assert with_lowest_orders((Sharded("a", order=1), Replicated, Replicated)) == (
        Sharded("a"),
        Replicated,
        Replicated,
    )


def test_axes_after_the_one_that_changes_change_too():
    assert changed_axes(AXES, placed(a="zxy"), placed(a="zyx")) == {"x": "a", "y": "a"}
    assert changed_axes(AXES, placed(a="xy"), placed(a="xz")) == {"y": "a"}
    assert list(new_orders(AXES, placed(a="zxy"), placed(a="zyx"))) == [
        NewOrder("a", ("x", "y"), ("y", "x"))
    ]
    assert not list(new_orders(AXES, placed(a="xy"), placed(a="y", b="x")))


@pytest.mark.parametrize("sizes, kept", [((2, 2), 2), ((2, 4), 2), ((3, 5), 3)])
def test_shards_that_stay_where_they_are(sizes, kept):
    """Of the positions of two axes, those whose index is the same in both orders."""
    assert num_kept_shards(dict(zip("ab", sizes, strict=True)), "ab", "ba") == kept


def test_an_op_takes_the_order_that_most_elements_have():
    tensors = [(placed(a="xy"), str, 10), (placed(b="yx"), {"b": "a"}.get, 20)]
    orders = Orders(AXES, {"x": "a", "y": "a", "z": "c"}, tensors)
    assert orders.applied_to(placed(a="xy", c="z"), str) == placed(a="yx", c="z")
    assert orders.applied_to(placed(a="x"), str) == placed(a="x")
    assert orders.sharded_factors() == (("y", "a"), ("x", "a"), ("z", "c"))
