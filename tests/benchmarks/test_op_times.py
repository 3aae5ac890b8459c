"""The table of ops by type: both sides are profiled, and what they count is there."""

from __future__ import annotations

import pytest

from benchmarks.step.cases.cases import Case, make_config
from benchmarks.step.op_times import measure, table


@pytest.mark.slow
def test_both_sides_of_a_small_model():
    config = make_config("lm", "tiny")
    cases = [Case(config, ""), Case(config, "1x1")]
    found = measure(cases, rounds=1)
    variables = 2 + 1 + 8 * config.layers  # tables, the last norm, and blocks
    for times in found:
        assert times["ResourceApplyAdam"][0] == variables
        assert times["ResourceApplyAdam"][1] > 0
    lines = table([case.name for case in cases], found, least=0.05).splitlines()
    assert "plain TensorFlow" in lines[0] and lines[-1].startswith("all ")
    assert f"{sum(n for n, _ in found[0].values()):,}" in lines[-1]
