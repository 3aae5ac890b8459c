"""Several processes that write one checkpoint wait for each other by files in its folder,
which all of them see. They use no collectives of the devices, so a checkpoint can be written
in the background, while the devices train.

    barrier = ProcessBarrier(incomplete)
    barrier.begin()                      # the first process has made the folder
    try:
        ...                              # each process writes its files
    finally:
        barrier.report(error_text)       # "" if there was no error
    if processes().is_first:
        barrier.wait_for_all()           # all processes have written their files
        ...                              # completes the checkpoint and renames the folder
    else:
        barrier.wait_for_end(path)       # the first process has done so
"""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import time
from collections.abc import Callable

from meshtf.runtime.devices.processes import processes
from meshtf.runtime.heartbeat import beat

_POLL_INTERVAL = 0.05  # seconds
_checkpoint_indices = itertools.count()


def common_suffix() -> str:
    """Returns a text of digits that all processes of a run give to the same checkpoint, and
    to no other. It counts the calls, so all processes must call it equally often.
    """
    return f"{processes().token}{next(_checkpoint_indices):06d}"


class ProcessBarrier:
    """A barrier of the processes that write a checkpoint. If there is only one process, it
    makes the folder and waits for nothing.

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
        """Writes a file that says that this process has written its files, or why it could
        not.

        Args:
          error: the message of an error; "": there was none.
        """
        if self._group.count == 1:
            return
        path = self._report_path(self._group.index)
        # Renamed when it is complete, so that nobody reads it before.
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            file.write(error)
        os.rename(f"{path}.tmp", path)

    def wait_for_all(self) -> None:
        """Waits for the reports of all processes, and deletes them.

        Raises:
          OSError: a process could not write its files.
        """
        if self._group.count == 1:
            return
        for index in range(self._group.count):
            path = self._report_path(index)
            self._wait(functools.partial(os.path.exists, path))
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

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Waits until a condition is true; a supervisor ends a wait that is too long."""
        while not condition():
            beat(f"waits for other processes to write {self._folder}")
            time.sleep(_POLL_INTERVAL)
