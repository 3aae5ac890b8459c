"""gather, segment_sum, one_hot, range: values and errors."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf

IDS = np.array([[3, 0], [7, 3], [1, 1], [6, 0]], "int32")


@pytest.fixture
def mesh():
    return mtf.Mesh("x:2;y:2", layout="v:x;b:y")


@pytest.fixture
def table(mesh, rng):
    return mtf.asarray(mesh, rng.normal(size=(8, 3)).astype("float32"), "v:8;d:3")


@pytest.fixture
def ids(mesh):
    return mtf.asarray(mesh, IDS, "b:4;n:2")


@pytest.mark.parametrize("names", ["v;d", "d;v"])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_gather(table, ids, names, dtype):
    y = mtf.gather(mtf.transpose(table, names), mtf.cast(ids, dtype), "v")
    assert y.shape == mtf.Shape("b:4;n:2;d:3")
    np.testing.assert_array_equal(y.numpy(), table.numpy()[IDS])


def test_gather_of_truth_values(table, ids):
    y = mtf.gather(table > 0.0, ids, "v")
    np.testing.assert_array_equal(y.numpy(), table.numpy()[IDS] > 0)


@pytest.mark.parametrize("names", ["b;v", "v;b"])
@pytest.mark.parametrize("order", ["b;n", "n;b"])
def test_names_of_both_are_batch_dimensions(mesh, ids, rng, names, order):
    values = rng.normal(size=(4, 8)).astype("float32")
    x = mtf.transpose(mtf.asarray(mesh, values, "b:4;v:8"), names)
    y = mtf.gather(x, mtf.transpose(ids, order), "v")
    assert y.shape.names == tuple(order.split(";"))
    np.testing.assert_array_equal(
        mtf.transpose(y, "b;n").numpy(), np.take_along_axis(values, IDS, 1)
    )


@pytest.mark.parametrize("layout", ["", "v:x"])
def test_negative_numbers_give_zeros_and_go_nowhere(layout):
    mesh = mtf.Mesh("x:2", layout=layout)
    x = mtf.asarray(mesh, np.arange(1, 5, dtype="float32"), "v:4")
    ids = mtf.asarray(mesh, np.array([2, -1, 0], "int32"), "n:3")
    y = mtf.gather(x, ids, "v", zero_negative=True)
    np.testing.assert_array_equal(y.numpy(), [3, 0, 1])
    np.testing.assert_array_equal(
        mtf.segment_sum(y + 1.0, ids, "v:4").numpy(), [2, 0, 4, 0]
    )
    (dx,) = mtf.gradients([y], [x])
    np.testing.assert_array_equal(dx.numpy(), [1, 0, 1, 0])


def test_segment_sum(mesh, ids, rng):
    values = rng.normal(size=(4, 2, 3)).astype("float32")
    x = mtf.asarray(mesh, values, "b:4;n:2;d:3")
    want = np.zeros((8, 3), "float32")
    np.add.at(want, IDS, values)
    np.testing.assert_allclose(mtf.segment_sum(x, ids, "v:8").numpy(), want, rtol=1e-6)
    sums = mtf.segment_sum(x, ids, "v:8", batch="b")
    assert sums.shape == mtf.Shape("b:4;v:8;d:3")
    np.testing.assert_allclose(sums.numpy().sum(0), want, rtol=1e-5, atol=1e-6)


def test_ids_out_of_range_of_one_group_never_reach_the_next(mesh):
    x = mtf.asarray(mesh, np.ones((2, 2), "float32"), "g:2;n:2")
    ids = mtf.asarray(mesh, np.array([[0, 4], [-4, 1]], "int32"), "g:2;n:2")
    with pytest.raises(tf.errors.InvalidArgumentError, match="index 4 is not in"):
        mtf.segment_sum(x, ids, "v:4", batch="g")
    y = mtf.segment_sum(x, mtf.where(ids == 4, -1, ids), "v:4", batch="g")
    np.testing.assert_array_equal(y.numpy(), [[1, 0, 0, 0], [0, 1, 0, 0]])


def test_one_hot(mesh, ids):
    y = mtf.one_hot(ids, "v:8", dtype="bfloat16")
    assert y.shape == mtf.Shape("b:4;n:2;v:8")
    assert y.dtype == "bfloat16"
    np.testing.assert_array_equal(y.numpy().astype("float32"), np.eye(8)[IDS])
    np.testing.assert_array_equal(
        mtf.one_hot(ids - 1, "v:4").numpy()[0], [[0, 0, 1, 0], [0] * 4]
    )


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "bfloat16"])
def test_range(mesh, dtype):
    y = mtf.range(mesh, "v:6", dtype=dtype)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y.numpy().astype("float32"), np.arange(6))


def test_what_is_refused(table, ids):
    with pytest.raises(mtf.ShapeError, match='no dimension "w" in'):
        mtf.gather(table, ids, "w")
    with pytest.raises(mtf.ShapeError, match="the indices point into"):
        mtf.gather(table, mtf.rename(ids, "b", "v"), "v")
    with pytest.raises(mtf.ShapeError, match="has two sizes"):
        mtf.gather(table, mtf.rename(ids, "n", "d"), "v")
    with pytest.raises(mtf.DTypeError, match="indices are integers, not float32"):
        mtf.gather(table, mtf.cast(ids, "float32"), "v")
    with pytest.raises(mtf.ShapeError, match='no dimension "b" in'):
        mtf.segment_sum(table, ids, "w:4")
    with pytest.raises(
        mtf.ShapeError, match='one dimension is expected, such as "batch:16"'
    ):
        mtf.one_hot(ids, "v:8;w:2")


@pytest.mark.parametrize("dim", ["v", "w"])
def test_indices_that_are_partial_sums_are_added_up_first(dim):
    """The sum of a sharded batch is an index: 3 of each shard are 6, and not two lookups of 3."""
    mesh = mtf.Mesh("data:2", "batch:data")
    table = mtf.asarray(mesh, np.arange(8.0, dtype="float32"), f"{dim}:8")

    @mtf.function(mesh=mesh, counts="batch")
    def lookup(counts):
        total = mtf.reduce_sum(counts)
        segment = mtf.segment_sum(mtf.full(mesh, "", 5.0), total, f"{dim}:8")
        return mtf.gather(table, total, dim), segment

    entry, segments = lookup(np.array([1, 2, 3, 0], "int32"))
    assert float(entry) == 6.0
    np.testing.assert_array_equal(segments.numpy(), 5.0 * (np.arange(8) == 6))


def test_the_sum_of_a_loop_of_entries_is_reduced_once():
    """The gradient of a lookup at one index is zero elsewhere, so the loop adds it up."""
    mesh = mtf.Mesh("x:2", layout="b:x")
    table = mtf.Variable(mesh, "v:8;d:3", mtf.layers.initializers.ones, name="table")

    @mtf.function(mesh=mesh, x="b;d")
    def step(x):
        def body(total, index):
            row = mtf.gather(table, index % 8, "v")
            return total + mtf.reduce_sum(mtf.sin(x * row)), None

        zero = mtf.zeros(mesh, "")
        total, _ = mtf.scan(body, zero, mtf.range(mesh, "steps:20"), "steps")
        return mtf.gradients([total], [table])

    x = np.arange(12, dtype="float32").reshape(4, 3)
    reduced = [str(c) for c in step.lower(x).collectives if "d:3" in str(c)]
    assert reduced == ["all_reduce over x of [v:8 d:3]"]
    (gradient,) = step(x)
    counts = np.array([3, 3, 3, 3, 2, 2, 2, 2])
    expected = counts[:, None] * (x * np.cos(x)).sum(0)
    np.testing.assert_allclose(gradient.numpy(), expected, rtol=1e-5)
