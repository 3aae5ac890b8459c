"""The supervisor: a process that owns deadlines and restarts, while a disposable one
computes.

A call that is blocked inside of TensorFlow cannot be interrupted from within, so what
must not wait for ever is watched from outside, killed where need be, and started again
from its last checkpoint.

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
    """How long is waited for what, in seconds, and how often a run is begun again.

    Args:
      timeout: a worker that does not answer; a call of a function that does not end; a
        driver that was asked to stop.
      start: what a driver does before its first call, and a first call, which traces
        and compiles.
      wait: workers that are not there when a run begins.
      restarts: how many faults are survived.
    """

    timeout: float = 60.0
    start: float = 600.0
    wait: float = 300.0
    restarts: int = 0


class Workers(Protocol):
    """Where workers are, and what can be done for them."""

    @property
    def addresses(self) -> Sequence[Address]:
        """Where they are, in the order of their numbers."""

    def restart_lost(self) -> None:
        """Brings back what is gone, as far as that is possible from here."""


class RemoteWorkers(NamedTuple):
    """Workers that somebody else starts."""

    addresses: Sequence[Address]

    def restart_lost(self) -> None:
        """Nothing can be done from here but to wait."""


class End(NamedTuple):
    """How a run ended: its exit code, and why it is worth another one, or ""."""

    code: int
    fault: str = ""


class Stop:
    """SIGINT and SIGTERM, which are the driver's to hear: it saves, and leaves with its
    own code.
    """

    def __init__(self) -> None:
        self.number, self.since, self.driver = 0, 0.0, None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._hear)

    driver: Child | None

    def _hear(self, number: int, _: object) -> None:
        self.number, self.since = number, time.monotonic()
        if self.driver is not None:
            self.driver.send_signal(number)


def supervise(command: Sequence[str], workers: Workers, limits: Limits) -> int:
    """Runs a command on workers until it ends by itself, or has failed too often.

    Args:
      command: what drives; `--cluster=...` is added to it, or put where it says
        {cluster}.
      workers: where it runs.
      limits: for how long, and how often.

    Returns:
      The command's own exit code, or LOST, STALLED, or 128 and the number of a signal.
    """
    stop, faults = Stop(), 0
    lives: list[str] = []
    while True:
        try:
            lives = wait_for(workers, limits.wait, stop, lives)
        except ClusterError as error:
            say(str(error))
            return LOST
        if stop.number:
            return 128 + stop.number
        end = _run(command, workers, lives, limits, stop)
        if not end.fault or stop.number:
            return end.code
        faults += 1
        left = limits.restarts - faults
        say(end.fault)
        if left < 0:
            say(
                f"the run ends with code {end.code} after {faults} "
                f"fault{'s' * (faults > 1)}; --restarts=N goes on from the last "
                "checkpoint"
            )
            return end.code
        say(
            f"fault {faults}: going on from the last checkpoint once all workers are "
            f"there ({left} restart{'s' * (left != 1)} left)"
        )


def wait_for(
    workers: Workers, limit: float, stop: Stop, ended: Sequence[str]
) -> list[str]:
    """Returns what each worker calls its present life, once all are there and free.

    Args:
      workers: who is asked.
      limit: for how many seconds.
      stop: whether a signal has come.
      ended: lives with a driver that was ended: they are to leave it, if they have not
        noticed.

    Raises:
      ClusterError: they are not after `limit` seconds.
    """
    last = time.monotonic() + limit
    while not stop.number:
        workers.restart_lost()
        states = [
            _state(address, min(PATIENCE, limit), ended)
            for address in workers.addresses
        ]
        if not any("why" in state for state in states):
            return [state["life"] for state in states]
        if time.monotonic() > last:
            raise ClusterError(
                explain_error(
                    f"not all workers were there and free after {limit:g} s.",
                    workers="\n".join(
                        f"worker {i} at {address}: {state.get('why', 'there')}"
                        for i, (address, state) in enumerate(
                            zip(workers.addresses, states)
                        )
                    ),
                    way_out="Start those that are missing, or wait longer: "
                    "--wait=SECONDS.",
                )
            )
        time.sleep(_TICK)
    return []


def _state(address: Address, timeout: float, ended: Sequence[str]) -> dict[str, str]:
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
    """Starts the driver, and returns how it ended, or had to be ended."""
    with tempfile.TemporaryDirectory(prefix="meshtf_") as folder:
        path = Path(folder, "beats")
        driver = Child(
            with_cluster(command, workers.addresses), more={VARIABLE: str(path)}
        )
        watches = [
            WorkerMonitor(f"worker {i}", address, life, limits.timeout)
            for i, (address, life) in enumerate(zip(workers.addresses, lives))
        ]
        stop.driver = driver
        try:
            return _watch(
                driver,
                watches,
                HeartbeatMonitor(path, limits.start, limits.timeout),
                limits,
                stop,
            )
        finally:
            stop.driver = None
            for watch in watches:
                watch.close()
            driver.kill()


def _watch(
    driver: Child,
    watches: Sequence[WorkerMonitor],
    beats: HeartbeatMonitor,
    limits: Limits,
    stop: Stop,
) -> End:
    while True:
        code = driver.wait(_TICK)
        lost = "; ".join(f"{w.name} is lost: {w.trouble}" for w in watches if w.trouble)
        if code is None and lost:
            code = driver.wait(1.0)  # workers start afresh when a driver ends by itself
        if code is not None:
            return _ended(code, lost, bool(stop.number))
        if lost:
            return End(LOST, lost)
        if stop.number and time.monotonic() - stop.since > limits.timeout:
            return End(128 + stop.number)
        if trouble := beats.trouble:
            driver.send_signal(
                signal.SIGUSR1
            )  # a driver that is connected tells where it is
            silent = [
                f"{w.name} is lost: {why}" for w in watches if (why := w.look(PATIENCE))
            ]
            driver.wait(_TICK)
            return (
                End(LOST, "; ".join(silent))
                if silent
                else End(
                    STALLED, f"the driver, process {driver.pid}, is stuck: {trouble}"
                )
            )


def _ended(code: int, lost: str, stopped: bool) -> End:
    """Returns how a driver ended by itself: that of a signal, or of a lost worker, is a
    fault.
    """
    if code == LOST and not stopped:
        return End(LOST, lost or "the driver has lost a worker, as it says above")
    if code < 0 and not stopped:
        return End(
            128 - code, lost or f"the driver was ended by {signal.Signals(-code).name}"
        )
    return End(code if code >= 0 else 128 - code)


def with_cluster(command: Sequence[str], addresses: Sequence[Address]) -> list[str]:
    """Returns a command that knows its workers.

    >>> with_cluster(["train", "--steps=2"], [Address("h", 4000)])
    ['train', '--steps=2', '--cluster=h:4000']
    """
    cluster = ",".join(map(str, addresses))
    if any("{cluster}" in part for part in command):
        return [part.replace("{cluster}", cluster) for part in command]
    return [*command, f"--cluster={cluster}"]


def say(text: str) -> None:
    """Tells people what happens, beside what the driver prints."""
    print(f"[supervisor] {text}", file=sys.stderr, flush=True)
