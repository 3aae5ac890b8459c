"""Shapes as text: sharded dimensions, partial results, and the order of axes."""

from __future__ import annotations

import dataclasses

import pytest

from meshtf.forecast.report_data import PlacedTensor
from meshtf.forecast.reports.shapes import shape_text

X = PlacedTensor(
    (("batch", 8), ("d_model", 16)), "float32", ("batch", "replicated"), (2, 16), 128.0
)


@pytest.mark.parametrize(
    "states, text",
    [
        (("replicated", "replicated"), "[batch:8 d_model:16]"),
        (("batch", "d_model"), "[batch:8/data d_model:16/model]"),
        (("batch", "batch"), "[batch:8/data/model d_model:16]"),
        (("sum", "max"), "[batch:8 d_model:16] +data max model"),
        (("min", "batch"), "[batch:8/model d_model:16] min data"),
    ],
)
def test_shapes(states, text):
    assert shape_text(dataclasses.replace(X, states=states), ["data", "model"]) == text


def test_a_dimension_may_be_called_like_a_partial_result():
    x = PlacedTensor((("sum", 8),), "float32", ("sum",), (2,), 8.0)
    assert shape_text(x, ["data"]) == "[sum:8/data]"


def test_the_major_axis_of_a_dimension_comes_first():
    sizes = {"shape": (("b", 8),), "dtype": "int32", "local": (1,), "bytes": 4.0}
    x = PlacedTensor(states=("b", "b"), **sizes)
    assert shape_text(x, ["data", "model"]) == "[b:8/data/model]"
    other_order = PlacedTensor(states=("b", "b"), orders=(1, 0), **sizes)
    assert shape_text(other_order, ["data", "model"]) == "[b:8/model/data]"
