"""Gradients as sums of rows: which are recognised, and their sums."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from meshtf.graph import apply_all
from meshtf.layers import initializers
from meshtf.ops.indexing.row_sums import RowSums, row_gradient


@pytest.fixture(scope="module")
def table():
    mesh = mtf.Mesh("")
    return mtf.Variable(mesh, "vocab:8;d:2", initializers.normal(), "table")


@pytest.mark.parametrize("devices", [None, "spmd:cpu"])
def test_each_id_comes_once(devices):
    mesh = mtf.Mesh("", devices=devices)
    ids = np.array([[5, 2, 5], [9, -1, 2]], "int32")  # of [0, 8)
    more_ids = np.array([7, 5], "int64")
    values = np.arange(12, dtype="float32").reshape(2, 3, 2)
    more_values = np.ones((2, 2), "float32")

    @mtf.function(mesh=mesh, ids="a;b", values="a;b;d", more_ids="c", more_values="c;d")
    def sums(ids, values, more_ids, more_values):
        return apply_all(RowSums(8, ("d",)), ids, values, more_ids, more_values)

    unique, rows, index, more_index = sums(ids, values, more_ids, more_values)
    np.testing.assert_array_equal(unique.numpy(), [5, 2, -1, -1, -1, -1, 7, -1])
    expected = np.zeros((8, 2))
    expected[0] = values[0, 0] + values[0, 2] + 1
    expected[1] = values[0, 1] + values[1, 2]
    expected[6] = 1
    np.testing.assert_allclose(rows.numpy(), expected)
    np.testing.assert_array_equal(index.numpy(), [[0, 1, 0], [-1, -1, 1]])
    np.testing.assert_array_equal(more_index.numpy(), [6, 0])


def lookup(table, ids):
    return mtf.gather(table, ids, "vocab")


@pytest.mark.parametrize(
    "loss_of, lookups",
    [
        (lambda t, ids: lookup(t, ids), 1),
        (lambda t, ids: lookup(t, ids) * lookup(t, ids), 2),
        (lambda t, ids: lookup(t, ids) + lookup(t, ids) + lookup(t, ids), 3),
        (lambda t, ids: lookup(t * 2.0, ids), 1),
        (lambda t, ids: lookup(mtf.cast(t, "bfloat16"), ids), 1),
        (lambda t, ids: lookup(mtf.transpose(t, "d;vocab"), ids), 1),
        (lambda t, ids: mtf.gather(mtf.rename(t, "vocab", "words"), ids, "words"), 1),
        # Dense: another path, weights by row, and a lookup with batch dimensions.
        (lambda t, ids: lookup(t, ids) + mtf.reduce_sum(t), None),
        (lambda t, ids: lookup(t * mtf.reduce_sum(t, "d"), ids), None),
        (lambda t, ids: mtf.gather(t, mtf.rename(ids, "batch", "d"), "vocab"), None),
        (lambda t, ids: mtf.gather(t, ids % 2, "d"), 1),
    ],
)
def test_gradients_that_are_rows(table, loss_of, lookups):
    @mtf.function(mesh=table.mesh, ids="batch")
    def compare(ids):
        loss = mtf.reduce_sum(mtf.cast(loss_of(table.tensor(), ids), "float32"))
        (grad,) = mtf.gradients([loss], [table])
        scaled = grad / mtf.cast(mtf.reduce_sum(ids), "float32") * 3.0
        rows = row_gradient(scaled)
        if rows is None:
            return scaled, None
        assert len(rows.lookups) == lookups
        unique, sums = rows.summed()
        return scaled, mtf.scatter_add(mtf.zeros_like(scaled), unique, sums, rows.dim)

    grad, from_rows = compare(np.array([1, 1], "int32"))
    assert (from_rows is None) == (lookups is None)
    if lookups is not None:
        np.testing.assert_allclose(from_rows.numpy(), grad.numpy(), rtol=1e-2)


def test_a_sum_that_the_user_has_written_is_dense(table):
    @mtf.function(mesh=table.mesh, ids="batch", x="batch;d")
    def is_rows(ids, x):
        assert row_gradient(mtf.segment_sum(x, ids, "vocab:8")) is None
        return x

    is_rows(np.zeros(2, "int32"), np.ones((2, 2), "float32"))
