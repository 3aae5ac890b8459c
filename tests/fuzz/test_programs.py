"""Programs that hypothesis draws: whatever they are made of, meshtf computes what
TensorFlow does.

The same ones each time; `make fuzz` draws others. Each case has a process of its own,
since TensorFlow keeps all that it compiled for as long as a process lives.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.fuzz import judging
from tests.fuzz.models.strategies import CASES as TRAINING_CASES
from tests.fuzz.program import Program
from tests.fuzz.search import CASES, examine, smallest
from tests.support.subprocesses import Apart

# Of each strategy; of pipelines, which take longer, half as many, and of training runs of models
# a quarter.
EXAMPLES = {"function": 40, "eager": 20, "jit": 8, "export": 8, "live": 8}
SECONDS = 60  # in which a program that fails is made smaller


@pytest.fixture(scope="module")
def apart():
    with Apart(tasks=1) as run:
        yield run


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_drawn_programs_compute_what_tensorflow_does(case, apart):
    tried, report = apart(examine_drawn, case)
    assert not report, report
    assert tried > examples_of(case) / 3


def examples_of(case: str) -> int:
    """Returns how many programs of a case are drawn."""
    strategy, mode = case.split()
    if case in TRAINING_CASES:
        return EXAMPLES[mode] // 4
    return EXAMPLES[mode] // (2 if strategy == "pipelines" else 1)


def examine_drawn(case: str) -> tuple[int, str]:
    """Returns how many programs of a case were tried, and the report of the first that
    fails.
    """
    tried = []
    reports = []

    @settings(
        derandomize=True,
        deadline=None,
        max_examples=examples_of(case),
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(CASES[case])
    def attempt(program: Program) -> None:
        if reports:
            return
        try:
            finding = examine(program)
        except judging.Unfit:
            hypothesis.reject()
        tried.append(program)
        if finding is not None:
            reports.append(smallest(finding, SECONDS).report())

    attempt()
    return len(tried), "".join(reports)
