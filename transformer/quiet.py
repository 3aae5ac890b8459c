"""TensorFlow's start without its chatter: that it found no GPU it says whatever the log level is.

    with quiet_start():
      import tensorflow

Its own code writes to file descriptor 2, past `sys.stderr`; so that is where lines are taken out.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator

CHATTER = re.compile(rb"I\d{4} .*\n|WARNING: All log messages before absl::InitializeLog.*\n")


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
  """Keeps back what native code writes to stderr, and writes it at the end without the chatter."""
  terminal = os.dup(2)
  with tempfile.TemporaryFile() as held:
    os.dup2(held.fileno(), 2)
    try:
      yield
    finally:
      os.dup2(terminal, 2)
      os.close(terminal)
      held.seek(0)
      os.write(2, CHATTER.sub(b"", held.read()))
