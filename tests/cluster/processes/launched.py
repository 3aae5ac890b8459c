"""A launcher with its workers and command, as tests and campaigns drive it.

Example:

    with Launched(["python", "train.py"], "--workers=2") as launched:
      launched.wait_for("step +20/")
      os.kill(launched.workers[1], signal.SIGKILL)
    launched.code, launched.text
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Of programs that tests start: they may come with another version of jax.
PYTHONPATH = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(
    os.pathsep
)


class Launched:
    """`python -m meshtf launch` (or another command), and what it says.

    Args:
      command: what the workers are for.
      *flags: of the launcher.
      program: a command of meshtf.
      prefix: what runs the program, such as `ip netns exec HOST`.
      env: further environment variables.
    """

    def __init__(
        self,
        command: Sequence[str],
        *flags: str,
        program: str = "launch",
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ | {
            "PYTHONPATH": PYTHONPATH,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "TF_NUM_INTRAOP_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        }
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "meshtf", program, *flags, "--", *command],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )
        self.lines: list[str] = []
        # The process of each worker, or of each process of a live mesh.
        self.workers: dict[int, int] = {}
        self.driver = 0  # the process of the one who drives now
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The launcher's own process."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code, once it has ended."""
        return self._process.poll()

    @property
    def text(self) -> str:
        """All that was said."""
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, seconds: float = 120.0, after: int = 0) -> bool:
        """Returns whether a line comes in time, after the first so many, that has a
        pattern.
        """
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            running = self._reader.is_alive()
            if any(re.search(pattern, line) for line in self.lines[after:]):
                return True
            if not running:
                return False
            time.sleep(0.01)
        return False

    def wait(self, seconds: float = 300.0) -> int:
        """Returns the exit code. Raises TimeoutExpired."""
        code = self._process.wait(seconds)
        self._reader.join(10.0)
        return code

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *error: object) -> None:
        if self.code is None:
            self._process.send_signal(signal.SIGKILL)  # its children end with it
        self.wait(20.0)
        if self._process.stdout and not self._reader.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode(errors="replace").rstrip()
            if match := re.search(r"\[worker (\d+)\] worker at .* process (\d+)", line):
                self.workers[int(match[1])] = int(match[2])
            if match := re.search(r"] process (\d+) of \d+: id (\d+)", line):
                self.workers[int(match[1])] = int(match[2])
            if match := re.search(r"serving the driver .* process (\d+) on", line):
                self.driver = int(match[1])
            self.lines.append(line)
