"""Keeps the notes of TensorFlow's native code out of stderr while TensorFlow is imported.

    with without_native_notes():
        import tensorflow

No log level silences these lines, since TensorFlow writes them before it reads the level:
that oneDNN is on, and that there is no GPU. All other lines are written at once, by a process
that filters them, so that nothing is lost if the import ends the program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator

# What these lines begin with: I0000 is the severity, information, and a missing date.
_NOTES = (b"I0000 ", b"WARNING: All log messages before absl::InitializeLog()")
_STDERR = 2
_MAX_WAIT = 2.0  # seconds for the last lines


@contextlib.contextmanager
def without_native_notes() -> Iterator[None]:
    """A context in which such lines are dropped from the process's stderr."""
    if not hasattr(os, "fork") or "tensorflow" in sys.modules:
        yield
        return
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    stderr = os.dup(_STDERR)
    filter_process = os.fork()
    if not filter_process:
        os.close(write_end)
        _filter_lines(read_end, stderr)
        os._exit(0)
    os.close(read_end)
    os.dup2(write_end, _STDERR)
    os.close(write_end)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        _wait_for(filter_process)


def _filter_lines(source: int, target: int) -> None:
    """Copies lines from one file descriptor to another, except for notes, until the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the program answers it
    with os.fdopen(source, "rb") as lines:
        for line in lines:
            if not line.startswith(_NOTES):
                os.write(target, line)


def _wait_for(process: int) -> None:
    """Waits for the filter to write the last lines. It may live on if another process, which
    was started meanwhile, has inherited stderr.
    """
    end = time.monotonic() + _MAX_WAIT
    while time.monotonic() < end:
        if os.waitpid(process, os.WNOHANG) != (0, 0):
            return
        time.sleep(0.005)
