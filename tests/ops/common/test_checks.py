"""A dimension that a tensor lacks is an error with the user's line, in ops, functions and
layers.
"""

from __future__ import annotations

import pytest

import meshtf as mtf
from tests.support.refusals import line_of

MESH = mtf.Mesh("data:2", "batch:data")
X = mtf.ones(MESH, "batch:4; d:4")
IDS = mtf.zeros(MESH, "batch:4", "int32")
CALLS = {
    "mtf.reduce_sum": lambda: mtf.reduce_sum(X, "d_model"),
    "mtf.softmax": lambda: mtf.softmax(X, "d_model"),
    "mtf.gather": lambda: mtf.gather(X, IDS, "d_model"),
    "mtf.rename": lambda: mtf.rename(X, "d_model", "d_ff"),
    "mtf.flatten": lambda: mtf.flatten(X, "d_model; d", "d_ff"),
    "mtf.dropout": lambda: mtf.dropout(X, 0.5, broadcast="d_model"),
    "mtf.scatter": lambda: mtf.scatter(IDS, X, "d_model:4"),
    "mtf.max_pool": lambda: mtf.max_pool(X, "d_model:2"),
    "mtf.Tensor": lambda: X["d_model", 0],
    "mtf.Dense": lambda: mtf.layers.Dense(MESH, "d_model:4", "d_ff:4")(X),
    "mtf.LayerNorm": lambda: mtf.layers.LayerNorm(MESH, "d_model:4")(X),
    "mtf.BatchNorm": lambda: mtf.layers.BatchNorm(MESH, "d_model:4")(X),
    "mtf.Conv": lambda: mtf.layers.Conv(MESH, "d:3", "d_model:4", "d_ff:4")(X),
    "mtf.FeedForward": lambda: mtf.layers.FeedForward(MESH, "d_model:4", "d_ff:8")(X),
    "mtf.attend": lambda: mtf.layers.Embedding(MESH, "v:4", "d_model:4").attend(X),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_dimension_that_is_absent_is_named_with_the_line(name):
    with pytest.raises(mtf.ShapeError, match="there is no dimension") as caught:
        CALLS[name]()
    message = str(caught.value)
    assert f"from     {name}" in message, message
    assert line_of(message, __file__).strip().startswith(f'"{name}": lambda')


def test_a_layer_says_the_way_out():
    with pytest.raises(mtf.ShapeError, match=r'mtf.rename\(x, "d", "d_model"\)'):
        CALLS["mtf.Dense"]()
