"""Heartbeats of a program, for a process that monitors it.

    MESHTF_BEATS=/tmp/beats python train.py      # the file has "41 runs training_step"

A program writes a heartbeat before and after each call of a `mtf.function`: a count and
what it does. A call that hangs inside TensorFlow writes none. From the first heartbeat
on, a thread touches the file `/tmp/beats.pulse` every second: a process that is stopped
no longer touches it, one that only waits still does. Without the variable nothing is
written, and there is no thread.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

VARIABLE = "MESHTF_BEATS"
PULSE = 1.0  # seconds between two touches of the file
_count = itertools.count(1)
_lock = threading.Lock()
_pulsing: set[str] = set()  # heartbeat files whose threads have started


def beat(activity: str) -> None:
    """Writes a heartbeat; `activity` says what begins or ends, as "runs train_step"."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    with _lock:  # two threads must not write their heartbeats into one another
        if path not in _pulsing:
            _pulsing.add(path)
            _start_pulse(pulse_file(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{next(_count)} {activity}")


def pulse_file(path: str | Path) -> Path:
    """Returns the file that the thread of a heartbeat file touches."""
    return Path(f"{path}.pulse")


def _start_pulse(path: Path) -> None:
    threading.Thread(
        target=_pulse,
        args=[path],
        daemon=True,
        name="pulse",
    ).start()


def _pulse(path: Path) -> None:
    while path.parent.exists():  # the monitor removes its folder when it ends
        path.touch()
        time.sleep(PULSE)
