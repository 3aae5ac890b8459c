"""Positions as a bias of scores: T5's buckets, ALiBi's slopes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import meshtf as mtf
from meshtf import layers


def bucket(ahead, both_ways, buckets=32, max_distance=128):
    """Returns the bucket of Raffel et al., number by number."""
    first = 0
    if both_ways:
        buckets //= 2
        first = buckets if ahead > 0 else 0
        distance = abs(ahead)
    else:
        distance = max(-ahead, 0)
    single = buckets // 2
    if distance < single:
        return first + distance
    grown = single + math.log(distance / single) / math.log(max_distance / single) * (
        buckets - single
    )
    return first + min(int(grown + 1e-6), buckets - 1)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("layout", ["", "heads:y", "length:x;buckets:y"])
def test_each_distance_has_its_bucket(both_ways, layout):
    mesh = mtf.Mesh("x:2;y:2", layout)
    module = layers.RelativeBias(mesh, "heads:2", both_ways=both_ways)
    key_positions = mtf.range(mesh, "length:200")
    bias = module(
        key_positions, mtf.rename(key_positions, "length", "kv_length")
    ).numpy()
    table = module.table.numpy()
    for i, j in [
        (0, 0),
        (7, 3),
        (8, 199),
        (199, 0),
        (100, 116),
        (100, 84),
        (50, 51),
        (60, 33),
    ]:
        np.testing.assert_array_equal(bias[i, j], table[bucket(j - i, both_ways)])


def test_slopes_are_those_of_the_paper():
    mesh = mtf.Mesh("x:2", "heads:x")
    key_positions = mtf.range(mesh, "length:4")
    context = mtf.rename(key_positions, "length", "kv_length")
    bias = layers.distance_slopes(key_positions, context, "heads:8").numpy()
    np.testing.assert_allclose(bias[3, 2], [-(2.0**-i) for i in range(1, 9)], rtol=1e-6)
    np.testing.assert_allclose(bias[3, 0], 3 * bias[3, 2], rtol=1e-6)
    twelve = layers.distance_slopes(key_positions, context, "heads:12").numpy()[1, 0]
    np.testing.assert_allclose(twelve[:8], bias[1, 0], rtol=1e-6)
    np.testing.assert_allclose(
        twelve[8:], [-(2.0 ** -(i + 0.5)) for i in range(4)], rtol=1e-6
    )
    groups = layers.distance_slopes(
        key_positions, context, "kv_heads:2;heads:4"
    ).numpy()
    np.testing.assert_allclose(groups.reshape(4, 4, 8), bias, rtol=1e-6)


def test_too_few_buckets_are_refused():
    with pytest.raises(mtf.ShapeError, match="2 buckets are too few"):
        layers.RelativeBias(mtf.Mesh(""), "heads:2", buckets=2, both_ways=True)
