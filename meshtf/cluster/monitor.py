"""Monitors of workers and the driver: workers answer at their control ports, the driver
writes a heartbeat file.

Example:

    watch = Watch("worker 0", address, life, timeout=60.0)
    watch.trouble        # "" while it answers and has not restarted
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from meshtf.cluster.addresses import Address
from meshtf.cluster.control_port import ask
from meshtf.runtime.heartbeat import PULSE, pulse_file


class WorkerMonitor:
    """Polls a worker's control port in a separate thread.

    Args:
      name: of the worker, for messages.
      address: of the worker.
      life: the id that the worker drew when it started; another id means a restart.
      timeout: seconds without an answer after which it counts as lost.
    """

    def __init__(self, name: str, address: Address, life: str, timeout: float) -> None:
        self.name = f"{name} at {address}"
        self.address = address
        self.trouble = ""
        self._life = life
        self._timeout = timeout
        self._closed = threading.Event()
        self._last_answer = time.monotonic()
        threading.Thread(target=self._watch, daemon=True, name=f"watch {name}").start()

    def close(self) -> None:
        """Stops polling."""
        self._closed.set()

    def check(self, timeout: float) -> str:
        """Returns how the worker fails now, or ""."""
        try:
            state = ask(self.address.control_address, timeout)
        except (ConnectionRefusedError, ConnectionResetError):
            return "its process has ended"
        except OSError as error:
            silent = time.monotonic() - self._last_answer
            if silent < timeout:
                return ""
            return f"it has not answered for {silent:.0f} s ({error})"
        if state["life"] != self._life:
            return "it has started afresh, and nothing of this run is left there"
        self._last_answer = time.monotonic()
        return ""

    def _watch(self) -> None:
        pause = min(1.0, self._timeout / 4)
        while not self.trouble and not self._closed.wait(pause):
            self.trouble = self.check(self._timeout)


class HeartbeatMonitor:
    """Reads the heartbeats that a driver writes to a file (`meshtf.runtime.heartbeat`).

    Args:
      path: of the file.
      start: the limit in seconds of everything before the first call of a function, and
        of first calls, which trace and compile.
      timeout: the limit in seconds of everything else, and of a process that is stopped.
    """

    def __init__(self, path: Path, start: float, timeout: float) -> None:
        now = time.monotonic()
        self._path = path
        self._start = start
        self._timeout = timeout
        self._pulse_timeout = max(timeout, 3 * PULSE)
        self._heartbeat = ""  # the last one, and when it was new
        self._heartbeat_time = now
        self._pulse = 0  # the last one, and when it was new
        self._pulse_time = now

    @property
    def trouble(self) -> str:
        """What the driver has been doing for too long, or ""."""
        now = time.monotonic()
        self._read_files(now)
        activity = self._heartbeat.partition(" ")[2] or "starting"
        if now - self._pulse_time >= self._pulse_timeout:
            limit = self._pulse_timeout
            return f"it has stood still for {limit:g} s; last: {activity}"
        in_call = activity.startswith(("runs ", "ran "))
        limit = self._timeout if in_call else self._start
        if now - self._heartbeat_time >= limit:
            return f"no sign of life for {limit:g} s; last: {activity}"
        return ""

    def _read_files(self, now: float) -> None:
        """Updates the last heartbeat and pulse, and their times."""
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        if text and text != self._heartbeat:
            self._heartbeat = text
            self._heartbeat_time = now
        pulse_path = pulse_file(self._path)
        pulse = pulse_path.stat().st_mtime_ns if pulse_path.exists() else 0
        if not pulse or pulse != self._pulse:
            self._pulse = pulse
            self._pulse_time = now
