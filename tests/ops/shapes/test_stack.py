"""stack and unstack: what they mean, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.fixture
def x():
    array = np.arange(32, dtype="float32").reshape(4, 8)
    return mtf.asarray(mtf.Mesh(""), array, "a:4;b:8")


def test_stack_and_unstack(x):
    y = mtf.stack([x, x + 1.0], "n", axis=-1)
    assert y.shape == mtf.Shape("a:4;b:8;n:2")
    np.testing.assert_array_equal(y.numpy(), np.stack([x.numpy(), x.numpy() + 1], -1))
    assert mtf.stack([x, x], "n").shape.names == ("n", "a", "b")
    tensors = mtf.unstack(x, "a")
    assert len(tensors) == 4
    np.testing.assert_array_equal(tensors[3].numpy(), x.numpy()[3])


def test_stack_refuses(x):
    with pytest.raises(mtf.ShapeError, match="occurs twice"):
        mtf.stack([x, x], "a")
    with pytest.raises(mtf.ShapeError, match="at least one"):
        mtf.stack([], "n")
    with pytest.raises(mtf.ShapeError, match="all other dimensions in common"):
        mtf.stack([x, mtf.rename(x, "a", "c")], "n")


def test_rows_that_nothing_depends_on_have_no_gradient(x):
    first, *_ = mtf.unstack(x, "a")
    (dx,) = mtf.gradients([first], [x])
    np.testing.assert_array_equal(dx.numpy(), [[1] * 8] + [[0] * 8] * 3)
