"""One run in a folder: the second is refused.

    with only_run("runs/lm"):
      ...                          # train

The lock is the kernel's, on an open file, so that of a process that dies is gone with
it. On a network file system it holds as far as that one carries `flock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator

from meshtf.errors import CheckpointError
from meshtf.names.arguments import as_path

FILE = "run.lock"


@contextlib.contextmanager
def only_run(directory: str) -> Iterator[None]:
    """Holds a folder as long as the `with` block runs; makes it if need be.

    Raises:
      CheckpointError: another process holds it; says which.
    """
    directory = as_path("directory", directory)
    os.makedirs(directory, exist_ok=True)
    file = os.open(os.path.join(directory, FILE), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"{directory} is in use by {_holder(os.pread(file, 4096, 0))}.\n"
                "  Wait until that run ends, stop it, or take another folder."
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(file, 0)
            os.pwrite(
                file,
                json.dumps(
                    {
                        "pid": os.getpid(),
                        "host": socket.gethostname(),
                        "since": time.strftime("%F %T"),
                    }
                ).encode(),
                0,
            )
        yield
    finally:
        os.close(file)


def _holder(text: bytes) -> str:
    try:
        told = json.loads(text)
        return f"process {told['pid']} on host {told['host']}, since {told['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process"
