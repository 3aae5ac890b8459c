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
    path = os.path.join(directory, FILE)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode=0o644)
    try:
        try:
            # Raises BlockingIOError instead of waiting, if another process has the lock.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            max_bytes = 4096
            content = os.pread(descriptor, max_bytes, 0)
            raise CheckpointError(
                f"{directory} is in use by {_lock_owner(content)}.\n"
                "  Wait until that run ends, stop it, or take another folder."
            ) from None
        # The process is written only for messages: on a full disk the lock works as well.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_this_process()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _this_process() -> dict[str, Any]:
    """Returns the id and host of the current process, and the current time."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%F %T"),
    }


def _lock_owner(content: bytes) -> str:
    """Returns the process that wrote a lock file, in words.

    Args:
      content: the JSON text that `_this_process` describes; anything if it is damaged.
    """
    try:
        process = json.loads(content)
        pid = process["pid"]
        host = process["host"]
        since = process["since"]
        return f"process {pid} on host {host}, since {since}"
    except (ValueError, KeyError, TypeError):
        return "another process"
