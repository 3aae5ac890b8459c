"""Child processes that end when their parent ends, however the parent ends, and whose lines
of output have a label.

    child = Child(["python", "-m", "meshtf", "worker"], label="worker 0")
    code = child.wait(60.0)      # None if it still runs after 60 seconds
    child.kill()

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
from typing import IO, TextIO

# A program that replaces itself by a command after setting PR_SET_PDEATHSIG (1) to SIGKILL
# (9). If the parent ended before this, the program exits.
_RUN_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
  os._exit(1)
try:
  os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
  sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
"""
_print_lock = threading.Lock()  # so that the lines of several children are not mixed


class Child:
    """A process in a new process group. Start it in the main thread: on Linux it ends when
    the thread that started it ends.

    Args:
      command: the program and its arguments.
      label: a text that is printed before each line of the child's output and errors;
        None: the child has the input and output of this process.
      environment: environment variables in addition to those of this process.
    """

    def __init__(
        self,
        command: Sequence[str],
        label: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        wrapper: list[str] = []
        if sys.platform == "linux":
            python = [sys.executable, "-I", "-S", "-c"]  # starts fast: imports little
            wrapper = [*python, _RUN_WITH_PARENT, str(os.getpid())]
        has_label = label is not None
        self._process = subprocess.Popen(
            [*wrapper, *command],
            env={**os.environ, **(environment or {})},
            start_new_session=True,
            stdin=subprocess.DEVNULL if has_label else None,
            stdout=subprocess.PIPE if has_label else None,
            stderr=subprocess.PIPE if has_label else None,
        )
        # Its output goes to the output of this process, its errors and logs to the errors.
        pipes = [(self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr)]
        self._printers = [
            threading.Thread(target=_print_lines, args=(pipe, label, out), daemon=True)
            for pipe, out in pipes
            if pipe is not None
        ]
        for printer in self._printers:
            printer.start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; -N if signal N ended the child; None while it runs."""
        return self._process.poll()

    @property
    def printing(self) -> bool:
        """Whether there may be output that is not printed yet."""
        return any(printer.is_alive() for printer in self._printers)

    def wait(self, seconds: float) -> int | None:
        """Waits until the child ends, for at most `seconds`. Returns the exit code, or None
        if the child still runs.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def send_signal(self, signal_number: int) -> None:
        """Sends a signal to the child, if it still runs."""
        if self.code is None:
            self._process.send_signal(signal_number)

    def kill(self) -> None:
        """Kills the process group of the child."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def _print_lines(pipe: IO[bytes], label: str, out: TextIO) -> None:
    """Prints the lines of a pipe with a label, until the child ends that writes them."""
    with pipe:
        for line in pipe:
            text = line.decode(errors="replace").rstrip()
            with _print_lock:
                print(f"[{label}] {text}", file=out, flush=True)
