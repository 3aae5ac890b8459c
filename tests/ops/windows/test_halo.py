"""Halo exchange, and pools and strided slices by other ops."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.support.refusals import refuses

X = np.arange(2 * 4 * 3, dtype="float32").reshape(2, 4, 3) + 1


@pytest.mark.parametrize("layout", ["", "blocks:x", "blocks:x; b:y"])
@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("before, after", [(1, 2), (3, 0), (0, 1), (7, 4), (0, 0)])
def test_blocks_with_the_rows_around_them(layout, wrap, before, after):
    x = mtf.asarray(mtf.Mesh("x:4;y:2", layout), X, "b;blocks;rows")
    y = mtf.halo_exchange(x, "blocks", "rows", before, after, wrap)
    line = np.pad(
        X.reshape(2, 12), [(0, 0), (before, after)], mode="wrap" if wrap else "constant"
    )
    want = np.stack([line[:, i * 3 : i * 3 + before + 3 + after] for i in range(4)], 1)
    np.testing.assert_array_equal(y.numpy(), want)
    (dx,) = mtf.gradients([mtf.reduce_sum(y * y)], [x])
    uses = np.stack([(want == value).sum() for value in X.ravel()]).reshape(X.shape)
    np.testing.assert_array_equal(dx.numpy(), 2 * X * uses)


def test_only_the_halo_is_moved():
    mesh = mtf.Mesh("x:4", "blocks:x", devices="abstract")
    near = mtf.function(
        lambda x: mtf.halo_exchange(x, "blocks", "rows", 1, 2),
        mesh=mesh,
        x="b;blocks;rows",
    )
    plan = mtf.explain(near, X)
    assert {m.kind for m in plan.collectives} == {"window"}
    assert plan.bytes_moved() == (1 + 2) * 3 / 4 * 2 * 4


def test_what_is_refused():
    x = mtf.asarray(mtf.Mesh(""), X, "b;blocks;rows")
    with refuses(mtf.ShapeError, 'no dimension "lines"'):
        mtf.halo_exchange(x, "blocks", "lines", 1, 1)
    with refuses(mtf.ShapeError, "elements before and after, not -1 and 1"):
        mtf.halo_exchange(x, "blocks", "rows", -1, 1)


@pytest.mark.parametrize("layout", ["", "length:x", "b:x"])
def test_pools_steps_and_first_rows(layout, rng):
    """Pools and strided slices, also by unflatten and a reduction or unstack."""
    array = rng.normal(size=(4, 8, 3)).astype("float32")
    x = mtf.asarray(mtf.Mesh("x:2", layout), array, "b;length;d")
    pairs = array.reshape(4, 4, 2, 3)
    split = mtf.unflatten(x, "length", "length:4;pair:2")
    np.testing.assert_allclose(
        mtf.avg_pool(x, "length:2").numpy(), pairs.mean(2), rtol=1e-6
    )
    np.testing.assert_array_equal(mtf.max_pool(x, "length:2").numpy(), pairs.max(2))
    np.testing.assert_array_equal(mtf.reduce_min(split, "pair").numpy(), pairs.min(2))
    np.testing.assert_array_equal(mtf.unstack(split, "pair")[0].numpy(), array[:, ::2])
    first = mtf.gather(x, mtf.zeros(x.mesh, "", "int32"), "length")
    np.testing.assert_array_equal(first.numpy(), array[:, 0])
