"""Samples of cases: of the promised size, with each kind, and every case in some
sample.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.support.sampling import draw

pytest_plugins = "pytester"
PAIRS = [(("a", i), ("b", k)) for i, k in itertools.product(range(5), range(7))]
FILE = """
import pytest

@pytest.mark.sampled(4, each="mode")
@pytest.mark.parametrize("mode", ["x", "y", "z"])
@pytest.mark.parametrize("k", range(10))
def test_cases(mode, k):
  pass

def test_another():
  pass

@pytest.mark.parametrize("k", range(50))
def test_many(k):
  pass

@pytest.mark.every_case
@pytest.mark.parametrize("k", range(50))
def test_all_of_many(k):
  pass
"""


@pytest.mark.parametrize(
    "sample_size, size", [(0, 7), (7, 7), (20, 20), (35, 35), (99, 35)]
)
def test_a_sample_has_all_kinds_and_its_size(sample_size, size):
    for seed in range(20):
        drawn = draw(PAIRS, sample_size, np.random.default_rng(seed))
        assert len(drawn) == size
        assert {kind for i in drawn for kind in PAIRS[i]} == {
            kind for case in PAIRS for kind in case
        }


def test_samples_of_no_kinds():
    assert len(draw([()] * 9, 4, np.random.default_rng(0))) == 4


@pytest.mark.parametrize("sample_size", [0, 12])
def test_each_case_is_in_some_sample(sample_size):
    seen = set()
    for seed in range(100):
        seen |= draw(PAIRS, sample_size, np.random.default_rng(seed))
    assert seen == set(range(len(PAIRS)))


def run(pytester, *args):
    """Returns the names of the cases that pass."""
    result = pytester.runpytest_inprocess(
        "-p", "tests.support.sampling", "-p", "no:xdist", "-v", *args
    )
    return [
        line.split()[0].split("::")[1] for line in result.outlines if " PASSED" in line
    ]


def test_pytest_runs_the_sample(pytester):
    path = pytester.makepyfile(FILE)
    one, again, other = (run(pytester, f"--sample={n}") for n in (1, 1, 2))
    assert one == again != other
    drawn = [case for case in one if case.startswith("test_cases")]
    assert len(drawn) == 4 and "test_another" in one
    for mode in "xyz":
        assert any(f"{mode}]" in case for case in drawn)
    assert len(run(pytester, "--all-cases")) == 131
    assert sum(case.startswith("test_many") for case in one) == 16
    assert sum(case.startswith("test_all_of_many") for case in one) == 50
    left_out = next(
        f"test_cases[{k}-x]" for k in range(10) if f"test_cases[{k}-x]" not in one
    )
    named = run(pytester, "--sample=1", f"{path.name}::{left_out}")
    assert named == [left_out]
