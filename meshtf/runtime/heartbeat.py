"""Heartbeats of a program, for a process that monitors it.

    MESHTF_BEATS=run/beats python train.py       # the file has "41 runs training_step"

A program writes a heartbeat, a count and its activity, before and after each call of a
`mtf.function`. A call that hangs inside TensorFlow writes none. From the first heartbeat
on, a thread touches the *pulse file* `run/beats.pulse` every second. So a monitor can
distinguish a process that waits, whose pulse file is touched, from a stopped process.
Without the environment variable nothing is written, and there is no thread.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

VARIABLE = (
    "MESHTF_BEATS"  # the environment variable with the path of the heartbeat file
)
PULSE = 1.0  # seconds between two touches of the pulse file
_counts = itertools.count(1)
_lock = threading.Lock()
_pulsing_paths: set[str] = set()  # heartbeat files whose threads have started


def beat(activity: str) -> None:
    """Writes a heartbeat for an activity that begins or ends, such as "runs train_step"."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    # The lock keeps the heartbeats of two threads from mixing.
    with _lock:
        if path not in _pulsing_paths:
            _pulsing_paths.add(path)
            _start_pulse(pulse_file(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{next(_counts)} {activity}")


def pulse_file(path: str | Path) -> Path:
    """Returns the pulse file of a heartbeat file: the file that a thread touches."""
    return Path(f"{path}.pulse")


def _start_pulse(path: Path) -> None:
    """Starts the thread that touches a pulse file."""
    thread = threading.Thread(target=_pulse, args=[path], daemon=True, name="pulse")
    thread.start()


def _pulse(path: Path) -> None:
    """Touches a pulse file every second, as long as its folder exists."""
    while path.parent.exists():  # the monitor removes its folder when it ends
        path.touch()
        time.sleep(PULSE)
