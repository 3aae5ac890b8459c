"""slice, pad, concat, split: what they mean, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.fixture
def mesh():
    return mtf.Mesh("")


@pytest.fixture
def x(mesh):
    return mtf.asarray(mesh, np.arange(32, dtype="float32").reshape(4, 8), "a:4;b:8")


def test_slice(x):
    np.testing.assert_array_equal(mtf.slice(x, "b", 3, 4).numpy(), x.numpy()[:, 3:7])
    assert mtf.slice(x, "b", 0, 8) is x


@pytest.mark.parametrize("begin, size", [(5, 4), (-1, 2), (3, -1)])
def test_slice_refuses_elements_out_of_range(x, begin, size):
    with pytest.raises(mtf.ShapeError, match="not all within b:8"):
        mtf.slice(x, "b", begin, size)


def test_slice_refuses_a_name_that_is_not_there(x):
    with pytest.raises(mtf.ShapeError, match='no dimension "c" in'):
        mtf.slice(x, "c", 0, 1)


def test_pad(x):
    y = mtf.pad(x, "a", 1, 3, value=-2.5)
    np.testing.assert_array_equal(
        y.numpy(), np.pad(x.numpy(), [(1, 3), (0, 0)], constant_values=-2.5)
    )
    assert mtf.pad(x, "a", 0, 0) is x


def test_pad_refuses(x):
    with pytest.raises(mtf.ShapeError, match="mtf.slice removes elements"):
        mtf.pad(x, "a", -1, 1)
    with pytest.raises(mtf.DTypeError, match="0.5 is no value of a tensor of int32"):
        mtf.pad(mtf.cast(x, "int32"), "a", 1, 1, value=0.5)


@pytest.mark.parametrize("dim", ["a", "b"])
def test_concat_takes_any_order_of_names(x, dim):
    y = mtf.concat([x, mtf.transpose(x, "b;a"), x], dim)
    assert y.shape.names == ("a", "b")
    np.testing.assert_array_equal(
        y.numpy(), np.concatenate([x.numpy()] * 3, "ab".index(dim))
    )
    assert mtf.concat([x], dim) is x


def test_concat_of_truth_values(x):
    y = mtf.concat([x > 3.0, x > 30.0], "b")
    np.testing.assert_array_equal(
        y.numpy(), np.concatenate([x.numpy() > 3, x.numpy() > 30], 1)
    )


def test_concat_refuses(x):
    with pytest.raises(mtf.ShapeError, match="all other dimensions in common"):
        mtf.concat([x, mtf.slice(x, "a", 0, 2)], "b")
    with pytest.raises(mtf.DTypeError, match=r'mtf.cast\(x, "float32"\)'):
        mtf.concat([x, mtf.cast(x, "int32")], "b")
    with pytest.raises(mtf.ShapeError, match="at least one"):
        mtf.concat([], "b")


def test_chunk(x):
    left, right = mtf.chunk(x, "b", [3, 5])
    np.testing.assert_array_equal(left.numpy(), x.numpy()[:, :3])
    np.testing.assert_array_equal(right.numpy(), x.numpy()[:, 3:])
    assert [p.shape["a"] for p in mtf.chunk(x, "a", 2)] == [2, 2]
    assert mtf.chunk(x, "a", 1) == (x,)


@pytest.mark.parametrize(
    "sizes, words", [(3, "into 3 equal parts"), ([4, 5], "do not make up b:8")]
)
def test_chunk_refuses(x, sizes, words):
    with pytest.raises(mtf.ShapeError, match=words):
        mtf.chunk(x, "b", sizes)


def test_pieces_that_nothing_depends_on_have_no_gradient(x):
    left, _ = mtf.chunk(x, "b", 2)
    (dx,) = mtf.gradients([left], [x])
    np.testing.assert_array_equal(dx.numpy(), [[1] * 4 + [0] * 4] * 4)
