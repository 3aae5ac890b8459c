"""A line on stderr where a program takes long to compile, so that nobody waits in silence.

    notice = CompileNotice("train_step", 8)
    with notice.watch():
        lower()
    with notice.watch():                 # "WARNING:absl:compiling train_step for 8 devices"
        compile()

The line comes once, when all blocks together have taken five seconds. It is a warning of absl's
log, which TensorFlow's users see by default.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from absl import logging

from meshtf.runtime.devices.processes import processes

SECONDS = 5.0  # after which the line comes


class CompileNotice:
    """The line about one program.

    Args:
      program: the name of the program.
      num_devices: the number of devices that it is compiled for.
    """

    def __init__(self, program: str, num_devices: int) -> None:
        devices = "1 device" if num_devices == 1 else f"{num_devices} devices"
        self._text = f"compiling {program} for {devices}"
        self._remaining = SECONDS
        # Of several processes, the first one says it.
        self._is_silent = not processes().is_first

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """A context in which the program is lowered or compiled."""
        if self._is_silent:
            yield
            return
        timer = threading.Timer(self._remaining, self._say)
        timer.daemon = True  # it does not keep an interrupted process
        start = time.perf_counter()
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            elapsed = time.perf_counter() - start
            self._remaining = max(0.0, self._remaining - elapsed)

    def _say(self) -> None:
        """Writes the line."""
        self._is_silent = True
        logging.warning("%s", self._text)
