"""Signs of life of a program, for whoever watches it from outside.

    MESHTF_BEATS=/tmp/beats python mine.py       # "41 runs training_step" after the 41st sign

A program gives one before and after each call of a `mtf.function`. A call that hangs inside of
TensorFlow gives none, so another process can tell. Without the variable nothing is written.
"""

from __future__ import annotations

import itertools
import os

VARIABLE = "MESHTF_BEATS"
_count = itertools.count(1)


def beat(what: str) -> None:
  """Gives a sign of life: `what` says what begins or is done."""
  path = os.environ.get(VARIABLE)
  if path:
    with open(path, "w", encoding="utf-8") as file:
      file.write(f"{next(_count)} {what}")
