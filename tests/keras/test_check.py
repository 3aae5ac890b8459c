"""Predictions on a mesh compared with those on one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import meshtf as mtf
from meshtf.tensorflow_import.rules.all_rules import all_rules
from meshtf.tensorflow_import.rules.table import RULES, Rule


class Wrong(Rule):
    """A rule that computes something else."""

    def lower(self, lowering, node):
        return mtf.math.erf(lowering.tensor(node.inputs[0]))


def bent_model():
    inputs = keras.Input([4])
    first = keras.layers.Dense(6, activation="tanh", name="first")(inputs)
    return keras.Model(inputs, {"a": inputs * 2.0, "b": first})


def test_a_model_is_equal_to_itself_and_a_wrong_rule_is_seen(monkeypatch):
    mesh = mtf.Mesh("data:4; model:2", "batch:data")
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    mtf.keras.distribute(bent_model(), mesh).check((x, None))
    right = all_rules()["Tanh"]
    wrong = Wrong()
    wrong.dimensions = right.dimensions
    monkeypatch.setitem(RULES, "Tanh", wrong)
    with pytest.raises(
        mtf.NumericsError, match=r"(?s)the prediction\['b'\] of .* by 0\."
    ):
        mtf.keras.distribute(bent_model(), mesh).check(x)
