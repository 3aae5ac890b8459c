"""Signs of life of a program, for whoever watches it from outside.

    MESHTF_BEATS=/tmp/beats python mine.py       # "41 runs training_step" after the 41st sign

A program gives one before and after each call of a `mtf.function`. A call that hangs
inside of TensorFlow gives none, so another process can tell. A thread touches a file
beside it, so that a process that stands still is told from one that is busy. Without
the variable nothing is written.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

VARIABLE = "MESHTF_BEATS"
PULSE = 1.0  # seconds between two touches of the file
_count, _lock = itertools.count(1), threading.Lock()


def beat(what: str) -> None:
    """Gives a sign of life: `what` says what begins or is done."""
    path = os.environ.get(VARIABLE)
    if path:
        with (
            _lock,
            open(path, "w", encoding="utf-8") as file,
        ):  # of two threads the later stays
            file.write(f"{next(_count)} {what}")


def pulse_file(path: str | Path) -> Path:
    """Returns the file that is touched again and again, beside that of the signs of
    life.
    """
    return Path(f"{path}.pulse")


def _pulse(path: Path) -> None:
    while path.parent.exists():  # else whoever watched is gone
        path.touch()
        time.sleep(PULSE)


if os.environ.get(VARIABLE):
    threading.Thread(
        target=_pulse,
        args=[pulse_file(os.environ[VARIABLE])],
        daemon=True,
        name="pulse",
    ).start()
