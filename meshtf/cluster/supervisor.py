"""The supervisor: a process that runs a driver as a child process, and restarts it after a
fault.

    code = supervise(["python", "-m", "transformer.train"], workers, Limits(restarts=3))

A process cannot interrupt its own call that is blocked inside TensorFlow. So the supervisor
monitors the driver and its workers, kills a driver that is stuck or has lost a worker, and
restarts it; the driver continues from its last checkpoint.

A worker draws a random id when it starts, its "life": another life means that the worker has
restarted.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from meshtf.cluster.addresses import Address
from meshtf.cluster.child_process import Child
from meshtf.cluster.connect import ANSWER_TIMEOUT, LOST
from meshtf.cluster.control_port import ask, release_driver
from meshtf.cluster.monitor import HeartbeatMonitor, WorkerMonitor
from meshtf.errors import ClusterError, explain_error
from meshtf.runtime.heartbeat import VARIABLE as HEARTBEAT_VARIABLE

STALLED = 70  # the exit code where the driver gave no sign of life (EX_SOFTWARE)
_POLL_INTERVAL = 0.2  # seconds between checks of the driver and of workers


class Limits(NamedTuple):
    """Timeouts in seconds, and the maximum count of restarts.

    Attributes:
      timeout: the maximum duration of a worker's silence, of a call of a function, and of
        the exit of a driver that was asked to stop.
      start: the maximum duration of a driver's activities before its first call of a
        function, and of first calls, which trace and compile.
      wait: the maximum time to wait for workers to be available when a run starts.
      restarts: the maximum count of restarts after faults.
    """

    timeout: float = 60.0
    start: float = 600.0
    wait: float = 300.0
    restarts: int = 0


class Workers(Protocol):
    """Workers of a run, and a way to restart them."""

    @property
    def addresses(self) -> Sequence[Address]:
        """The addresses of the workers, by index."""

    def restart_lost(self) -> None:
        """Restarts workers that were lost, if this process can do so."""


class RemoteWorkers(NamedTuple):
    """Workers that this process does not start."""

    addresses: Sequence[Address]

    def restart_lost(self) -> None:
        """Does nothing: this process cannot start remote workers."""


class RunResult(NamedTuple):
    """The result of one run of the driver.

    Attributes:
      code: the exit code.
      fault: a message about the fault after which the driver is restarted; "": no fault.
    """

    code: int
    fault: str = ""


class StopSignals:
    """Forwards SIGINT and SIGTERM to the driver, which saves a checkpoint and exits.

    Attributes:
      signal_number: the last signal; 0: none has come.
      signal_time: the time of the last signal, on the monotonic clock.
      drivers: the processes that signals are forwarded to; those who start them set it.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self.signal_time = 0.0
        self.drivers: list[Child] = []
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, self._handle)

    def _handle(self, signal_number: int, _: object) -> None:
        """Handles a signal: Python calls it in the main thread."""
        self.signal_number = signal_number
        self.signal_time = time.monotonic()
        for driver in self.drivers:
            driver.send_signal(signal_number)

    def is_overdue(self, timeout: float) -> bool:
        """Returns whether the last signal came more than `timeout` seconds ago."""
        seconds = time.monotonic() - self.signal_time
        return bool(self.signal_number) and seconds > timeout


def supervise(command: Sequence[str], workers: Workers, limits: Limits) -> int:
    """Runs a command on workers until it ends without a fault, or no restart is left.

    Args:
      command: the program and arguments of the driver; `--cluster=...` is appended, or
        replaces {cluster} in them.
      workers: the workers of the driver.
      limits: timeouts and restarts.

    Returns:
      The command's exit code, or LOST, STALLED, or 128 + N for signal N.
    """
    stop_signals = StopSignals()
    num_faults = 0
    lives: list[str] = []
    while True:
        try:
            lives = wait_for_workers(
                workers, limits.wait, stop_signals, previous_lives=lives
            )
        except ClusterError as error:
            print_message(str(error))
            return LOST
        if stop_signals.signal_number:
            return 128 + stop_signals.signal_number
        result = _run_driver(command, workers, lives, limits, stop_signals)
        if not result.fault or stop_signals.signal_number:
            return result.code
        num_faults += 1
        plan = "going on from the last checkpoint once all workers are there"
        if not is_restarted(result, num_faults, limits.restarts, plan):
            return result.code


def is_restarted(
    result: RunResult, num_faults: int, max_restarts: int, plan: str
) -> bool:
    """Returns whether a run starts again after a fault; prints the fault and what follows.

    Args:
      result: the result of the run, with its fault.
      num_faults: the count of faults so far, this one included.
      max_restarts: the maximum count of restarts.
      plan: what a restart does, in words.
    """
    print_message(result.fault)
    remaining = max_restarts - num_faults
    if remaining < 0:
        print_message(
            f"the run ends with code {result.code} after {num_faults} "
            f"fault{'s' * (num_faults > 1)}; --restarts=N goes on from the last checkpoint"
        )
        return False
    restarts = f"{remaining} restart{'s' * (remaining != 1)} left"
    print_message(f"fault {num_faults}: {plan} ({restarts})")
    return True


class _WorkerState(NamedTuple):
    """The state of a worker before a run.

    Attributes:
      life: the id that the worker drew when it started (see `control_port`).
      problem: why the worker is not available; "": it is available.
    """

    life: str
    problem: str


def wait_for_workers(
    workers: Workers,
    limit: float,
    stop_signals: StopSignals,
    previous_lives: Sequence[str],
) -> list[str]:
    """Waits until all workers answer and have no driver.

    Args:
      workers: the workers to wait for.
      limit: the maximum time to wait, in seconds.
      stop_signals: the signals, after which it does not wait any longer.
      previous_lives: the lives of the workers in the previous run, whose driver has been
        killed. A worker that has not detected this is asked to release the driver.

    Returns:
      The life of each worker (see `control_port`); [] after a signal.

    Raises:
      ClusterError: a worker is not available after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    while not stop_signals.signal_number:
        workers.restart_lost()
        states = []
        for address in workers.addresses:
            timeout = min(ANSWER_TIMEOUT, limit)
            states.append(_state_of(address, timeout, previous_lives))
        if not any(state.problem for state in states):
            return [state.life for state in states]
        if time.monotonic() > deadline:
            raise _unavailable_error(workers.addresses, states, limit)
        time.sleep(_POLL_INTERVAL)
    return []


def _unavailable_error(
    addresses: Sequence[Address], states: Sequence[_WorkerState], limit: float
) -> ClusterError:
    """Returns an error with the state of each worker."""
    lines = []
    for i, (address, state) in enumerate(zip(addresses, states)):
        lines.append(f"worker {i} at {address}: {state.problem or 'there'}")
    return ClusterError(
        explain_error(
            f"not all workers were there and free after {limit:g} s.",
            workers="\n".join(lines),
            way_out="Start those that are missing, or wait longer: --wait=SECONDS.",
        )
    )


def _state_of(
    address: Address, timeout: float, previous_lives: Sequence[str]
) -> _WorkerState:
    """Returns the state of a worker; arguments as of `wait_for_workers`."""
    try:
        response = ask(address.control_address, timeout)
        life = response["life"]
        if life in previous_lives and response["driver"]:
            release_driver(address.control_address, life, timeout)
    except OSError as error:
        return _WorkerState(life="", problem=f"no answer ({error})")
    problem = ""
    if response["driver"]:
        problem = f"taken by the driver {response['driver']}"
    return _WorkerState(life, problem)


def _run_driver(
    command: Sequence[str],
    workers: Workers,
    lives: Sequence[str],
    limits: Limits,
    stop_signals: StopSignals,
) -> RunResult:
    """Starts the driver, and waits until it ends or has to be killed.

    Args:
      command: the program and arguments of the driver.
      workers: the workers of the driver.
      lives: the life of each worker.
      limits: timeouts.
      stop_signals: the signals that are forwarded to the driver.
    """
    with tempfile.TemporaryDirectory(prefix="meshtf_") as folder:
        heartbeat_file = Path(folder, "beats")
        driver = Child(
            with_cluster(command, workers.addresses),
            environment={HEARTBEAT_VARIABLE: str(heartbeat_file)},
        )
        monitors = []
        for i, (address, life) in enumerate(zip(workers.addresses, lives)):
            monitor = WorkerMonitor(
                f"worker {i}", address, life=life, timeout=limits.timeout
            )
            monitors.append(monitor)
        stop_signals.drivers = [driver]
        try:
            heartbeat = HeartbeatMonitor(
                heartbeat_file, start_timeout=limits.start, timeout=limits.timeout
            )
            return _monitor_driver(driver, monitors, heartbeat, limits, stop_signals)
        finally:
            stop_signals.drivers = []
            for monitor in monitors:
                monitor.close()
            driver.kill()


def _monitor_driver(
    driver: Child,
    monitors: Sequence[WorkerMonitor],
    heartbeat: HeartbeatMonitor,
    limits: Limits,
    stop_signals: StopSignals,
) -> RunResult:
    """Waits until the driver ends, is stuck, or has lost a worker.

    Args:
      driver: the process of the driver.
      monitors: the monitor of each worker.
      heartbeat: the monitor of the driver.
      limits: timeouts.
      stop_signals: the signals that have come.
    """
    while True:
        code = driver.wait(_POLL_INTERVAL)
        lost = _lost_message(monitors, [monitor.trouble for monitor in monitors])
        if code is None and lost:
            # Workers also restart when their driver ends. It may be about to end.
            code = driver.wait(1.0)
        if code is not None:
            return _exit_result(code, lost, stopped=bool(stop_signals.signal_number))
        if lost:
            return RunResult(LOST, fault=lost)
        if stop_signals.is_overdue(limits.timeout):
            return RunResult(128 + stop_signals.signal_number)
        trouble = heartbeat.trouble
        if trouble:
            driver.send_signal(signal.SIGUSR1)  # a connected driver prints its stacks
            # The driver may be stuck because a worker was lost since the last poll.
            troubles = [monitor.check(ANSWER_TIMEOUT) for monitor in monitors]
            lost = _lost_message(monitors, troubles)
            driver.wait(_POLL_INTERVAL)  # until its stacks are printed
            if lost:
                return RunResult(LOST, fault=lost)
            fault = f"the driver, process {driver.pid}, is stuck: {trouble}"
            return RunResult(STALLED, fault=fault)


def _lost_message(monitors: Sequence[WorkerMonitor], troubles: Sequence[str]) -> str:
    """Returns a message about the workers that were lost, or "".

    Args:
      monitors: the monitor of each worker.
      troubles: for each worker why it counts as lost, or "".
    """
    messages = []
    for monitor, trouble in zip(monitors, troubles):
        if trouble:
            messages.append(f"{monitor.name} is lost: {trouble}")
    return "; ".join(messages)


def _exit_result(code: int, lost: str, stopped: bool) -> RunResult:
    """Returns the result of a driver that was not killed: a signal or a lost worker is a
    fault, unless the driver was asked to stop.

    Args:
      code: the exit code of the driver, or -N for signal N.
      lost: a message about lost workers, or "".
      stopped: whether the driver was asked to stop.
    """
    exit_code = code
    if code < 0:
        exit_code = 128 - code  # as a shell reports a process that a signal ended
    if stopped:
        return RunResult(exit_code)
    if code == LOST:
        fault = lost or "the driver has lost a worker, as it says above"
        return RunResult(exit_code, fault)
    if code < 0:
        signal_name = signal.Signals(-code).name
        fault = lost or f"the driver was ended by {signal_name}"
        return RunResult(exit_code, fault)
    return RunResult(exit_code)


def with_cluster(command: Sequence[str], addresses: Sequence[Address]) -> list[str]:
    """Returns a command with the addresses of its workers, as `--cluster=...` at the end, or
    in place of {cluster}.

    >>> with_cluster(["train", "--steps=2"], [Address("h", 4000)])
    ['train', '--steps=2', '--cluster=h:4000']
    """
    cluster = ",".join(map(str, addresses))
    if any("{cluster}" in argument for argument in command):
        return [argument.replace("{cluster}", cluster) for argument in command]
    return [*command, f"--cluster={cluster}"]


def print_message(text: str) -> None:
    """Prints a message of the supervisor to stderr."""
    print(f"[supervisor] {text}", file=sys.stderr, flush=True)
