"""Searches for programs on which meshtf and the judge differ, and shrinks them.

    found = Search(strategies.programs(), seed=7).round(examples=100)
    print(found.report())
"""

from __future__ import annotations

import dataclasses
import re
import time
import traceback
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import meshtf
from tests.fuzz import judging
from tests.fuzz.program import Program
from tests.fuzz.reducing import reduced

WORDS = ("scan", "scan_and_sum", "while_loop", "cond", "recompute", "layout", "stage", "seed",
         "function", "Repeat", "RecordedLayer", "GPipe", "accumulate_gradients", "gradients")
QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@dataclasses.dataclass(frozen=True)
class Finding:
  """A program, and what is wrong with it.

  `kind` is how it shows, `words` the constructs that the program has.
  """

  program: Program
  kind: str
  problem: str

  @property
  def words(self) -> frozenset[str]:
    """The constructs that the program has, and how it runs."""
    source = self.program.source()
    return frozenset(word for word in (*WORDS, *(m for m in ("eager", "export", "jit")))
                     if re.search(rf"\b{word}\(", source) or word == self.program.mode)

  def may_be(self, other: Finding) -> bool:
    """Whether this may be the fault of another, simpler finding."""
    return self.kind == other.kind and self.words >= other.words

  def report(self) -> str:
    """Returns the program, and what is wrong with it, as Python."""
    return self.program.source() + "".join(f"# {line}\n" for line in self.problem.splitlines())


def examine(program: Program) -> Finding | None:
  """Returns what is wrong with a program, or None.

  Raises:
    Unfit: the judge's numbers say nothing.
    Senseless: the judge cannot run it.
  """
  try:
    problem = judging.check(program)
  except (judging.Unfit, judging.Senseless):
    raise
  except Exception as error:       # a finding, whatever it is
    return Finding(program, _place(error), traceback.format_exc(limit=-6))
  return Finding(program, problem.split(" ")[0], problem) if problem else None


def smallest(finding: Finding, seconds: float = 60) -> Finding:
  """Returns a finding of the same kind whose program is as small as it gets in this time."""
  best = [finding]

  def fails(program: Program) -> bool:
    try:
      found = examine(program)
    except (judging.Unfit, judging.Senseless):
      return False
    if found is not None and found.kind == finding.kind:
      best.append(found)
      return True
    return False
  reduced(finding.program, fails, seconds)
  return best[-1]


def _place(error: Exception) -> str:
  """Returns what was raised, and where."""
  root = Path(meshtf.__file__).parent
  own = [f for f in traceback.extract_tb(error.__traceback__) if root in Path(f.filename).parents]
  place = f"{Path(own[-1].filename).relative_to(root)}:{own[-1].name}" if own else ""
  message = re.sub(r"\[[^]]*\]|'[^']*'|\"[^\"]*\"|\d+", "", str(error).split("\n")[0])
  return f"{type(error).__name__} {place} {message[:80]}"


class Search:
  """Draws programs in rounds; each round ends with its first finding, as small as it gets.

  Args:
    strategy: of programs.
    seed: of the first round.
    known: findings that are not looked for again, which the search adds to.
    end: when to stop, in seconds as of `time.time`.
  """

  def __init__(self, strategy: st.SearchStrategy[Program], seed: int, known: list[Finding],
               end: float) -> None:
    self.strategy, self.seed, self.known, self.end = strategy, seed, known, end
    self.tried = self.repeated = 0

  def round(self, examples: int) -> Finding | None:
    """Returns what a round finds that no round before it has found."""
    first: list[Finding] = []

    @hypothesis.seed(self.seed)
    @settings(QUIET, max_examples=examples, phases=[Phase.generate])
    @hypothesis.given(self.strategy)
    def attempt(program: Program) -> None:
      if first or time.time() > self.end:
        return
      self.tried += 1
      try:
        found = examine(program)
      except judging.Unfit:
        return
      if found is None:
        return
      if any(found.may_be(known) for known in self.known):
        self.repeated += 1
        return
      first.append(found)

    self.seed += 1
    attempt()
    if not first:
      return None
    self.known.append(smallest(first[0]))
    return self.known[-1]
