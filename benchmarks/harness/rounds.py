"""Measures cases in separate processes that take steps in turn.

First each case is started while no other one is alive, to measure its start. Then all are
alive, and a round is one step of each, so that other load on the machine affects all of
them equally. Ratios are computed within rounds.

    rows, refused = measure(group, rounds=10, starts=1, losses=5)
"""

from __future__ import annotations

import compileall
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.report import Row
from benchmarks.step.cases.cases import FOREIGN, Case

_PATIENCE = 300  # seconds in which a worker has to start
# Cases of meshtf configure their process so that CPUs keep freed memory; what they are
# compared with gets that too.
_ENVIRONMENT = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_CPU_ALLOCATOR_USE_BFC": "1"}
_NOTHING_MORE: Mapping[str, str] = {}


class WorkerError(RuntimeError):
    """A worker process ended, or was killed, before it answered."""

    def __init__(
        self,
        name: str,
        code: int,
        said: str,
    ):
        errors = [
            line
            for line in said.splitlines()
            if re.search(r"\b\w*(Error|ERROR): ", line)
        ]
        self.why = (
            errors[-1]
            if errors
            else signal.Signals(-code).name
            if code < 0
            else f"exit {code}"
        )
        super().__init__(f"the worker for {name!r} ended: {self.why}\n{said}")


@functools.cache
def compile_sources() -> None:
    """Compiles our packages to bytecode, as an installation of TensorFlow is.

    Otherwise the compilation would be part of the start if Python writes no bytecode.
    """
    root = Path(__file__).resolve().parents[2]
    for package in ("benchmarks", "meshtf", "transformer"):
        compileall.compile_dir(root / package, quiet=1)


class Process:
    """A worker process with one case, which has taken its first steps.

    Args:
      case: the case.
      worker: the module of the worker.
      environment: additional environment variables of the process.
    """

    def __init__(
        self,
        case: Any,
        worker: str = "benchmarks.step.cases.worker",
        environment: Mapping[str, str] = _NOTHING_MORE,
    ):
        compile_sources()
        self.case = case
        self.said = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", worker, case.dump()],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.said,
            env=_ENVIRONMENT | os.environ | dict(environment),
        )
        timer = threading.Timer(_PATIENCE, self.process.kill)
        timer.start()
        try:
            self.start = self._answer()
        except WorkerError:
            self.stop()
            raise
        finally:
            timer.cancel()

    def ask(self, request: str, argument: int) -> Any:
        """Returns the worker's answer to a request: the result of a method of its runner."""
        assert self.process.stdin
        print(json.dumps({request: argument}), file=self.process.stdin, flush=True)
        return self._answer()

    def stop(self) -> None:
        """Ends the worker process."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.said.close()

    def _answer(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.said.seek(0)
            raise WorkerError(self.case.name, code, self.said.read())
        return json.loads(line)


def measure(
    group: list[Case],
    rounds: int,
    starts: int,
    losses: int,
) -> tuple[list[Row], dict[str, str]]:
    """Returns a row for each case of a group, and why cases of other libraries do not run.

    The first row is the one that the others are compared with. Starts are measured while no
    other case is alive: the more memory of the machine is in use, the longer the system
    takes for each new page. The first start of all is not measured, since files and memory
    are cold then.

    Args:
      group: the cases to compare.
      rounds: how many steps of each case are timed.
      starts: how often each case is started; the fastest start counts.
      losses: over how many steps losses are compared.
    """
    started: dict[Case, list[dict[str, float]]] = {case: [] for case in group}
    refused: dict[str, str] = {}

    def process_of(case: Case) -> Process:
        return Process(case, environment=case.environment)

    process_of(group[0]).stop()
    for _ in range(starts):
        for case in (case for case in group if case.name not in refused):
            try:
                process = process_of(case)
            except WorkerError as error:
                if case.runtime not in FOREIGN:
                    raise
                refused[case.name] = error.why
                continue
            started[case].append(process.start)
            process.stop()
    workers: list[Process] = []
    try:
        for case in (case for case in group if case.name not in refused):
            workers.append(process_of(case))
        losses_of_workers = [w.ask("losses", losses)["losses"] for w in workers]
        timed = [[w.ask("steps", 1) for w in workers] for _ in range(rounds)]
    finally:
        for worker in workers:
            worker.stop()
    rows = []
    for i, worker in enumerate(workers):
        every = started[worker.case]
        rows.append(
            Row(
                worker.case.name,
                worker.case.group,
                losses_of_workers[i],
                {key: [r[i][key][0] for r in timed] for key in ("wall", "cpu")},
                {key: min(s[key] for s in every) for key in worker.start},
            )
        )
    return rows, refused
