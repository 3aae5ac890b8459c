"""Cases in processes of their own that take their steps in turn.

All are alive at once, so that what else the machine does falls on all alike, and what is told are
ratios within a round.

    rows = measure(group, rounds=10, starts=1, losses=5)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.report import Row
from benchmarks.training.cases import Case


class Process:
  """A worker with one case, which has taken its first steps."""

  def __init__(self, case: Any, worker: str = "benchmarks.training.worker"):
    self.process = subprocess.Popen(
        [sys.executable, "-m", worker, case.dump()], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"TF_CPP_MIN_LOG_LEVEL": "3"} | os.environ)
    self.case = case
    self.start = self._answer()

  def ask(self, request: str, number: int) -> Any:
    """Returns the worker's answer to a request."""
    assert self.process.stdin
    print(json.dumps({request: number}), file=self.process.stdin, flush=True)
    return self._answer()

  def stop(self) -> None:
    """Ends the worker."""
    assert self.process.stdin and self.process.stdout
    self.process.stdin.close()
    self.process.wait()
    self.process.stdout.close()

  def _answer(self) -> Any:
    assert self.process.stdout
    line = self.process.stdout.readline()
    if not line:
      raise RuntimeError(f"the worker for {self.case.name!r} ended; its error stands above.")
    return json.loads(line)


def measure(group: list[Case], rounds: int, starts: int, losses: int) -> list[Row]:
  """Returns a row for each case of a group, the first being what the others are compared with.

  Args:
    group: cases to be compared.
    rounds: how many steps of each case are timed.
    starts: how often each case is started; the fastest start counts.
    losses: how many steps the losses are compared over.
  """
  started: dict[Case, list[dict[str, float]]] = {case: [] for case in group}
  for _ in range(starts - 1):
    for case in group:
      process = Process(case)
      started[case].append(process.start)
      process.stop()
  workers = [Process(case) for case in group]
  try:
    told = [w.ask("losses", losses)["losses"] for w in workers]
    timed = [[w.ask("steps", 1) for w in workers] for _ in range(rounds)]
  finally:
    for worker in workers:
      worker.stop()
  rows = []
  for i, worker in enumerate(workers):
    every = [*started[worker.case], worker.start]
    rows.append(Row(worker.case.name, worker.case.group, told[i],
                    {what: [r[i][what][0] for r in timed] for what in ("wall", "cpu")},
                    {what: min(s[what] for s in every) for what in worker.start}))
  return rows
