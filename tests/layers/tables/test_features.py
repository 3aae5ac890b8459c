"""What declarations of features and tables are refused, and how."""

from __future__ import annotations

import pytest

import meshtf as mtf
from meshtf import layers
from tests.support.refusals import refuses

HERE = r"test_features\.py:\d+"
ITEMS = {"items": "items:9;d:2"}


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        ({"tables": "items:9"}, "ArgumentError", ['"tables" takes a dict of shapes']),
        (
            {"tables": {"items": ""}},
            "ShapeError",
            ["no dimension of ids", "items:1000"],
        ),
        (
            {"features": {"shown": "itms"}},
            "ArgumentError",
            ["no table 'itms'. Did you mean items", "feature +'shown'", HERE],
        ),
        ({"features": ["shown"]}, "ArgumentError", ["the table or the `Bag`", HERE]),
        ({"features": {"shown": 3}}, "ArgumentError", ["the table or the `Bag`"]),
        (
            {"features": {"shown": layers.Bag("items", "slot", "avg")}},
            "ArgumentError",
            ["combiner of shown", "'sum', 'mean', 'sqrtn', not the str 'avg'", HERE],
        ),
        (
            {"features": {"shown": layers.Bag(["items"], "slot")}},
            "ArgumentError",
            ['"table" takes a string', HERE],
        ),
        (
            {"features": {"shown": layers.Bag("items", "")}},
            "ArgumentError",
            ["the dimension of the ids of feature 'shown'"],
        ),
        (
            {"features": {"shown": layers.Bag("items", "d")}},
            "ShapeError",
            ["'shown' combines \"d\", a dimension of its table", HERE],
        ),
        ({"out_of_range": "zero"}, "ArgumentError", ["Did you mean zeros"]),
        ({"out_of_range": -1}, "ArgumentError", ["an integer of at least 0"]),
        ({"out_of_range": 9}, "ArgumentError", ["a row of table 'items'", HERE]),
    ],
)
def test_wrong_declarations_are_refused(arguments, error, words):
    with refuses(getattr(mtf, error), *words):
        layers.EmbeddingTables(mtf.Mesh(""), **{"tables": ITEMS, **arguments})
