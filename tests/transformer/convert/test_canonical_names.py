"""Files of other versions: older names, what is no weight, and copies."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.convert.test_rules import Arrays
from transformer.convert.canonical_names import Canonical


def test_older_names_and_no_weights():
    tensors = Canonical(
        Arrays({"h.0.gamma": np.ones(3), "h.0.attn.bias": np.zeros((2, 2))}),
        older=[("^h", "model.h"), ("gamma$", "weight")],
        no_weights=r"attn\.bias$",
    )
    assert list(tensors) == ["model.h.0.weight"]
    assert tensors.shape("model.h.0.weight") == (3,)
    np.testing.assert_array_equal(tensors["model.h.0.weight"], np.ones(3))


def test_a_copy_is_left_out_where_it_is_one():
    tied = Arrays(head=np.arange(3), table=np.arange(3))
    assert list(Canonical(tied, copies={"head": "table"})) == ["table"]
    assert list(Canonical(Arrays(table=np.arange(3)), copies={"head": "table"})) == [
        "table"
    ]
    with pytest.raises(mtf.CheckpointError, match="head\n.*table"):
        Canonical(Arrays(head=np.arange(3), table=np.ones(3)), copies={"head": "table"})
