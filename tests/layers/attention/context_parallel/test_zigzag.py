"""The zigzag order: every chunk of causal attention has the same work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import meshtf as mtf
from meshtf.layers.attention.context_parallel.zigzag import ZigzagPairs


def test_order_of_two_chunks():
    mesh = mtf.Mesh("")
    order = mtf.layers.ZigzagOrder("length:8", 2)
    x = order.apply(mtf.range(mesh, "length:8"))
    assert list(x.numpy()) == [0, 1, 6, 7, 2, 3, 4, 5]


@pytest.mark.parametrize("axes", ["", "x:2", "x:4"])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_undo_is_the_inverse(rng, axes, chunks):
    mesh = mtf.Mesh(axes, "length:x")
    order = mtf.layers.ZigzagOrder("length:16", chunks)
    value = rng.normal(size=(2, 16, 3)).astype("float32")
    x = mtf.asarray(mesh, value, "batch;length;d")
    np.testing.assert_array_equal(order.undo(order.apply(x)).numpy(), value)
    np.testing.assert_array_equal(order.apply(order.undo(x)).numpy(), value)


@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_pairs_cover_each_visible_pair_of_halves_once(chunks):
    """The first step has all pairs of one chunk; the others must add what is missing."""
    mesh = mtf.Mesh("")
    order = mtf.layers.ZigzagOrder(f"length:{2 * chunks}", chunks)
    names = ("length", "kv_length")
    halves = [
        mtf.reshape(
            order.apply(mtf.range(mesh, f"length:{2 * chunks}")),
            f"chunks:{chunks};{name}:2",
        )
        for name in names
    ]
    visited = []
    for chunk in range(chunks):
        own = halves[0].numpy()[chunk]
        visited += [(q, k) for q, k in itertools.product(own, own) if q >= k]
    for step in range(1, chunks):
        pairs = ZigzagPairs(mtf.Dimension("chunks", chunks), step, *names, mesh)
        keys = mtf.roll(halves[1], "chunks", step)
        q = pairs.queries(halves[0]).numpy()
        k = pairs.keys(keys).numpy()
        visited += list(zip(q.ravel(), k.ravel(), strict=True))
    expected = [(q, k) for q in range(2 * chunks) for k in range(q + 1)]
    assert sorted(map(tuple, np.array(visited).tolist())) == sorted(expected)


def test_sizes_that_have_no_halves_are_refused():
    with pytest.raises(mtf.ShapeError, match=r"length.*halves of 4 chunks"):
        mtf.layers.ZigzagOrder("length:12", 4)


def test_positions_and_random_numbers_are_those_of_the_order():
    mesh = mtf.Mesh("seq:2", "length:seq")
    order = mtf.layers.ZigzagOrder("length:12", 3)
    index = mtf.range(mesh, "length:12")
    positions = order.positions(index)
    np.testing.assert_array_equal(positions.numpy(), order.apply(index).numpy())
    np.testing.assert_array_equal(positions.numpy()[:4], [0, 1, 10, 11])

    def draw():
        return mtf.random_normal(mesh, "batch:2;length:12", seed=1)

    expected = order.apply(draw())
    with order.random_numbers():
        np.testing.assert_array_equal(draw().numpy(), expected.numpy())
        # Another dimension of this name has no order.
        other = mtf.random_normal(mesh, "length:6", seed=1)
    np.testing.assert_array_equal(
        other.numpy(), mtf.random_normal(mesh, "length:6", seed=1).numpy()
    )
