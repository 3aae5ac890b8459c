"""Programs that hypothesis draws: whatever they are made of, meshtf computes what TensorFlow does.

The same ones each time; `make fuzz` draws others.
"""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.fuzz import judging
from tests.fuzz.program import Program
from tests.fuzz.search import examine, smallest
from tests.fuzz.strategies import CASES

EXAMPLES = {"function": 40, "eager": 20, "jit": 10, "export": 8}     # of each strategy
SECONDS = 60          # in which a program that fails is made smaller


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_drawn_programs_compute_what_tensorflow_does(case):
  if "export" in case:
    pytest.importorskip("jaxlib")       # Python 3.10 has none
  tried, examples = [], EXAMPLES[case.split()[1]]

  @settings(derandomize=True, deadline=None, max_examples=examples, database=None,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck))
  @hypothesis.given(CASES[case])
  def attempt(program: Program) -> None:
    try:
      found = examine(program)
    except judging.Unfit:
      hypothesis.reject()
    tried.append(program)
    if found is not None:
      pytest.fail(smallest(found, SECONDS).report(), pytrace=False)
  attempt()
  assert len(tried) > examples / 3
