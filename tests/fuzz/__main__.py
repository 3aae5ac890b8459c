"""Draws programs for some minutes, and prints those on which meshtf and plain
TensorFlow differ.

    python -m tests.fuzz --minutes=30             # `make fuzz MINUTES=30`
    python -m tests.fuzz --seed=12 --only=pipelines,eager
    python -m tests.fuzz --often=custom,conv      # half of all statements are these

The seed that it prints draws the same programs again. Each finding is a script that can
be pasted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time

from tests.fuzz.search import CASES, Finding, search_case
from tests.support.subprocesses import Apart

ROUNDS = (
    3  # of a process: XLA's programs stay in memory, of which Linux maps 65,530 pieces
)


def main() -> int:
    """Returns 1 if there was a finding."""
    options = _options()
    seed = (
        random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    )
    print(f"seed: {seed}", flush=True)
    end = time.time() + 60 * options.minutes
    started = time.time()
    selected = options.only.split(",") if options.only else []
    seeds = {
        name: 1000 * (100 * seed + i)
        for i, name in enumerate(CASES)
        if all(word in name for word in selected)
    }
    often = options.often.split(",") if options.often else []
    known: list[Finding] = []
    tried = repeated = 0
    with Apart(ROUNDS) as apart:
        for name in itertools.cycle(seeds):
            if time.time() >= end:
                break
            result = apart(
                search_case, name, often, seeds[name], known, end, options.examples
            )
            seeds[name] += 1
            tried = tried + result.tried
            repeated = repeated + result.repeated
            if result.finding is not None:
                known.append(result.finding)
                _write(
                    options.folder,
                    f"{seed}_{len(known)}",
                    result.finding.report(),
                    name,
                )
            print(
                f"{time.time() - started:6.0f} s  {tried} programs, {len(known)} "
                "findings, "
                f"{repeated} like them  ({name})",
                flush=True,
            )
    return 1 if known else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--examples", type=int, default=50, help="of a round of one strategy"
    )
    parser.add_argument("--only", default="", help="words in the names of strategies")
    parser.add_argument(
        "--often", default="", help="rules that are drawn most: conv,custom"
    )
    parser.add_argument(
        "--folder", default="runs/fuzz", help="where findings are written"
    )
    return parser.parse_args()


def _write(folder: str, name: str, text: str, strategy: str) -> None:
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{name}.py")
    with open(path, "w") as file:
        file.write(f"# {strategy}\n{text}")
    print(f"\n{text}\n{path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
