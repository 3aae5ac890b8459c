"""A plugin of pytest that breaks one rule before anything is imported.

Example:

    MESHTF_MUTANT=seeds-added-up python -m pytest -p tests.mutants.plugin
    tests/ops/random/test_random.py
"""

from __future__ import annotations

import os

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import install


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Installs the mutant: conftest files already import what may be changed."""
    install(next(m for m in MUTANTS if m.slug == os.environ["MESHTF_MUTANT"]))
