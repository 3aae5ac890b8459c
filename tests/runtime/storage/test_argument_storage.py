"""Stores: arrays and numbers that become tensors, and lie where the layout says."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.mesh import Replicated, Sharded
from tests.support.refusals import refuses

ARRAY = np.arange(24, dtype="float32").reshape(4, 6)


@pytest.mark.parametrize(
    "layout, placement",
    [
        ("", (Replicated, Replicated)),
        ("a:x", (Sharded("a"), Replicated)),
        ("a:y;b:x", (Sharded("b"), Sharded("a"))),
    ],
)
def test_constants_are_sharded_as_the_layout_says(layout, placement):
    mesh = mtf.Mesh("x:2;y:2", layout)
    for array in (ARRAY, ARRAY.tolist(), tf.constant(ARRAY)):
        x = mtf.constant(mesh, array, "a;b")
        assert (x.shape, x.dtype, x.sharded_value.placement) == (
            mtf.Shape("a:4;b:6"),
            "float32",
            placement,
        )
        np.testing.assert_array_equal(x.numpy(), ARRAY)
        np.testing.assert_array_equal((x + mtf.constant(mesh, 1.0)).numpy(), ARRAY + 1)
    constant_tensor = mtf.constant(mesh, 2, "a:4", "float64")
    assert (constant_tensor.dtype, constant_tensor.numpy().tolist()) == (
        "float64",
        [2] * 4,
    )


def test_numbers_have_the_types_of_tensorflow():
    mesh = mtf.Mesh("")
    assert [mtf.constant(mesh, v).dtype for v in (1, 1.5, True, 1j)] == [
        "int32",
        "float32",
        "bool",
        "complex64",
    ]


def test_names_must_fit():
    with refuses(mtf.ShapeError, r"array +\[4, 6\]", "one name for each dimension"):
        mtf.asarray(mtf.Mesh(""), ARRAY, "a")
