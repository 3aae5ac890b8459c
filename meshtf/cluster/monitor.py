"""Whether workers and the driver live: the workers by their doors, the driver by its
beats.

Example:

    watch = Watch("worker 0", address, life, timeout=60.0)
    watch.trouble        # "" as long as it answers, and is the process that it was
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from meshtf.cluster.addresses import Address
from meshtf.cluster.control_port import ask
from meshtf.runtime.heartbeat import PULSE, pulse_file


class WorkerMonitor:
    """Asks a worker's door again and again, in a thread of its own.

    Args:
      name: of the worker, for people.
      address: where it is.
      life: what it calls its present life.
      timeout: after how many seconds without an answer it counts as lost.
    """

    def __init__(self, name: str, address: Address, life: str, timeout: float) -> None:
        self.name, self.address, self.trouble = f"{name} at {address}", address, ""
        self._life, self._timeout, self._end = life, timeout, threading.Event()
        self._seen = time.monotonic()
        threading.Thread(target=self._watch, daemon=True, name=f"watch {name}").start()

    def close(self) -> None:
        """Asks no more."""
        self._end.set()

    def look(self, timeout: float) -> str:
        """Returns what is wrong with the worker now, or ""."""
        try:
            state = ask(self.address.control_address, timeout)
        except (ConnectionRefusedError, ConnectionResetError):
            return "its process has ended"
        except OSError as error:
            silent = time.monotonic() - self._seen
            return (
                f"it has not answered for {silent:.0f} s ({error})"
                if silent >= timeout
                else ""
            )
        if state["life"] != self._life:
            return "it has started afresh, and nothing of this run is left there"
        self._seen = time.monotonic()
        return ""

    def _watch(self) -> None:
        pause = min(1.0, self._timeout / 4)
        while not self.trouble and not self._end.wait(pause):
            self.trouble = self.look(self._timeout)


class HeartbeatMonitor:
    """The signs of life that a driver writes to a file (`meshtf.runtime.heartbeat`).

    Args:
      path: of the file.
      start: the limit, in seconds, of what happens before the first call of a function,
        and of a first call, which traces and compiles.
      timeout: that of everything else, and of a process that stands still whatever it
        does.
    """

    def __init__(self, path: Path, start: float, timeout: float) -> None:
        self._path, self._start, self._timeout = path, start, timeout
        self._still = max(timeout, 3 * PULSE)
        self._last, self._since = "", time.monotonic()
        self._pulse, self._pulsed = 0, time.monotonic()

    @property
    def trouble(self) -> str:
        """What the driver has been doing for too long, or ""."""
        now, path = time.monotonic(), pulse_file(self._path)
        text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        if text and text != self._last:
            self._last, self._since = text, now
        pulse = path.stat().st_mtime_ns if path.exists() else 0
        if not pulse or pulse != self._pulse:
            self._pulse, self._pulsed = pulse, now
        if now - self._pulsed >= self._still:
            return f"it has stood still for {self._still:g} s; last: {self._what}"
        limit = (
            self._timeout if self._what.startswith(("runs ", "ran ")) else self._start
        )
        late = now - self._since >= limit
        return f"no sign of life for {limit:g} s; last: {self._what}" if late else ""

    @property
    def _what(self) -> str:
        return self._last.partition(" ")[2] or "starting"
