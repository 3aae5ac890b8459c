"""Regions and single tensors whose layout cannot be meant so are refused."""

from __future__ import annotations

import pytest

import meshtf as mtf
from tests.ops.control.test_layout_region import X
from tests.support.refusals import line_of, ones, refuses

HERE = r"test_layout_region_mistakes\.py:\d+"


@pytest.fixture
def x():
    return mtf.ones(mtf.Mesh("a:2;b:2", "batch:a;h:b"), "batch:4;d:6")


def test_a_dimension_that_the_tensor_lacks(x):
    with refuses(
        mtf.ShapeError,
        'no dimension "dd"',
        "Did you mean d",
        r"\[batch:4 d:6\]",
        HERE,
        "Name one",
    ) as error:
        mtf.split(x, "dd", "a")
    assert "mtf.split(x" in line_of(str(error.value), __file__)
    with refuses(mtf.ShapeError, 'no dimension "q"', r"\[batch:4 d:6\]", HERE):
        mtf.shard(x, {"batch": "a", "q": "b"})


def test_two_dimensions_on_one_axis(x):
    with refuses(
        mtf.LayoutError,
        'mesh axis "a"',
        r"\[batch:4 d:6\]",
        HERE,
        "batch:a; d:a",
        "another axis",
    ) as error:
        mtf.shard(x, {"batch": "a", "d": "a"})
    assert "mtf.shard(x" in line_of(str(error.value), __file__)
    with mtf.layout("d:a"):
        with refuses(
            mtf.LayoutError,
            'mesh axis "a"',
            r"\[batch:4 d:6\]",
            HERE,
            "batch:a; h:b; d:a",
            "another axis",
        ) as error:
            mtf.exp(x)
        assert "mtf.exp(x)" in line_of(str(error.value), __file__)
        with refuses(
            mtf.LayoutError,
            'one variable want mesh axis "a"',
            r"\[batch:4 d:6\]",
            "'w'",
            HERE,
        ):
            mtf.Variable(x.mesh, "batch:4;d:6", ones, "w")


def test_sizes_that_do_not_divide():
    mesh = mtf.Mesh("a:2;b:2", "batch:a;h:b", strict=True)
    x = mtf.slice(mtf.ones(mesh, "batch:4;d:6"), "d", 0, 5)
    with refuses(
        mtf.LayoutError,
        '"d" of size 5',
        "into 2 equal shards",
        r"\[batch:4 d:5\]",
        HERE,
        "d:b",
        "multiple of 2",
    ) as error:
        mtf.split(x, "d", "b")
    assert 'mtf.split(x, "d"' in line_of(str(error.value), __file__)


def test_rules_that_cannot_be_read(x):
    with refuses(mtf.ParseError, "cannot be read", "batch a"), mtf.layout("batch a"):
        pass
    with refuses(mtf.ParseError, "maps dimension 'd' twice"), mtf.layout("d:a;d:b"):
        pass
    for rules in (5, {"d": 5}, ["d"]):
        with refuses(mtf.ParseError, "a layout is not made of"):
            mtf.layout(rules)
    with refuses(mtf.LayoutError, "mtf.split", r"\['a', 'b'\]", HERE, "mtf.chunk"):
        mtf.split(x, "d", ["a", "b"])


def test_a_rule_of_a_region_that_no_tensor_has():
    mesh = mtf.Mesh("a:2", "")
    with mtf.layout("bacth:a"):
        with pytest.warns(mtf.LayoutWarning, match='"bacth"(.|\n)*Did you mean batch'):
            mtf.function(lambda x: mtf.exp(x), mesh=mesh, x="batch;d")(X)
