"""Ctrl-C between two steps: what was learned is saved before a run stops.

    with interrupts_between_steps() as asked:
      for batch in batches:
        ...
        if asked():
          break
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupts_between_steps() -> Iterator[Callable[[], bool]]:
  """Gives a function that returns whether Ctrl-C was pressed; pressed again it stops at once."""
  asked = threading.Event()
  if threading.current_thread() is not threading.main_thread():
    yield asked.is_set                 # only the main thread hears signals
    return
  before = signal.getsignal(signal.SIGINT)

  def hear(*_: object) -> None:
    asked.set()
    signal.signal(signal.SIGINT, before)
    print("\nStopping after this step; Ctrl-C again stops at once.", file=sys.stderr, flush=True)

  signal.signal(signal.SIGINT, hear)
  try:
    yield asked.is_set
  finally:
    signal.signal(signal.SIGINT, before)
