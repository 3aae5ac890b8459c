"""The supervisor: a process that handles timeouts and restarts of a driver, which is a
child process.

A call that is blocked inside TensorFlow cannot be interrupted by its own process. So
another process monitors the driver, kills it if it is stuck, and restarts it; the driver
continues from its last checkpoint.

    code = supervise(["python", "-m", "transformer.train"], workers, Limits(restarts=3))
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
from meshtf.cluster.connect import LOST, PATIENCE
from meshtf.cluster.control_port import ask, release_driver
from meshtf.cluster.monitor import HeartbeatMonitor, WorkerMonitor
from meshtf.errors import ClusterError, explain_error
from meshtf.runtime.heartbeat import VARIABLE

STALLED = 70  # the exit code where the driver gave no sign of life (EX_SOFTWARE)
_TICK = 0.2


class Limits(NamedTuple):
    """Timeouts in seconds, and the number of restarts.

    Args:
      timeout: of a worker that does not answer, of a call of a function, and of a driver
        that was asked to stop.
      start: of everything that a driver does before its first call of a function, and of
        first calls, which trace and compile.
      wait: for workers that are not available when a run starts.
      restarts: the number of restarts after faults.
    """

    timeout: float = 60.0
    start: float = 600.0
    wait: float = 300.0
    restarts: int = 0


class Workers(Protocol):
    """Addresses of workers, and a way to restart them."""

    @property
    def addresses(self) -> Sequence[Address]:
        """Their addresses, in order of their indices."""

    def restart_lost(self) -> None:
        """Restarts workers that were lost, if this process can."""


class RemoteWorkers(NamedTuple):
    """Workers that are started by other means."""

    addresses: Sequence[Address]

    def restart_lost(self) -> None:
        """Does nothing: this process cannot start them."""


class End(NamedTuple):
    """How a run ended: its exit code, and the fault for which it is restarted, or ""."""

    code: int
    fault: str = ""


class Stop:
    """Forwards SIGINT and SIGTERM to the driver, which saves and exits.

    Attributes:
      signal_number: the last signal; 0: none.
      since: when it came, on the monotonic clock.
      driver: the process that signals are forwarded to.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        self.since = 0.0
        self.driver: Child | None = None
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, self._handle)

    def _handle(self, signal_number: int, _: object) -> None:
        self.signal_number = signal_number
        self.since = time.monotonic()
        if self.driver is not None:
            self.driver.send_signal(signal_number)


def supervise(command: Sequence[str], workers: Workers, limits: Limits) -> int:
    """Runs a command on workers until it ends without a fault, or has no restart left.

    Args:
      command: the driver; `--cluster=...` is appended, or replaces {cluster} in it.
      workers: where it runs.
      limits: timeouts and restarts.

    Returns:
      The command's exit code, or LOST, STALLED, or 128 + N for signal N.
    """
    stop = Stop()
    faults = 0
    lives: list[str] = []
    while True:
        try:
            lives = wait_for(workers, limits.wait, stop, lives)
        except ClusterError as error:
            say(str(error))
            return LOST
        if stop.signal_number:
            return 128 + stop.signal_number
        end = _run(command, workers, lives, limits, stop)
        if not end.fault or stop.signal_number:
            return end.code
        faults += 1
        remaining = limits.restarts - faults
        say(end.fault)
        if remaining < 0:
            say(
                f"the run ends with code {end.code} after {faults} "
                f"fault{'s' * (faults > 1)}; --restarts=N goes on from the last "
                "checkpoint"
            )
            return end.code
        say(
            f"fault {faults}: going on from the last checkpoint once all workers are "
            f"there ({remaining} restart{'s' * (remaining != 1)} left)"
        )


def wait_for(
    workers: Workers, limit: float, stop: Stop, ended: Sequence[str]
) -> list[str]:
    """Returns the life of each worker (see `control_port`) once all answer and have no
    driver; [] after a signal.

    Args:
      workers: to wait for.
      limit: in seconds.
      stop: whether a signal has come.
      ended: lives whose driver has been killed; workers that have not detected it are
        asked to release the driver.

    Raises:
      ClusterError: not all are available after `limit` seconds.
    """
    deadline = time.monotonic() + limit
    while not stop.signal_number:
        workers.restart_lost()
        states = [
            _state(address, min(PATIENCE, limit), ended)
            for address in workers.addresses
        ]
        if not any("why" in state for state in states):
            return [state["life"] for state in states]
        if time.monotonic() > deadline:
            raise _unavailable(workers.addresses, states, limit)
        time.sleep(_TICK)
    return []


def _unavailable(
    addresses: Sequence[Address], states: Sequence[dict[str, str]], limit: float
) -> ClusterError:
    lines = [
        f"worker {i} at {address}: {state.get('why', 'there')}"
        for i, (address, state) in enumerate(zip(addresses, states))
    ]
    return ClusterError(
        explain_error(
            f"not all workers were there and free after {limit:g} s.",
            workers="\n".join(lines),
            way_out="Start those that are missing, or wait longer: --wait=SECONDS.",
        )
    )


def _state(address: Address, timeout: float, ended: Sequence[str]) -> dict[str, str]:
    """Returns the life of a worker, or why it is not available."""
    try:
        state = ask(address.control_address, timeout)
        if state["life"] in ended and state["driver"]:
            release_driver(address.control_address, state["life"], timeout)
    except OSError as error:
        return {"why": f"no answer ({error})"}
    if state["driver"]:
        return {"why": f"taken by the driver {state['driver']}"}
    return {"life": state["life"]}


def _run(
    command: Sequence[str],
    workers: Workers,
    lives: Sequence[str],
    limits: Limits,
    stop: Stop,
) -> End:
    """Starts the driver, and returns how it ended or why it was killed."""
    with tempfile.TemporaryDirectory(prefix="meshtf_") as folder:
        path = Path(folder, "beats")
        driver = Child(
            with_cluster(command, workers.addresses), environment={VARIABLE: str(path)}
        )
        monitors = [
            WorkerMonitor(f"worker {i}", address, life, limits.timeout)
            for i, (address, life) in enumerate(zip(workers.addresses, lives))
        ]
        stop.driver = driver
        try:
            heartbeat = HeartbeatMonitor(path, limits.start, limits.timeout)
            return _monitor(driver, monitors, heartbeat, limits, stop)
        finally:
            stop.driver = None
            for monitor in monitors:
                monitor.close()
            driver.kill()


def _monitor(
    driver: Child,
    monitors: Sequence[WorkerMonitor],
    heartbeat: HeartbeatMonitor,
    limits: Limits,
    stop: Stop,
) -> End:
    """Waits until the driver ends, is stuck, or has lost a worker."""
    while True:
        code = driver.wait(_TICK)
        lost = _lost(monitors, [monitor.trouble for monitor in monitors])
        if code is None and lost:
            # Workers also restart when a driver ends: give it time to do so.
            code = driver.wait(1.0)
        if code is not None:
            return _ended(code, lost, bool(stop.signal_number))
        if lost:
            return End(LOST, lost)
        if stop.signal_number and time.monotonic() - stop.since > limits.timeout:
            return End(128 + stop.signal_number)
        if trouble := heartbeat.trouble:
            driver.send_signal(signal.SIGUSR1)  # a connected driver prints its stacks
            lost = _lost(monitors, [monitor.check(PATIENCE) for monitor in monitors])
            driver.wait(_TICK)
            if lost:
                return End(LOST, lost)
            fault = f"the driver, process {driver.pid}, is stuck: {trouble}"
            return End(STALLED, fault)


def _lost(monitors: Sequence[WorkerMonitor], troubles: Sequence[str]) -> str:
    """Returns a message about the workers with trouble, or ""."""
    return "; ".join(
        f"{monitor.name} is lost: {trouble}"
        for monitor, trouble in zip(monitors, troubles)
        if trouble
    )


def _ended(code: int, lost: str, stopped: bool) -> End:
    """Returns how a driver ended that was not killed: a signal or a lost worker is a fault.

    Args:
      code: its exit code, or -N for signal N.
      lost: a message about lost workers, or "".
      stopped: whether it was asked to stop.
    """
    if code == LOST and not stopped:
        return End(LOST, lost or "the driver has lost a worker, as it says above")
    if code < 0 and not stopped:
        signal_name = signal.Signals(-code).name
        return End(128 - code, lost or f"the driver was ended by {signal_name}")
    return End(code if code >= 0 else 128 - code)


def with_cluster(command: Sequence[str], addresses: Sequence[Address]) -> list[str]:
    """Returns a command with the addresses of its workers.

    >>> with_cluster(["train", "--steps=2"], [Address("h", 4000)])
    ['train', '--steps=2', '--cluster=h:4000']
    """
    cluster = ",".join(map(str, addresses))
    if any("{cluster}" in argument for argument in command):
        return [argument.replace("{cluster}", cluster) for argument in command]
    return [*command, f"--cluster={cluster}"]


def say(text: str) -> None:
    """Prints a message of the supervisor to stderr."""
    print(f"[supervisor] {text}", file=sys.stderr, flush=True)
