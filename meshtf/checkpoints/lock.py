"""A lock that lets only one run use a folder.

    with only_run("runs/lm"):      # raises if another run uses the folder
      ...                          # train

The lock is `flock` on an open file: the kernel releases it when the process ends, however
it ends. On a network file system it works if that file system supports `flock`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

from meshtf.errors import CheckpointError
from meshtf.names.arguments import as_path
from meshtf.runtime.devices.processes import processes

FILE = "run.lock"


@contextlib.contextmanager
def only_run(directory: str) -> Iterator[None]:
    """Locks a folder while the `with` block runs; creates it if it does not exist.

    Raises:
      CheckpointError: another process has locked it; the message names the process.
    """
    directory = as_path("directory", directory)
    os.makedirs(directory, exist_ok=True)
    if not processes().is_first:
        yield  # the first process of the run has locked it for all
        return
    file = os.open(os.path.join(directory, FILE), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"{directory} is in use by {_lock_owner(os.pread(file, 4096, 0))}.\n"
                "  Wait until that run ends, stop it, or take another folder."
            ) from None
        # The process is written only for messages: on a full disk the lock works as well.
        with contextlib.suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(_this_process()).encode(), 0)
        yield
    finally:
        os.close(file)


def _this_process() -> dict[str, Any]:
    """Returns the id and host of the current process, and the current time."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%F %T"),
    }


def _lock_owner(text: bytes) -> str:
    """Returns the process that wrote a lock file, in words.

    Args:
      text: the contents of the file.
    """
    try:
        process = json.loads(text)
        pid = process["pid"]
        host = process["host"]
        since = process["since"]
        return f"process {pid} on host {host}, since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"
