"""Predictions on a mesh compared with those on one device; processes compared with each other."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import meshtf as mtf
from meshtf.tensorflow_import.rules.all_rules import all_rules
from meshtf.tensorflow_import.rules.table import RULES, Rule
from tests.cluster.processes.launched import Launched
from tests.keras.processes import fit

RUNTIMES = {
    "driver": (["--workers=2", "--devices_each=2"], ["{cluster}"], 1),
    "live": (["--spmd", "--workers=2"], [], 2),
}


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


@pytest.fixture
def expected(float64: None, tmp_path: Path) -> Any:
    """Returns what Keras gets on one device."""
    return fit.results_of(None, str(tmp_path), on_mesh=False)


def results_of(run: Launched) -> list[Any]:
    """Returns what each process has printed."""
    assert run.wait() == 0, run.text
    decoder = json.JSONDecoder()
    starts = [match.start() for match in re.finditer(r'\{"accuracy"', run.text)]
    return [decoder.raw_decode(run.text, start)[0] for start in starts]


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_two_processes_do_what_keras_does(
    runtime: str, expected: Any, tmp_path: Path
) -> None:
    """History, predictions, weights, and one file of the model that all can read."""
    flags, cluster, count = RUNTIMES[runtime]
    program = [sys.executable, "-m", "tests.keras.processes.fit", str(tmp_path)]
    # The tests' own setting would give each process all devices.
    with Launched([*program, *cluster], *flags, env={"XLA_FLAGS": ""}) as run:
        results = results_of(run)
    assert len(results) == count
    for result in results:
        for name, value in expected.items():
            np.testing.assert_allclose(result[name], value, 1e-9, 1e-9, err_msg=name)
        if runtime == "live":
            of_variable, of_batch = result["refusals"]
            assert "the variable dense_2/bias differs between the 2" in of_variable
            assert "array 1 of a batch differs between the 2 processes" in of_batch
