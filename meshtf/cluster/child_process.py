"""Child processes that end when their parent ends, however it ends, and whose output
lines are labelled.

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

# Runs a command with PR_SET_PDEATHSIG. If the parent ended before that call, exits.
_RUN_TIED = """
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
    """A process in a new process group. Start it in the main thread: it ends when the
    thread that started it ends.

    Args:
      command: program and arguments.
      label: printed before each line of its output; None: it shares the input and output
        of this process.
      environment: variables in addition to those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        label: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        run_tied: list[str] = []
        if sys.platform == "linux":
            run_tied = [sys.executable, "-I", "-S", "-c", _RUN_TIED, str(os.getpid())]
        labelled = label is not None
        self._process = subprocess.Popen(
            [*run_tied, *command],
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            stdin=subprocess.DEVNULL if labelled else None,
            stdout=subprocess.PIPE if labelled else None,
            stderr=subprocess.STDOUT if labelled else None,
        )
        self._printer = threading.Thread(target=self._print, args=(label,), daemon=True)
        if labelled:
            self._printer.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; -N if signal N ended it; None while it runs."""
        return self._process.poll()

    @property
    def printing(self) -> bool:
        """Whether more output may come."""
        return self._printer.is_alive()

    def wait(self, seconds: float) -> int | None:
        """Returns the exit code, or None if it still runs after so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def send_signal(self, signal_number: int) -> None:
        """Sends a signal, if it still runs."""
        if self.code is None:
            self._process.send_signal(signal_number)

    def kill(self) -> None:
        """Kills its process group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def _print(self, label: str) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with _printing:
                print(f"[{label}] {line.decode(errors='replace').rstrip()}", flush=True)
