"""Measures cases in separate processes that take steps in turn.

First each case is started while no other one is alive, to measure its start. Then all are
alive, and a round is one step of each, so that other load on the machine affects all of
them equally. Ratios are computed within rounds.

    rows, refused = measure(group, rounds=10, starts=1, losses=5)
    print(refused)          # the reasons why cases of other libraries do not run, by name
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
from benchmarks.step.cases.cases import FOREIGN

STEP_WORKER = "benchmarks.step.cases.worker"
_START_TIMEOUT = 300  # seconds in which a worker has to start
_ENVIRONMENT = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    # Cases of meshtf configure their process so that CPUs keep freed memory. The cases that
    # they are compared with get the same setting.
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    # Compile times are those of a first start.
    "JAX_ENABLE_COMPILATION_CACHE": "false",
}
_NO_VARIABLES: Mapping[str, str] = {}


class WorkerError(RuntimeError):
    """A worker process ended, or was killed, before it answered.

    Args:
      name: the name of the case.
      code: the exit code; if negative, the number of the signal that killed the process.
      log: the standard error of the process.

    Attributes:
      reason: the last error in the log, or else the signal or the exit code.
    """

    def __init__(
        self,
        name: str,
        code: int,
        log: str,
    ):
        error_lines = [
            line
            for line in log.splitlines()
            if re.search(r"\b\w*(Error|ERROR): ", line)
        ]
        if error_lines:
            self.reason = error_lines[-1]
        elif code < 0:
            self.reason = signal.Signals(-code).name
        else:
            self.reason = f"exit {code}"
        super().__init__(f"the worker for {name!r} ended: {self.reason}\n{log}")


@functools.cache
def compile_sources() -> None:
    """Compiles our packages to bytecode, as the installed TensorFlow is compiled.

    Otherwise the compilation would be part of the start where Python writes no bytecode.
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

    Attributes:
      case: the case.
      start_costs: the first answer of the worker: the costs of its start.
    """

    def __init__(
        self,
        case: Any,
        worker: str = STEP_WORKER,
        environment: Mapping[str, str] = _NO_VARIABLES,
    ):
        compile_sources()
        self.case = case
        self.log = tempfile.TemporaryFile("w+")  # deleted when it is closed
        self.process = subprocess.Popen(
            [sys.executable, "-m", worker, case.dump()],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=_ENVIRONMENT | os.environ | dict(environment),
        )
        # A killed worker closes its output, which ends the wait for its answer.
        timer = threading.Timer(_START_TIMEOUT, self.process.kill)
        timer.start()
        try:
            self.start_costs = self._answer()
        except WorkerError:
            self.stop()
            raise
        finally:
            timer.cancel()

    def ask(self, request: str, argument: int) -> Any:
        """Returns the worker's answer to a request: the result of a method of its runner.

        Args:
          request: the name of the method.
          argument: the argument of the method, such as a number of steps.
        """
        assert self.process.stdin
        print(json.dumps({request: argument}), file=self.process.stdin, flush=True)
        return self._answer()

    def stop(self) -> None:
        """Ends the worker process."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def _answer(self) -> Any:
        """Returns the next answer of the worker.

        Raises:
          WorkerError: the process has ended.
        """
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.log.seek(0)
            raise WorkerError(self.case.name, code, self.log.read())
        return json.loads(line)


def measure(
    group: list[Any],
    rounds: int,
    starts: int,
    losses: int,
    worker: str = STEP_WORKER,
) -> tuple[list[Row], dict[str, str]]:
    """Returns the rows of the cases that run, and for each case of another library that
    does not run, the reason, by the name of the case.

    The first row is the one that the others are compared with.

    Args:
      group: the cases to compare: those of `benchmarks.step`, or others with the same attributes.
      rounds: the number of steps of each case that are timed.
      starts: the number of starts of each case; the fastest one counts.
      losses: the number of steps whose losses are compared.
      worker: the module of the workers.
    """
    starts_of_cases, refused = _measure_starts(group, starts, worker)
    workers: list[Process] = []
    try:
        for case in group:
            if case.name not in refused:
                workers.append(_start(case, worker))
        losses_of_workers = []
        for process in workers:
            losses_of_workers.append(process.ask("losses", argument=losses)["losses"])
        steps_of_rounds = []  # [rounds][workers]
        for _ in range(rounds):
            answers = [process.ask("steps", argument=1) for process in workers]
            steps_of_rounds.append(answers)
    finally:
        for process in workers:
            process.stop()
    rows = []
    for i, process in enumerate(workers):
        case = process.case
        row = _row(
            case,
            losses=losses_of_workers[i],
            steps=[steps_of_workers[i] for steps_of_workers in steps_of_rounds],
            starts=starts_of_cases[case],
        )
        rows.append(row)
    return rows, refused


def _row(
    case: Any,
    losses: list[float],
    steps: list[dict[str, list[float]]],
    starts: list[dict[str, float]],
) -> Row:
    """Returns the row of a case.

    Args:
      case: the case.
      losses: the losses of the first steps.
      steps: for each round, a list with the seconds of the round's one step, by clock.
      starts: the costs of each start; the lowest ones count.
    """
    return Row(
        name=case.name,
        group=case.group,
        losses=losses,
        step={clock: [step[clock][0] for step in steps] for clock in ("wall", "cpu")},
        start={key: min(start[key] for start in starts) for key in starts[0]},
    )


def _measure_starts(
    group: list[Any], starts: int, worker: str
) -> tuple[dict[Any, list[dict[str, float]]], dict[str, str]]:
    """Returns the costs of each start of each case, and for each case of another library
    that does not run, the reason, by the name of the case.

    A start is measured while no other case is alive: the more memory of the machine is in
    use, the longer the system takes for each new page. The first start of all is not
    measured, since files and memory are cold then.
    """
    starts_of_cases: dict[Any, list[dict[str, float]]] = {case: [] for case in group}
    refused: dict[str, str] = {}
    _start(group[0], worker).stop()  # a start that is not measured
    for _ in range(starts):
        for case in group:
            if case.name in refused:
                continue
            try:
                process = _start(case, worker)
            except WorkerError as error:
                if case.runtime not in FOREIGN:  # only other libraries may fail
                    raise
                refused[case.name] = error.reason
            else:
                starts_of_cases[case].append(process.start_costs)
                process.stop()
    return starts_of_cases, refused


def _start(case: Any, worker: str) -> Process:
    """Returns a worker process for a case."""
    return Process(case, worker, environment=case.environment)
