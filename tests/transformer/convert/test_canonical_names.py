"""Files of older versions: renamed tensors, tensors that are no weights, and copies."""

from __future__ import annotations

import numpy as np
import pytest

import meshtf as mtf
from tests.transformer.convert.test_rules import Arrays
from transformer.convert.canonical_names import CanonicalTensors


def test_older_names_and_no_weights():
    tensors = CanonicalTensors(
        Arrays({"h.0.gamma": np.ones(3), "h.0.attn.bias": np.zeros((2, 2))}),
        renames=[("^h", "model.h"), ("gamma$", "weight")],
        ignored_names=r"attn\.bias$",
    )
    assert list(tensors) == ["model.h.0.weight"]
    assert tensors.shape("model.h.0.weight") == (3,)
    np.testing.assert_array_equal(tensors["model.h.0.weight"], np.ones(3))


def test_equal_copies_are_dropped():
    tied = Arrays(head=np.arange(3), table=np.arange(3))
    assert list(CanonicalTensors(tied, copies={"head": "table"})) == ["table"]
    assert list(
        CanonicalTensors(Arrays(table=np.arange(3)), copies={"head": "table"})
    ) == ["table"]
    with pytest.raises(mtf.CheckpointError, match="head\n.*table"):
        CanonicalTensors(
            Arrays(head=np.arange(3), table=np.ones(3)), copies={"head": "table"}
        )
