"""TensorFlow's start without its chatter, where that was asked for.

    TF_CPP_MIN_LOG_LEVEL=1 python mine.py      # hides notes of TensorFlow's native code
    python -m meshtf selfcheck                 # meshtf's own programs ask for it by themselves

That it found no GPU TensorFlow notes at any log level, from code that writes to file
descriptor 2, past `sys.stderr`; so that is where lines are taken out, while TensorFlow
is imported here. meshtf imports this module before all others.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator

CHATTER = re.compile(
    rb"I\d{4} .*\n|WARNING: All log messages before absl::InitializeLog.*\n"
)


@contextlib.contextmanager
def quiet_start() -> Iterator[None]:
    """Keeps back what native code writes to stderr, and writes it at the end without
    the chatter.
    """
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


if sys.argv[:1] == ["-m"]:  # as long as `python -m meshtf` imports the package
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") not in ("", "0"):
    with quiet_start():
        import tensorflow  # noqa: F401
