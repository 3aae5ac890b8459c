"""Several processes that write one checkpoint: they wait for each other by files in its
folder, which all of them see. So a checkpoint can be written beside training steps.

    barrier = ProcessBarrier(incomplete)
    barrier.begin()                      # the first process has made the folder
    try:
        ...                              # each process writes its files
    finally:
        barrier.report(error_text)       # "" if there was no error
    barrier.wait_for_all()               # the first process: all others have written
    ...                                  # it completes the checkpoint and renames the folder
    barrier.wait_for_end(path)           # the others
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable

from meshtf.runtime.devices.processes import processes
from meshtf.runtime.heartbeat import beat

_POLL_INTERVAL = 0.05  # seconds
_counts = itertools.count()


def common_suffix() -> str:
    """Returns a number that all processes of a run give to the same checkpoint, and to no
    other; they call it equally often.
    """
    return f"{processes().token}{next(_counts):06d}"


class ProcessBarrier:
    """The processes that write a checkpoint; nothing, if there is only one.

    Args:
      folder: the folder that the checkpoint has while it is written.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._group = processes()

    def begin(self) -> None:
        """Makes the folder, or waits until the first process has made it."""
        if self._group.is_first:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.makedirs(self._folder)
        else:
            self._wait(lambda: os.path.isdir(self._folder))

    def report(self, error: str) -> None:
        """Says that this process has written its files, or why it could not.

        Args:
          error: the message of an error; "": there was none.
        """
        if self._group.count == 1:
            return
        path = self._report_path(self._group.index)
        # Renamed, so that nobody reads half of it.
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            file.write(error)
        os.rename(f"{path}.tmp", path)

    def wait_for_all(self) -> None:
        """Waits for the reports of all other processes, and deletes them.

        Raises:
          OSError: a process could not write its files.
        """
        for index in range(self._group.count if self._group.count > 1 else 0):
            path = self._report_path(index)
            self._wait(lambda path=path: os.path.exists(path))  # type: ignore[misc]
            with open(path, encoding="utf-8") as file:
                error = file.read()
            os.unlink(path)
            if error:
                raise OSError(f"process {index}: {error}")

    def wait_for_end(self, path: str) -> None:
        """Waits until the first process has completed the checkpoint, or given it up.

        Args:
          path: the path of the complete checkpoint.

        Raises:
          OSError: it has given it up.
        """
        self._wait(lambda: not os.path.isdir(self._folder))
        if not os.path.isdir(path):
            raise OSError("process 0 could not complete it")

    def _report_path(self, index: int) -> str:
        """Returns the path of the report of a process."""
        return os.path.join(self._folder, f"report-{index}")

    def _wait(self, has_come: Callable[[], bool]) -> None:
        """Waits until a condition is true; a supervisor ends a wait that is too long."""
        while not has_come():
            beat(f"waits for other processes to write {self._folder}")
            time.sleep(_POLL_INTERVAL)
