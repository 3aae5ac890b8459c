"""Stores: arrays and numbers that become tensors, and lie where the layout says."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import meshtf as mtf
from meshtf.mesh import Placement
from tests.support.refusals import refuses

ARRAY = np.arange(24, dtype="float32").reshape(4, 6)


@pytest.mark.parametrize(
    "layout, placement",
    [
        ("", Placement()),
        ("a:x", Placement("a:x")),
        ("a:y;b:x", Placement("a:y;b:x")),
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


@pytest.mark.parametrize("size", [8, 6])  # 6 numbers over 4 positions end with padding
@pytest.mark.parametrize("devices", [None, "spmd"])
def test_a_list_of_numbers_is_an_op_of_the_program(size, devices):
    mesh = mtf.Mesh("x:4", "a:x", devices=devices)
    numbers = [0.5 * i for i in range(size)]

    @mtf.function(x="a")
    def f(x):
        return x * mtf.constant(mesh, numbers, "a"), mtf.constant(mesh, [-0.0], "b")

    y, negative_zero = f(np.ones(size, "float32"))
    np.testing.assert_array_equal(y.numpy(), numbers)
    assert np.signbit(negative_zero.numpy()).all()
    assert not np.signbit(mtf.constant(mesh, [0.0], "b").numpy()).any()
    types = {"bool": [True, False], "int32": [1, 2], "float32": (1, 2.5)}
    for dtype, values in types.items():
        x = mtf.constant(mesh, values, "b:2")
        assert (x.dtype, x.numpy().tolist()) == (dtype, list(values))


def test_a_list_must_fit_its_name_and_type():
    mesh = mtf.Mesh("")
    with refuses(mtf.ShapeError, r"array +\[2\]", "one name for each dimension"):
        mtf.constant(mesh, [1, 2], "a;b")
    with refuses(mtf.DTypeError, "1.5 is no value of the type int32"):
        mtf.constant(mesh, [1, 1.5], "a", "int32")


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
