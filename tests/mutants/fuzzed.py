"""Sets the fuzzer on broken rules, and says after how many programs it notices each.

    python -m tests.mutants.fuzzed --minutes=5
    python -m tests.mutants.fuzzed --mutants=two-carries-are-exchanged --seed=12

By default the rules of `constructs`: those of what users write around ops. A process
each, since a mutant is there from the first import on.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
import time
from typing import NamedTuple

from tests.mutants.catalogue import MUTANTS
from tests.mutants.constructs import CONSTRUCTS
from tests.mutants.mutant import Mutant, install

ROUND = 50  # programs


class Hunt(NamedTuple):
    """What drawing programs for one mutant found.

    Attributes:
      programs: how many ran.
      seconds: how long that took.
      problem: how it showed in the first program that differed; "": it did not.
    """

    programs: int
    seconds: float
    problem: str


def main() -> int:
    """Returns the number of mutants that were not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mutants", default=",".join(m.slug for m in CONSTRUCTS))
    parser.add_argument("--minutes", type=float, default=5, help="for each mutant")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    by_slug = {m.slug: m for m in MUTANTS}
    context = multiprocessing.get_context("spawn")
    missed = 0
    for slug in options.mutants.split(","):
        with context.Pool(1, maxtasksperchild=1) as pool:
            hunt = pool.apply(_hunt, (by_slug[slug], options.minutes, options.seed))
        missed += not hunt.problem
        print(
            f"{hunt.programs:5d} programs {hunt.seconds:4.0f} s  {slug}: "
            f"{hunt.problem or 'NOT NOTICED'}",
            flush=True,
        )
    return missed


def _hunt(mutant: Mutant, minutes: float, seed: int) -> Hunt:
    """Draws programs in this process until one differs."""
    install(mutant)
    from tests.fuzz.search import search
    from tests.fuzz.strategies import CASES
    from tests.support.subprocesses import start_tensorflow

    start_tensorflow()
    started = time.time()
    end = started + 60 * minutes
    tried = 0
    for k, case in enumerate(itertools.cycle(CASES)):
        if time.time() >= end:
            break
        outcome = search(CASES[case], 1000 * seed + k, [], end, ROUND, shrink=False)
        tried += outcome.tried
        if outcome.finding is not None:
            problem = f"{case}: {outcome.finding.kind}"
            return Hunt(tried, time.time() - started, problem)
    return Hunt(tried, time.time() - started, "")


if __name__ == "__main__":
    sys.exit(main())
