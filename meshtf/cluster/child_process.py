"""Child processes that end with their parent, whatever ends that, and whose lines have
labels.

    child = Child(["python", "-m", "meshtf", "worker"], label="worker 0")
    child.wait(60.0), child.kill()

On Linux the kernel ends a child whose parent was killed (PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

# Runs a command that is ended when the parent is; the parent may be gone before it says
# so.
_TIED = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
  os._exit(1)
try:
  os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
  sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
"""
_printing = threading.Lock()


class Child:
    """A process in a group of its own; made by the main thread, with whose end it ends.

    Args:
      command: program and arguments.
      label: stands before each line that it prints; None: it prints as this process
        does.
      more: further variables of its environment.
    """

    def __init__(
        self,
        command: Sequence[str],
        label: str | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        tie = [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid())]
        own = label is not None
        self._process = subprocess.Popen(
            [*(tie if sys.platform == "linux" else []), *command],
            env={**os.environ, **(more or {})},
            start_new_session=True,
            stdin=subprocess.DEVNULL if own else None,
            stdout=subprocess.PIPE if own else None,
            stderr=subprocess.STDOUT if own else None,
        )
        self._printer = threading.Thread(target=self._print, args=(label,), daemon=True)
        if own:
            self._printer.start()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, minus the number of a signal that ended it, or None while it
        runs.
        """
        return self._process.poll()

    @property
    def printing(self) -> bool:
        """Whether more of what it says may come."""
        return self._printer.is_alive()

    def wait(self, seconds: float) -> int | None:
        """Returns the exit code, or None where it runs on after so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def send_signal(self, number: int) -> None:
        """Sends it a signal."""
        if self.code is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends it and all in its group, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _print(self, label: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with _printing:
                print(f"[{label}] {line.decode(errors='replace').rstrip()}", flush=True)
