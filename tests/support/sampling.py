"""Tests of many cases run a sample of them, which a seed draws.

    @pytest.mark.sampled(20, each="program mode")     # 20 cases, with every program and every mode
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("program", PROGRAMS)
    def test_other_modes_agree(program, mode): ...

    @pytest.mark.sampled(1, together="live training")    # one case of all tests with this name

Of tests without this mark that have more than 16 cases, a third run, and at least 16. All cases of
a test run with `@pytest.mark.every_case`, as of those that read the source as text: what they
notice should not be noticed a day late.

The seed is another one each day, and is printed: `--sample=N` draws the sample of N
again. All cases run with `--all-cases`, and where the command line names one case.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence

import numpy as np
import pytest

_DAY = 24 * 3600
_FEW = 16  # cases of a test without a mark that run in any case


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --sample and --all-cases."""
    parser.addoption(
        "--sample", type=int, default=None, help="seed of the cases that are run"
    )
    parser.addoption(
        "--all-cases", action="store_true", help="run all cases, no sample"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Chooses the seed before there are workers, which get it as an option."""
    if config.option.sample is None:
        config.option.sample = int(time.time() // _DAY)


def header(config: pytest.Config) -> str:
    """Returns what is printed of the seed."""
    if _everything(config):
        return "sample: all cases"
    sample_size = config.getoption("--sample")
    return (
        f"sample: {sample_size} "
        f"(--sample={sample_size} runs the same cases again, --all-cases runs all)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out the cases that are not drawn."""
    if _everything(config):
        return
    cases: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and not _runs_in_any_case(item):
            cases.setdefault(_sample_name(item), []).append(item)
    sample = config.getoption("--sample")
    left_out = {
        item
        for name, cases_of_name in cases.items()
        for item in _left_out(cases_of_name, [sample, zlib.crc32(name.encode())])
    }
    if left_out:
        config.hook.pytest_deselected(
            items=[item for item in items if item in left_out]
        )
        items[:] = [item for item in items if item not in left_out]


def _runs_in_any_case(item: pytest.Function) -> bool:
    """Returns whether no sample is drawn of the cases of a test."""
    if item.get_closest_marker("sampled"):
        return False
    return "[" not in item.nodeid or bool(item.get_closest_marker("every_case"))


def _sample_name(item: pytest.Function) -> str:
    """Returns what the cases have in common of which a sample is drawn: the test, or the
    argument `together` of the mark.
    """
    mark = item.get_closest_marker("sampled")
    together = mark and mark.kwargs.get("together")
    return together or item.nodeid.split("[")[0]


def _everything(config: pytest.Config) -> bool:
    return config.getoption("--all-cases") or any("[" in arg for arg in config.args)


def _left_out(cases: list[pytest.Function], seed: list[int]) -> list[pytest.Function]:
    mark = cases[0].get_closest_marker("sampled")
    if mark is None:
        mark = pytest.mark.sampled(max(_FEW, len(cases) // 3)).mark
    each = mark.kwargs.get("each", "").split()
    kinds = [
        tuple((name, _key(case.callspec.params[name])) for name in each)
        for case in cases
    ]
    drawn = draw(kinds, *mark.args, np.random.default_rng(seed))
    return [case for i, case in enumerate(cases) if i not in drawn]


def _key(value: object) -> object:
    """Returns what tells values apart: the cases share objects that parametrize was
    given.
    """
    return value if isinstance(value, (str, int, float)) else (id(value),)


def draw(
    kinds: Sequence[tuple], sample_size: int, rng: np.random.Generator
) -> set[int]:
    """Returns which cases are run.

    Args:
      kinds: For each case, what must occur in the sample.
      number: How many cases are run; more, if it takes more for all that must occur.
      rng: What draws them.

    Returns:
      The cases' places in `kinds`.
    """
    order = [int(i) for i in rng.permutation(len(kinds))]
    drawn = []
    missing = {kind for case in kinds for kind in case}
    while missing:
        best = max(order, key=lambda i: len(missing.intersection(kinds[i])))
        drawn.append(best)
        missing.difference_update(kinds[best])
    rest = [i for i in order if i not in drawn]
    return {*drawn, *rest[: max(0, sample_size - len(drawn))]}
