"""The table of moves: every pair of placements carried out in numpy, and what each move
costs.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from meshtf.graph import Spec
from meshtf.mesh import (
    Mesh,
    OnStage,
    Partial,
    Placement,
    Replicated,
    Sharded,
    Varying,
)
from meshtf.names import Shape
from meshtf.partition import reshards
from meshtf.partition.cost import (
    bytes_received,
    local_size,
    received_elements,
)
from meshtf.partition.reshard_table import placement_after

A, B, SUM = Sharded("a"), Sharded("b"), Partial("sum")
REDUCE = {"sum": sum, "max": lambda xs: np.max(xs, 0), "min": lambda xs: np.min(xs, 0)}


def shards_of(x, mesh, placement):
    """Returns the shard of x[a, b] at each position, sharded along the axes of the mesh,
    the major one first.
    """
    shards = []
    for coord in mesh.coords:
        coordinates = dict(zip(mesh.axes, coord, strict=True))
        y = x
        for dim, axes in placement.shards.items():
            for axis in axes:
                y = np.split(y, mesh.axes[axis], "ab".index(dim))[coordinates[axis]]
        shards.append(y)
    return shards


def partial_shards_of(x, mesh, placement, rng):
    """Returns shards whose reductions over axes of partial results are the shards of x."""
    shards = shards_of(x, mesh, placement)
    for axis, state in placement.partial.items():
        for group in mesh.groups(axis):
            if state.kind == "sum":
                extra = rng.integers(-9, 9, (len(group) - 1, *shards[group[0]].shape))
                for p, e in zip(group, [*extra, -extra.sum(0)], strict=True):
                    shards[p] = (shards[p] if p == group[0] else 0) + e
            else:  # one position has the extreme value, the others smaller ones
                sign = -1 if state.kind == "max" else 1
                for k, p in enumerate(group):
                    shards[p] = shards[p] + sign * k
    return shards


def run_reshard(reshard, xs, mesh):
    """Returns the shards after a reshard, computed by NumPy."""
    out = list(xs)
    if reshard.kind == "collective_permute":
        for source, target in reshard.permuted_positions(mesh):
            out[target] = xs[source]
        return out
    gather_axis = (
        "ab".index(reshard.before.dim) if isinstance(reshard.before, Sharded) else None
    )
    split_axis = (
        "ab".index(reshard.after.dim) if isinstance(reshard.after, Sharded) else None
    )
    for group in mesh.groups(*reshard.axes):
        inputs = [xs[p] for p in group]
        if reshard.kind in ("all_reduce", "reduce_scatter"):
            complete = REDUCE[reshard.before.kind](inputs)
        elif reshard.kind in ("all_gather", "all_to_all"):
            complete = np.concatenate(inputs, gather_axis)
        for c, p in enumerate(group):
            y = xs[p] if reshard.kind == "slice" else complete
            out[p] = y if split_axis is None else np.split(y, len(group), split_axis)[c]
    return out


def legal(old, new):
    """Whether the table has an entry: nothing becomes a partial sum."""
    return new.partial.items() <= old.partial.items()


def placed(states):
    """Returns the placement with these states, pairs (axis, state), along axes."""
    placement = Placement()
    for axis, state in states:
        placement = placement.with_state(axis, state, "data model stage x y".split())
    return placement


def placements(axes, states):
    """Returns all placements on axes with some of these states."""
    choices = itertools.product(states, repeat=len(axes))
    return [placed(zip(axes, choice, strict=True)) for choice in choices]


@pytest.mark.parametrize(
    "before, after, kinds",
    [
        (Replicated, Replicated, []),
        (Replicated, A, ["slice"]),
        (A, Replicated, ["all_gather"]),
        (A, A, []),
        (A, B, ["all_to_all"]),
        (SUM, Replicated, ["all_reduce"]),
        (SUM, A, ["reduce_scatter"]),
        (SUM, SUM, []),
        (Partial("max"), Replicated, ["all_reduce"]),
        (Partial("min"), B, ["reduce_scatter"]),
    ],
)
def test_the_table_along_one_axis(before, after, kinds):
    old, new = (placed([("data", state)]) for state in (before, after))
    steps = reshards({"data": 4}, old, new)
    assert [m.kind for m in steps] == kinds
    assert [(m.axes, m.before, m.after) for m in steps] == [
        (("data",), before, after)
    ] * len(kinds)


@pytest.mark.parametrize("axes", ["data:2;model:3", "data:2;model:2;stage:2"])
def test_every_pair_of_placements_gives_the_right_shards(axes, rng):
    mesh = Mesh(axes)
    x = rng.integers(-99, 99, (8, 8) if len(mesh.axes) > 2 else (36, 36))
    states = (
        (Replicated, A, B)
        if len(mesh.axes) > 2
        else (Replicated, A, B, SUM, Partial("max"))
    )
    pairs = 0
    for old in placements(mesh.axes, states):
        xs = partial_shards_of(x, mesh, old, rng)
        for new in placements(mesh.axes, states):
            kinds = {state.kind for state in old.partial.values()}
            if not legal(old, new) or len(kinds) > 1:
                continue  # sums of maxima have no order: no op makes them
            ys, placement = xs, old
            for reshard in reshards(mesh.axes, old, new):
                for axis in reshard.axes:
                    assert placement[axis] == reshard.before
                placement = placement_after(placement, reshard)
                ys = run_reshard(reshard, ys, mesh)
            assert placement == new
            if not new.partial:
                for y, want in zip(ys, shards_of(x, mesh, new), strict=True):
                    np.testing.assert_array_equal(y, want, err_msg=f"{old} -> {new}")
            pairs += 1
    assert pairs > 200


@pytest.mark.parametrize(
    "old, new, want",
    [
        # only the axes that differ are resharded
        (Placement("a:data", model=SUM), Placement("a:data"), ["all_reduce model"]),
        (Placement("a:data"), Placement("a:data;b:model"), ["slice model"]),
        # one collective over both axes where both change in the same way
        (Placement("a:data+model"), Placement(), ["all_gather data+model"]),
        (Placement(), Placement("a:data+model"), ["slice data+model"]),
        (
            Placement(data=SUM, model=SUM),
            Placement("a:data+model"),
            ["reduce_scatter data+model"],
        ),
        (Placement(data=SUM, model=SUM), Placement(), ["all_reduce data+model"]),
        (
            Placement("a:data+model"),
            Placement("b:data+model"),
            ["all_to_all data+model"],
        ),
        # the major axis stays as it is, the minor one changes
        (Placement("a:data+model"), Placement("a:data"), ["all_gather model"]),
        (Placement("a:data+model"), Placement("a:data;b:model"), ["all_to_all model"]),
        (
            Placement(data=SUM, model=SUM),
            Placement("a:data"),
            ["reduce_scatter data", "all_reduce model"],
        ),
        # a sum, and a slice between: major axis first
        (
            Placement(data=SUM),
            Placement("a:data+model"),
            ["reduce_scatter data", "slice model"],
        ),
        (
            Placement(model=SUM),
            Placement("a:data+model"),
            ["slice data", "reduce_scatter model"],
        ),
        # slices come before the gather, which then has fewer bytes
        (Placement("a:data"), Placement("b:model"), ["slice model", "all_gather data"]),
        (
            Placement("a:data", model=SUM),
            Placement("b:model"),
            ["reduce_scatter model", "all_gather data"],
        ),
        (Placement("a:data;b:model"), Placement("a:model;b:data"), None),
    ],
)
def test_the_order_of_reshards(old, new, want):
    table = reshards({"data": 4, "model": 2}, old, new)
    steps = [f"{m.kind} {m.axes_text}" for m in table]
    assert steps == want if want is not None else 2 <= len(steps) <= 4


@pytest.mark.parametrize(
    "old, new, want",
    [
        (Placement("a:x"), Placement("a:y"), ["collective_permute"]),
        (Placement("a:x;b:y"), Placement("a:y;b:x"), ["collective_permute"]),
        # further slices come before, further gathers after
        (Placement("a:x"), Placement("a:y;b:z"), ["slice", "collective_permute"]),
        (
            Placement("a:x;b:z"),
            Placement("a:y"),
            ["collective_permute", "all_gather"],
        ),
        # not between axes of two sizes, nor where a third axis shards the same dimension
        (
            Placement("a:y"),
            Placement("a:z"),
            ["all_gather", "slice"],
        ),
        (Placement("a:x+z"), Placement("a:y+z"), None),
    ],
)
def test_two_axes_of_one_size_exchange_their_states(old, new, want):
    kinds = [m.kind for m in reshards({"x": 2, "y": 2, "z": 3}, old, new)]
    assert kinds == want if want is not None else "collective_permute" not in kinds


NEVER = {  # after: before
    A: {OnStage(0), Varying},
    Replicated: {Varying},
    SUM: {A, Replicated, OnStage(0), Varying, Partial("max")},
    OnStage(1): {A, SUM, Varying},
    Varying: {OnStage(0)},
}


@pytest.mark.parametrize("after", NEVER)
@pytest.mark.parametrize(
    "before", [A, Replicated, SUM, Partial("max"), OnStage(0), Varying]
)
def test_what_the_table_says_is_never_done(before, after):
    old, new = (placed([("x", state), ("y", B)]) for state in (before, after))
    axes = {"x": 2, "y": 2}
    if before in NEVER[after]:
        with pytest.raises(ValueError, match="nothing becomes a partial"):
            reshards(axes, old, new)
        return
    placement = old
    for reshard in reshards(axes, old, new):
        placement = placement_after(placement, reshard)
    assert placement == new


@pytest.mark.parametrize(
    "old, new, received",
    [
        (Placement("a:data+model"), Placement(), 7 / 8),
        (Placement(data=SUM, model=SUM), Placement(), 2 * 7 / 8),
        (Placement(data=SUM, model=SUM), Placement("a:data+model"), 7 / 8),
        (Placement("a:data+model"), Placement("b:data+model"), 7 / 64),
        (Placement("a:data+model"), Placement("a:data;b:model"), 1 / 16),
        (Placement("a:data+model"), Placement("a:data"), 1 / 8),
        (Placement("a:data"), Placement("a:data+model"), 0),
    ],
)
def test_reshards_over_two_axes_receive_no_more_than_they_must(old, new, received):
    """`received` is the part of the whole tensor that a device receives."""
    mesh = Mesh("data:4;model:2")
    size = local_size(Shape("a:64;b:64"), old, mesh)
    total = sum(
        bytes_received(reshard.kind, size, mesh.group_size(*reshard.axes))
        for reshard in reshards(mesh.axes, old, new)
    )
    assert total == received * 64 * 64


def orders_of_axes():
    """Returns every placement of x[a, b] on the mesh x:2; y:3; z:2, in all orders of axes."""
    placements = []
    for choice in itertools.product((None, "a", "b"), repeat=3):
        axes = {d: [n for n, c in zip("xyz", choice) if c == d] for d in "ab"}
        for a_axes in itertools.permutations(axes["a"]):
            for b_axes in itertools.permutations(axes["b"]):
                placements.append(Placement.of({"a": a_axes, "b": b_axes}))
    return placements


@pytest.mark.parametrize("size", [12, 10])
def test_every_order_of_axes_is_reached(size):
    """With 10 elements shards have padding, and some orders need a gather."""
    axes = {"x": 2, "y": 3, "z": 2}
    shape = Shape(f"a:{size};b:12")
    placements = orders_of_axes()
    assert len(placements) == 49
    for old, new in itertools.product(placements, repeat=2):
        placement = old
        for reshard in reshards(axes, old, new, shape):
            placement = placement_after(placement, reshard)
        assert placement == new


@pytest.mark.parametrize(
    "old, new, kinds, received",
    [
        # 2 of 8 devices have their shard already: those of the first and the last.
        (
            Placement("a:data+model"),
            Placement("a:model+data"),
            ["collective_permute"],
            6 / 64,
        ),
        # 7/64 for the all_to_all, and a shard for the new order.
        (
            Placement("a:data+model"),
            Placement("b:model+data"),
            ["all_to_all", "collective_permute"],
            7 / 64 + 6 / 64,
        ),
        (Placement("a:model+data"), Placement("a:model"), ["all_gather"], 3 / 8),
        # The major axis becomes the minor one, and is gathered.
        (
            Placement("a:data+model"),
            Placement("a:model"),
            ["collective_permute", "all_gather"],
            6 / 64 + 3 / 8,
        ),
        (
            Placement("a:model"),
            Placement("a:data+model"),
            ["slice", "collective_permute"],
            6 / 64,
        ),
        (
            Placement("a:model", data=Partial("sum")),
            Placement("a:data+model"),
            ["reduce_scatter", "collective_permute"],
            3 / 8 + 6 / 64,
        ),
        (Placement("a:model"), Placement("a:model+data"), ["slice"], 0),
    ],
)
def test_other_orders_receive_no_more_than_they_must(old, new, kinds, received):
    """`received` is the part of the whole tensor that a device receives."""
    mesh = Mesh("data:4;model:2")
    spec = Spec(Shape("a:64;b:64"), "float32")
    assert [r.kind for r in reshards(mesh.axes, old, new)] == kinds
    assert received_elements(mesh, spec, old, new) == received * 64 * 64


def test_a_new_order_moves_the_shards_where_they_belong():
    mesh = Mesh("data:4;model:2")
    x = np.arange(64.0).reshape(64, 1)
    old = Placement("a:data+model")
    new = Placement("a:model+data")
    (reshard,) = reshards(mesh.axes, old, new)
    shards = run_reshard(reshard, shards_of(x, mesh, old), mesh)
    for shard, want in zip(shards, shards_of(x, mesh, new), strict=True):
        np.testing.assert_array_equal(shard, want)


def test_shards_with_padding_are_gathered_for_a_new_order():
    mesh = Mesh("data:4;model:2")
    old = Placement("a:data+model")
    new = Placement("a:model+data")
    table = reshards(mesh.axes, old, new, Shape("a:10;b:2"))
    assert [r.kind for r in table] == ["all_gather", "slice"]
    # Axes of equal sizes: shards begin at the same elements in both orders.
    equal = Mesh("data:2;model:2").axes
    table = reshards(equal, old, new, Shape("a:10;b:2"))
    assert [r.kind for r in table] == ["collective_permute"]
