"""Searches for programs on which meshtf and the judge differ, and shrinks them.

Example:

    round = search(strategies.programs(), seed=7, known=[], end=time.time() + 60,
    examples=100) print(round.finding.report())
"""

from __future__ import annotations

import dataclasses
import re
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import tensorflow as tf
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

import meshtf
from tests.fuzz import judging
from tests.fuzz.models.strategies import CASES as TRAINING_CASES
from tests.fuzz.models.training import Training
from tests.fuzz.program import Program
from tests.fuzz.reducing import reduced, simplify
from tests.fuzz.rules.catalogue import OPS
from tests.fuzz.rules.constructs import CONSTRUCTS
from tests.fuzz.strategies import CASES as PROGRAM_CASES
from tests.fuzz.writer import OFTEN

WORDS = (
    "scan",
    "scan_and_sum",
    "while_loop",
    "cond",
    "recompute",
    "layout",
    "stage",
    "seed",
    "function",
    "Repeat",
    "Reversible",
    "deepcopy",
    "RecordedLayer",
    "GPipe",
    "accumulate_gradients",
    "gradients",
)
# What is drawn, by name: programs, and training runs of models.
CASES: dict[str, Any] = {**PROGRAM_CASES, **TRAINING_CASES}
QUIET = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))


@dataclasses.dataclass(frozen=True)
class Finding:
    """A program, or a training run, and what is wrong with it.

    `kind` is how it shows, `words` the constructs that the program has.
    """

    program: Program | Training
    kind: str
    problem: str

    @property
    def words(self) -> frozenset[str]:
        """The constructs that the program has, and how it runs."""
        if isinstance(self.program, Training):
            return self.program.words
        source = self.program.source()
        return frozenset(
            word
            for word in (*WORDS, *(m for m in ("eager", "export", "jit")))
            if re.search(rf"\b{word}\(", source) or word == self.program.mode
        )

    def may_be(self, other: Finding) -> bool:
        """Whether this may be the fault of another, simpler finding."""
        return self.kind == other.kind and self.words >= other.words

    def report(self) -> str:
        """Returns the program, and what is wrong with it, as Python."""
        return self.program.source() + "".join(
            f"# {line}\n" for line in self.problem.splitlines()
        )


def examine(program: Program | Training) -> Finding | None:
    """Returns what is wrong with a program or a training run, or None.

    Raises:
      Unfit: the judge's numbers say nothing.
      Senseless: the judge cannot run it.
    """
    try:
        if isinstance(program, Training):
            problem = program.check()
        else:
            problem = judging.check(program)
    except (judging.Unfit, judging.Senseless):
        raise
    except (meshtf.PlanError, tf.errors.InvalidArgumentError) as error:
        # XLA has no kernel: refused by name, and by the line that pools.
        if "MaxPoolGradGrad" in str(error) and "from  " in str(error):
            raise judging.Unfit from error
        # On live meshes, a loop or branch of several stages: refused with its line.
        if "runs on several pipeline stages" in str(error) and "from  " in str(error):
            raise judging.Unfit from error
        return Finding(program, _place(error), traceback.format_exc(limit=-6))
    except Exception as error:  # a finding, whatever it is
        return Finding(program, _place(error), traceback.format_exc(limit=-6))
    return Finding(program, problem.split(" ")[0], problem) if problem else None


def smallest(finding: Finding, seconds: float = 60) -> Finding:
    """Returns a finding of the same kind whose program is as small as it gets in this
    time.
    """
    best = [finding]

    def fails(program: Program | Training) -> bool:
        try:
            smaller = examine(program)
        except (judging.Unfit, judging.Senseless):
            return False
        if smaller is not None and smaller.kind == finding.kind:
            best.append(smaller)
            return True
        return False

    if isinstance(finding.program, Training):
        simplify(finding.program, fails, seconds)
    else:
        reduced(finding.program, fails, seconds)
    return best[-1]


def _place(error: Exception) -> str:
    """Returns what was raised, and where."""
    root = Path(meshtf.__file__).parent
    own = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if root in Path(f.filename).parents
    ]
    location = (
        f"{Path(own[-1].filename).relative_to(root)}:{own[-1].name}" if own else ""
    )
    message = re.sub(r"\[[^]]*\]|'[^']*'|\"[^\"]*\"|\d+", "", str(error).split("\n")[0])
    return f"{type(error).__name__} {location} {message[:80]}"


class Round(NamedTuple):
    """A round of a search.

    Attributes:
      tried: the number of programs that ran.
      repeated: how many of them had a fault that was known.
      finding: the first other one, as small as it gets.
    """

    tried: int
    repeated: int
    finding: Finding | None


def search(
    strategy: st.SearchStrategy[Program] | st.SearchStrategy[Training],
    seed: int,
    known: Sequence[Finding],
    end: float,
    examples: int,
    shrink: bool = True,
) -> Round:
    """Draws programs until one is a finding.

    Args:
      strategy: of programs.
      seed: what they are drawn with.
      known: findings that are not looked for again.
      end: when to stop, in seconds as of `time.time`.
      examples: the number of programs to draw.
      shrink: whether to make the finding's program small.
    """
    tried = []
    repeated = []
    first = []

    @hypothesis.seed(seed)
    @settings(QUIET, max_examples=examples, phases=[Phase.generate])
    @hypothesis.given(strategy)
    def attempt(program: Program | Training) -> None:
        if first or time.time() > end:
            return
        tried.append(program)
        try:
            finding = examine(program)
        except judging.Unfit:
            return
        if finding is None:
            return
        is_known = any(finding.may_be(other) for other in known)
        (repeated if is_known else first).append(finding)

    attempt()
    finding = first[0] if first else None
    if finding is not None and shrink:
        finding = smallest(finding)
    return Round(len(tried), len(repeated), finding)


def search_case(name: str, often: Sequence[str], *args: Any) -> Round:
    """Searches one case of `CASES`; half of all statements are by the rules
    of `often`.
    """
    OFTEN[:] = [rule for rule in (*OPS, *CONSTRUCTS) if rule.__name__ in often]
    return search(CASES[name], *args)
