"""The tests notice each broken rule of the catalogue.

All mutants' changes are looked up in the source. A sample of the mutants is run, a
process each, with all cases of the tests that must notice; `make mutants` runs all
mutants.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, install, mutated

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.every_case
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.slug)
def test_the_rule_stands_in_the_source(mutant):
    spec = importlib.util.find_spec(mutant.module)
    source = Path(spec.origin).read_text(encoding="utf-8")
    compile(mutated(source, mutant), spec.origin, "exec")


def test_each_mutant_has_a_name_of_its_own():
    assert len({m.slug for m in MUTANTS}) == len(MUTANTS) >= 46


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.slug)
def test_a_broken_rule_is_noticed(mutant):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.mutants.plugin",
        "--all-cases",
        *mutant.tests,
    ]
    environment = os.environ | {"MESHTF_MUTANT": mutant.slug, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 1, (
        f"{mutant.name} is not noticed:\n{run.stdout[-2000:]}{run.stderr}"
    )


def test_a_mutant_changes_only_one_statement():
    mutant = Mutant("m", "module", "Class.function", "a + b", "a - b", ())
    source = """
class Class:
  def function(a, b):
    return (a +
            b) * 2
x = lambda a, b: a + b
"""
    names = {}
    exec(compile(mutated(source, mutant), "module", "exec"), names)
    assert names["Class"].function(5, 3) == 4
    assert names["x"](5, 3) == 8


@pytest.mark.parametrize(
    "function, old", [("missing", "a + b"), ("function", "a * b"), ("function", "a")]
)
def test_a_mutant_that_is_out_of_date_is_an_error(function, old):
    source = "def function(a, b):\n  return a + b + a\n"
    with pytest.raises(LookupError, match="Bring it up to date"):
        mutated(source, Mutant("m", "module", function, old, "1", ()))


def test_a_mutant_that_comes_too_late_is_an_error():
    with pytest.raises(RuntimeError, match="imported before"):
        install(Mutant("m", "tests.mutants.mutant", "install", "1", "2", ()))
