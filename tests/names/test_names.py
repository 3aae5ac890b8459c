"""Names: strings that are read, shapes as an algebra, data types, and what the errors
say.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from meshtf.errors import DTypeError, MeshtfError, ParseError, ShapeError
from meshtf.names import (
    Dimension,
    Shape,
    dtype_bytes,
    dtype_name,
    is_floating,
    is_integer,
    lowest_float,
    parse_pairs,
)


@pytest.mark.parametrize(
    "text",
    [
        "batch:8;d_ff:32",
        "batch:8,d_ff:32",
        "batch:8.d_ff:32",
        "batch:8 d_ff:32",
        " batch : 8 ;  d_ff: 32; ",
    ],
)
def test_all_separators_read_alike(text):
    assert parse_pairs(text, kind="shape") == [("batch", "8"), ("d_ff", "32")]
    assert Shape(text) == Shape([Dimension("batch", 8), Dimension("d_ff", 32)])


def test_names_without_values():
    assert parse_pairs("heads:; d_ff:model", kind="layout", values=False) == [
        ("heads", ""),
        ("d_ff", "model"),
    ]
    assert parse_pairs("", kind="shape") == []


@pytest.mark.parametrize(
    "what, text, marked",
    [
        ("shape", "batch:8;4d:2", "4d:2"),
        ("shape", "batch;d:2", "batch"),
        ("layout", "batch:data;:model", ":model"),
        ("layout", "a:b:c", "a:b:c"),
        ("mesh", "data:4 model=2", "model=2"),
        ("shape", "d$:4", "d$:4"),
    ],
)
def test_a_caret_points_at_what_cannot_be_read(what, text, marked):
    with pytest.raises(ParseError, match=f"a {what} is written as pairs") as error:
        parse_pairs(text, kind=what)
    *_, shown, carets = str(error.value).split("\n")
    assert shown == f"  {text}"
    start = carets.index("^")
    end = len(carets)
    assert set(carets[start:end]) == {"^"}
    assert shown[start:end] == marked


def test_a_shape_is_made_of_anything_that_names_sizes():
    shape = Shape("batch:8;d_model:16")
    for same in (
        shape,
        list(shape),
        [("batch", 8), ("d_model", np.int64(16))],
        iter(shape),
    ):
        assert Shape(same) == shape
    assert Shape(Dimension("batch", 8)) == Shape("batch:8")
    assert Shape() == Shape("") == Shape([])
    assert len({shape, Shape("batch:8;d_model:16"), Shape("d_model:16;batch:8")}) == 2


def test_what_a_shape_knows():
    shape = Shape("batch:8;length:4;d_model:16")
    assert shape.names == ("batch", "length", "d_model")
    assert (shape.sizes, shape.size, len(shape)) == ((8, 4, 16), 512, 3)
    assert (
        shape["length"],
        shape.get("length"),
        shape.get("heads"),
        shape.index("length"),
    ) == (4, 4, 1, 1)
    assert shape.dim("length") == Dimension("length", 4)
    assert "length" in shape and "heads" not in shape
    assert repr(shape) == "[batch:8 length:4 d_model:16]"
    assert (Shape().size, repr(Shape())) == (1, "[]")


def test_the_algebra_of_shapes():
    shape = Shape("batch:8;length:4;d_model:16")
    assert shape.without("length", "heads") == Shape("batch:8;d_model:16")
    assert shape.only(["d_model", "batch"]) == Shape("batch:8;d_model:16")
    assert shape.rename({"batch": "length", "length": "batch"}) == Shape(
        "length:8;batch:4;d_model:16"
    )
    assert shape.resize("length", 2) == Shape("batch:8;length:2;d_model:16")
    assert shape + "heads:2" == Shape("batch:8;length:4;d_model:16;heads:2")
    assert shape == Shape("batch:8;length:4;d_model:16")  # nothing above changed it


@pytest.mark.parametrize(
    "shapes, union",
    [
        (("b:4;d:6", "d:6"), "b:4;d:6"),
        (("d:6", "b:4;d:6"), "b:4;d:6"),
        (("b:4", "d:6"), "b:4;d:6"),
        (("b:4;d:6", "d:6;b:4"), "b:4;d:6"),
        (("b:4;l:2;d:6", "d:6;b:4"), "b:4;l:2;d:6"),
        (("", "b:4"), "b:4"),
        (("b:4;h:2", "h:2;d:6"), "b:4;h:2;d:6"),
        (("b:4", "l:2", "b:4;l:2;d:6"), "b:4;l:2;d:6"),
    ],
)
def test_union_orders_names_as_broadcasting_does(shapes, union):
    first, *other_shapes = map(Shape, shapes)
    assert first.union(*other_shapes) == Shape(union)


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: Shape("d:2;b:3;d:2"), "'d' occurs twice in .*Rename one"),
        (lambda: Shape("a:2;b:3").rename({"a": "b"}), "'b' occurs twice"),
        (lambda: Shape("b:2") + "b:2", "'b' occurs twice"),
        (lambda: Shape("b:2")["d"], r"no dimension 'd' in \[b:2\]"),
        (lambda: Shape("b:2").index("d"), "no dimension 'd'"),
        (lambda: Shape("b:2").resize("d", 1), "no dimension 'd'"),
        (lambda: Shape("b:2").dim("d"), "no dimension 'd'"),
        (
            lambda: Shape("b:data"),
            "size of 'b' must be an integer, not 'data', in 'b:data'",
        ),
        (lambda: Dimension("b", 2.5), "must be an integer, not 2.5"),
        (lambda: Dimension("b", -1), "must not be negative: -1"),
        (lambda: Dimension("", 1), "non-empty string, not ''"),
        (lambda: Dimension(3, 1), "non-empty string, not 3"),
    ],
)
def test_shapes_that_are_refused(make, words):
    with pytest.raises(ShapeError, match=words) as error:
        make()
    assert isinstance(error.value, (MeshtfError, ValueError))


@pytest.mark.parametrize(
    "dtype_given, name",
    [
        ("float32", "float32"),
        (np.float32, "float32"),
        (np.dtype("int64"), "int64"),
        (tf.bfloat16, "bfloat16"),
        (bool, "bool"),
        (int, "int32"),
        (float, "float32"),
    ],
)
def test_data_types_by_name(dtype_given, name):
    assert dtype_name(dtype_given) == name


def test_kinds_of_data_types():
    assert [is_floating(d) for d in ("bfloat16", "float64", "int32", "bool")] == [
        True,
        True,
    ] + [False] * 2
    assert [is_integer(d) for d in ("uint8", "int64", "float32", "bool")] == [
        True,
        True,
    ] + [False] * 2
    assert [dtype_bytes(d) for d in ("bool", "bfloat16", "float32", "int64")] == [
        1,
        2,
        4,
        8,
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_lowest_values_of_floats(dtype):
    assert lowest_float(dtype) == float(tf.as_dtype(dtype).min)


@pytest.mark.parametrize("dtype_given", ["float31", str, None, tf.string])
def test_data_types_that_are_refused(dtype_given):
    with pytest.raises(
        DTypeError, match="is not a data type that meshtf knows; it knows bool"
    ):
        dtype_name(dtype_given)
