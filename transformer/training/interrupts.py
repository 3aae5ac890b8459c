"""Ctrl-C and SIGTERM between two steps: what was learned is saved before a run stops.

Example:

    with interrupts_between_steps() as asked:
      for batch in batches:
        ...
        if stop := asked():
          raise stop                     # KeyboardInterrupt or Terminated
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

SAVED = 75  # the exit code after SIGTERM: EX_TEMPFAIL of sysexits.h, "try again later"
Asked = Callable[[], type[KeyboardInterrupt] | None]


class Terminated(KeyboardInterrupt):
    """SIGTERM came; what was learned is saved, and the same command goes on."""


@contextlib.contextmanager
def interrupts_between_steps() -> Iterator[Asked]:
    """Gives a function that returns what to raise once a signal came, else None.

    The signal SIGTERM wants `Terminated`, Ctrl-C KeyboardInterrupt; a second one stops
    at once.
    """
    heard: list[type[KeyboardInterrupt]] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # only the main thread hears signals
        return
    before = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hear(number: int, _: object) -> None:
        heard.append(Terminated if number == signal.SIGTERM else KeyboardInterrupt)
        restore()
        print(
            "\nStopping after this step; once more stops at once.",
            file=sys.stderr,
            flush=True,
        )

    for number in before:
        signal.signal(number, hear)
    try:
        yield lambda: heard[0] if heard else None
    finally:
        restore()


def terminate_like_interrupt() -> None:
    """Lets SIGTERM raise `Terminated` from now on, as Ctrl-C raises
    KeyboardInterrupt.
    """

    def hear(*_: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, hear)
