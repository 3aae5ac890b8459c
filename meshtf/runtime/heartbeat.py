"""Signs of life of a program, for whoever watches it from outside.

    MESHTF_BEATS=/tmp/beats python mine.py       # "41 runs training_step" after the 41st sign

A program gives one before and after each call of a `mtf.function`. A call that hangs
inside of TensorFlow gives none, so another process can tell. From the first sign on, a
thread touches a file beside it, so that a process that stands still is told from one
that is busy. Without the variable nothing is written, and there is no thread.
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
_pulsing: set[str] = set()  # signs of life whose threads have started


def beat(what: str) -> None:
    """Gives a sign of life: `what` says what begins or is done."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    with _lock:  # of two threads the later stays
        if path not in _pulsing:
            _pulsing.add(path)
            _start_pulse(pulse_file(path))
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{next(_count)} {what}")


def pulse_file(path: str | Path) -> Path:
    """Returns the file that is touched again and again, beside that of the signs of
    life.
    """
    return Path(f"{path}.pulse")


def _start_pulse(path: Path) -> None:
    threading.Thread(target=_pulse, args=[path], daemon=True, name="pulse").start()


def _pulse(path: Path) -> None:
    while path.parent.exists():  # else whoever watched is gone
        path.touch()
        time.sleep(PULSE)
