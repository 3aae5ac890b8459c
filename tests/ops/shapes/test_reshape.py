"""rename, flatten, unflatten, reshape, transpose: what they mean, and what
they refuse.
"""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.fixture
def mesh():
    return mtf.Mesh("")


@pytest.fixture
def x(mesh):
    return mtf.asarray(mesh, np.arange(24, dtype="int32").reshape(4, 6), "a:4;b:6")


def test_rename_changes_names_only(x):
    y = mtf.rename(x, "a", "c")
    assert y.shape == mtf.Shape("c:4;b:6")
    np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_rename_swaps(x):
    y = mtf.rename(x, {"a": "b", "b": "a"})
    assert y.shape == mtf.Shape("b:4;a:6")
    np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_rename_takes_several_names(x):
    assert mtf.rename(x, "a;b", "c;d").shape == mtf.Shape("c:4;d:6")


def test_what_changes_nothing_returns_its_argument(x):
    assert mtf.rename(x, "a", "a") is x
    assert mtf.transpose(x, "a;b") is x
    assert mtf.reshape(x, "a:4;b:6") is x
    assert mtf.flatten(x, "a", "a") is x
    assert mtf.unflatten(x, "a", "a:4") is x


@pytest.mark.parametrize(
    "pairs, words",
    [
        (("c", "d"), r'no dimension "c" in \[a:4 b:6\]'),
        (("a", "b"), "occurs twice"),
        (("a;b", "c"), "a new name for each old one"),
    ],
)
def test_rename_refuses(x, pairs, words):
    with pytest.raises(mtf.ShapeError, match=words):
        mtf.rename(x, *pairs)


def test_merge_is_row_major_in_the_order_given(x):
    np.testing.assert_array_equal(mtf.flatten(x, "a;b", "c").numpy(), np.arange(24))
    np.testing.assert_array_equal(
        mtf.flatten(x, "b;a", "c").numpy(), x.numpy().T.reshape(-1)
    )


def test_merge_brings_dimensions_together(mesh):
    x = mtf.asarray(
        mesh, np.arange(24, dtype="float32").reshape(2, 3, 4), "a:2;n:3;b:4"
    )
    y = mtf.flatten(x, ["a", "b"], "ab")
    assert y.shape == mtf.Shape("ab:8;n:3")
    np.testing.assert_array_equal(y.numpy(), x.numpy().transpose(0, 2, 1).reshape(8, 3))


def test_unflatten_undoes_flatten(x):
    y = mtf.unflatten(mtf.flatten(x, "a;b", "c"), "c", "a:4;b:6")
    assert y.shape == x.shape
    np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_unflatten_refuses_sizes_that_do_not_multiply(x):
    with pytest.raises(
        mtf.ShapeError, match=r'"b" of size 6 cannot be split into \[c:4 d:2\]'
    ):
        mtf.unflatten(x, "b", "c:4;d:2")


def test_reshape_is_row_major(x):
    y = mtf.reshape(x, "b:3;a:8")
    np.testing.assert_array_equal(y.numpy(), x.numpy().reshape(3, 8))


def test_reshape_refuses_another_number_of_elements(x):
    with pytest.raises(mtf.ShapeError, match="24 elements cannot become one of 25"):
        mtf.reshape(x, "c:25")


def test_transpose(x):
    np.testing.assert_array_equal(mtf.transpose(x, "b;a").numpy(), x.numpy().T)
    with pytest.raises(mtf.ShapeError, match="the same names in another order"):
        mtf.transpose(x, "b")


def test_gradient_goes_back_through_all(mesh):
    x = mtf.asarray(mesh, np.arange(24, dtype="float32").reshape(4, 6), "a:4;b:6")
    y = mtf.rename(
        mtf.transpose(mtf.reshape(x, "a:8;c:3"), "c;a"), {"a": "c", "c": "a"}
    )
    weights = np.random.default_rng(0).normal(size=(3, 8)).astype("float32")
    (dx,) = mtf.gradients([y * mtf.asarray(mesh, weights, y.shape)], [x])
    assert dx.shape == x.shape
    np.testing.assert_allclose(dx.numpy(), weights.T.reshape(4, 6))


@pytest.mark.parametrize(
    "old, new, leading",
    [
        ("a:4;b:6;c:4", "d:8;e:3;c:4", {"a": "d", "c": "c"}),
        ("a:4;b:8", "b:8;a:4", {"a": "b"}),
        ("a:1;b:4", "b:4", {"b": "b"}),
        ("a:6;b:4", "c:4;d:6", {"a": "c"}),
        ("a:0;b:4", "c:0", {}),
    ],
)
def test_blocks_of_a_reshape(old, new, leading):
    from meshtf.ops.shapes.reshape import Reshape

    assert Reshape(mtf.Shape(old), mtf.Shape(new))._leading() == leading
