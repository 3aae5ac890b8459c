"""Ctrl-C and SIGTERM, deferred to the end of a step so that a run can save before it
stops.

Example:

    with interrupts_between_steps() as requested_stop:
      for batch in batches:
        ...
        stop = requested_stop()
        if stop is not None:
          raise stop                     # KeyboardInterrupt or Terminated
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

# The exit code after SIGTERM: EX_TEMPFAIL of sysexits.h, "try again later".
SAVED_EXIT_CODE = 75
# Returns the exception to raise after a signal; None before one.
RequestedStop = Callable[[], type[KeyboardInterrupt] | None]


class Terminated(KeyboardInterrupt):
    """Raised after SIGTERM; the same command resumes the run from its last checkpoint."""


@contextlib.contextmanager
def interrupts_between_steps() -> Iterator[RequestedStop]:
    """A context in which Ctrl-C and SIGTERM do not stop the process at once. It yields a
    function that returns the exception type to raise: `Terminated` after SIGTERM,
    KeyboardInterrupt after Ctrl-C, None before a signal.

    After one signal, the old handlers are restored: a second signal stops the process at
    once.
    """
    stop_types: list[type[KeyboardInterrupt]] = []  # of the signals received so far
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # Python delivers signals to the main thread only
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    old_handlers = {signum: signal.getsignal(signum) for signum in signals}

    def restore() -> None:
        """Restores the handlers from before the context."""
        for signum, handler in old_handlers.items():
            signal.signal(signum, handler)

    def handle(signum: int, _frame: object) -> None:
        """Stores the exception type of a signal."""
        if signum == signal.SIGTERM:
            stop_types.append(Terminated)
        else:
            stop_types.append(KeyboardInterrupt)
        restore()
        print(
            "\nStopping after this step; a second signal stops at once.",
            file=sys.stderr,
            flush=True,
        )

    for signum in signals:
        signal.signal(signum, handle)
    try:
        yield lambda: stop_types[0] if stop_types else None
    finally:
        restore()


def terminate_like_interrupt() -> None:
    """Makes SIGTERM raise `Terminated` from now on, as Ctrl-C raises KeyboardInterrupt.

    A command calls it first: so it ends in the same way before and after the training loop,
    and after a second signal within `interrupts_between_steps`.
    """

    def handle(_signum: int, _frame: object) -> None:
        """Raises `Terminated` wherever the program is."""
        raise Terminated

    signal.signal(signal.SIGTERM, handle)
