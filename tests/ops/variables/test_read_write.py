"""Tensors of one number: full, ones, zeros, and those like another."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf


@pytest.mark.parametrize("layout", ["", "a:x", "b:x"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_one_number_everywhere(layout, dtype):
    mesh = mtf.Mesh("x:2", layout)
    like = mtf.full(mesh, "a:4;b:2", 1, dtype)
    for x, number in (
        (like, 1),
        (mtf.ones(mesh, "a:4;b:2", dtype), 1),
        (mtf.ones_like(like), 1),
        (mtf.zeros(mesh, "a:4;b:2", dtype), 0),
        (mtf.zeros_like(like), 0),
    ):
        assert (x.shape, x.dtype) == (mtf.Shape("a:4;b:2"), dtype)
        assert (x.numpy() == np.full((4, 2), number)).all()
