"""Draws programs for some minutes, and prints those on which meshtf and plain TensorFlow differ.

    python -m tests.fuzz --minutes=30             # `make fuzz MINUTES=30`
    python -m tests.fuzz --seed=12 --only=pipelines,eager
    python -m tests.fuzz --often=custom,conv      # half of all statements are these

The seed that it prints draws the same programs again. Each finding is a script that can be pasted.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

from tests.apart import start_tensorflow


def main() -> int:
  """Returns 1 if there was a finding."""
  options = _options()
  start_tensorflow()
  from tests.fuzz.catalogue import OPS
  from tests.fuzz.constructs import CONSTRUCTS
  from tests.fuzz.search import Finding, Search
  from tests.fuzz.strategies import CASES
  from tests.fuzz.writer import OFTEN

  often = options.often.split(",") if options.often else []
  OFTEN.extend(rule for rule in (*OPS, *CONSTRUCTS) if rule.__name__ in often)
  seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
  print(f"seed: {seed}", flush=True)
  end, started = time.time() + 60 * options.minutes, time.time()
  wanted = options.only.split(",") if options.only else []
  known: list[Finding] = []
  searches = {name: Search(strategy, 1000 * (100 * seed + i), known, end)
              for i, (name, strategy) in enumerate(CASES.items())
              if all(word in name for word in wanted)}
  while time.time() < end:
    for name, search in searches.items():
      if time.time() >= end:
        break
      finding = search.round(options.examples)
      tried = sum(s.tried for s in searches.values())
      print(f"{time.time() - started:6.0f} s  {tried} programs, {len(known)} findings, "
            f"{sum(s.repeated for s in searches.values())} like them  ({name})", flush=True)
      if finding is not None:
        _write(options.folder, f"{seed}_{len(known)}", finding.report(), name)
  return 1 if known else 0


def _options() -> argparse.Namespace:
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--minutes", type=float, default=30)
  parser.add_argument("--seed", type=int)
  parser.add_argument("--examples", type=int, default=50, help="of a round of one strategy")
  parser.add_argument("--only", default="", help="words in the names of strategies")
  parser.add_argument("--often", default="", help="rules that are drawn most: conv,custom")
  parser.add_argument("--folder", default="runs/fuzz", help="where findings are written")
  return parser.parse_args()


def _write(folder: str, name: str, text: str, strategy: str) -> None:
  os.makedirs(folder, exist_ok=True)
  path = os.path.join(folder, f"{name}.py")
  with open(path, "w") as file:
    file.write(f"# {strategy}\n{text}")
  print(f"\n{text}\n{path}", flush=True)


if __name__ == "__main__":
  sys.exit(main())
