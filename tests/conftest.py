"""Settings of all tests: eight logical CPU devices, and printed seeds.

Logical devices are fixed once TensorFlow has started, so they are made here, before any
test runs.
"""

from __future__ import annotations

import ctypes
import gc
import os
import zlib
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Wherever TensorFlow is imported it imports Keras, which imports scikit-learn and SciPy
# if they are there: a fifth of the start of each process, and tests start many. With
# this it looks for another Keras, which is not there, and leaves it at that.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np
import pytest

from tests.support import sampling
from tests.support.conformance_counts import pytest_terminal_summary, record
from tests.support.sampling import pytest_collection_modifyitems
from tests.support.subprocesses import start_tensorflow

# pytest finds them here, at the start
__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary", "record"]
LIBC = ctypes.CDLL(None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --seed, and how often campaigns try."""
    parser.addoption(
        "--seed", type=int, default=0, help="seed of all drawn numbers and layouts"
    )
    parser.addoption(
        "--damage", type=int, default=40, help="checkpoints that are damaged"
    )
    parser.addoption(
        "--kills", type=int, default=2, help="times that a training run is killed"
    )
    sampling.pytest_addoption(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Starts TensorFlow with logical devices."""
    sampling.pytest_configure(config)
    start_tensorflow()
    gc.collect()
    gc.freeze()  # what lasts is not looked at again after each module


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Prints the seeds."""
    return [
        f"seed: {config.getoption('--seed')} (--seed=N draws other numbers and "
        "layouts)",
        sampling.header(config),
    ]


@pytest.fixture(scope="module", autouse=True)
def leave_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Frees what the functions of a module cached, models and programs above all, after
    its tests.
    """
    yield
    if isinstance(request.node, pytest.Module):
        module = request.node.obj
        for value in vars(module).values():
            if hasattr(value, "cache_clear") and value.__module__ == module.__name__:
                value.cache_clear()
    gc.collect()
    if hasattr(LIBC, "malloc_trim"):
        LIBC.malloc_trim(0)  # else a process keeps what a module once needed


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """The seed of this run."""
    return int(request.config.getoption("--seed"))


@pytest.fixture
def rng(request: pytest.FixtureRequest, seed: int) -> np.random.Generator:
    """Random numbers of one test, the same whichever tests ran before it."""
    return np.random.default_rng([seed, zlib.crc32(request.node.nodeid.encode())])
