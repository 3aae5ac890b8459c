"""Monitors with which a supervisor notices lost workers and a stuck driver. Workers answer at
their control ports; the driver writes a heartbeat file.

    monitor = WorkerMonitor("worker 0", address, life, timeout=60.0)
    monitor.trouble        # "" while the worker answers and has not restarted
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from meshtf.cluster.addresses import Address
from meshtf.cluster.control_port import ask
from meshtf.runtime.heartbeat import PULSE as PULSE_INTERVAL
from meshtf.runtime.heartbeat import pulse_file


class WorkerMonitor:
    """Polls a worker's control port in a separate thread.

    Args:
      name: the name of the worker, for messages.
      address: the address of the worker.
      life: the id that the worker drew when it started; another id means that it has
        restarted.
      timeout: seconds without an answer after which the worker counts as lost.

    Attributes:
      trouble: a message, once the worker is lost; before that "". The thread sets it.
    """

    def __init__(self, name: str, address: Address, life: str, timeout: float) -> None:
        self.name = f"{name} at {address}"
        self.address = address
        self.trouble = ""
        self._life = life
        self._timeout = timeout
        self._closed = threading.Event()
        self._last_answer = time.monotonic()
        threading.Thread(target=self._poll, daemon=True, name=f"watch {name}").start()

    def close(self) -> None:
        """Stops polling."""
        self._closed.set()

    def check(self, timeout: float) -> str:
        """Asks the worker for its state, and returns why the worker counts as lost, or "".

        Args:
          timeout: seconds to wait for the answer, and without any answer after which the
            worker counts as lost.
        """
        try:
            state = ask(self.address.control_address, timeout)
        except (ConnectionRefusedError, ConnectionResetError):
            return "its process has ended"
        except OSError as error:
            seconds = time.monotonic() - self._last_answer
            if seconds < timeout:
                return ""
            return f"it has not answered for {seconds:.0f} s ({error})"
        if state["life"] != self._life:
            return "it has started afresh, and nothing of this run is left there"
        self._last_answer = time.monotonic()
        return ""

    def _poll(self) -> None:
        """Checks the worker about every second, until it is lost or `close` is called."""
        interval = min(1.0, self._timeout / 4)
        while not self.trouble and not self._closed.wait(interval):
            self.trouble = self.check(self._timeout)


class HeartbeatMonitor:
    """Reads the two files of a driver's signs of life (`meshtf.runtime.heartbeat`).

    The heartbeat file is written at the start and end of each call of a function: "41 runs
    train_step". A thread touches the pulse file every second, so its time of modification
    stands still only if the process is stopped.

    Args:
      path: the path of the heartbeat file.
      start_timeout: seconds that the driver may take before the first call of a function,
        and for first calls, which trace and compile.
      timeout: seconds that any other activity may take, or the process may be stopped.
    """

    def __init__(self, path: Path, start_timeout: float, timeout: float) -> None:
        now = time.monotonic()
        self._path = path
        self._start_timeout = start_timeout
        self._timeout = timeout
        self._pulse_timeout = max(timeout, 3 * PULSE_INTERVAL)
        self._heartbeat = ""  # the text of the heartbeat file
        self._heartbeat_time = now  # when this text was first read
        self._pulse = 0  # the modification time of the pulse file; 0: there is no file
        self._pulse_time = now  # when this modification time was first read

    @property
    def trouble(self) -> str:
        """A message about what the driver has been doing for too long, or ""."""
        now = time.monotonic()
        self._read_files(now)
        _, _, activity = self._heartbeat.partition(" ")
        activity = activity or "starting"
        if now - self._pulse_time >= self._pulse_timeout:
            limit = self._pulse_timeout
            return f"it has stood still for {limit:g} s; last: {activity}"
        # "runs ..." and "ran ..." are about calls that are already traced; before them are
        # the start and first calls of functions.
        limit = self._start_timeout
        if activity.startswith(("runs ", "ran ")):
            limit = self._timeout
        if now - self._heartbeat_time >= limit:
            return f"no sign of life for {limit:g} s; last: {activity}"
        return ""

    def _read_files(self, now: float) -> None:
        """Reads both files; updates the last heartbeat and pulse, and their times.

        Args:
          now: the current time, on the monotonic clock.
        """
        heartbeat = ""
        if self._path.exists():
            heartbeat = self._path.read_text(encoding="utf-8")
        if heartbeat and heartbeat != self._heartbeat:
            self._heartbeat = heartbeat
            self._heartbeat_time = now
        pulse = 0
        pulse_path = pulse_file(self._path)
        if pulse_path.exists():
            pulse = pulse_path.stat().st_mtime_ns
        # Without a pulse file, before the first heartbeat, no pulse is missing.
        if not pulse or pulse != self._pulse:
            self._pulse = pulse
            self._pulse_time = now
