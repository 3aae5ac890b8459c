"""Saves the checkpoints of a run, in the background if `asynchronous`. A run continues if a
checkpoint cannot be written.

    with Saver("runs/lm", keep=2, keep_every=1000, asynchronous=True) as saver:
      for step in ...:
        if step % 200 == 0:
          saver.save(step, variables)
      saver.save(step, variables)
      saver.finish()                      # raises if the last checkpoint could not be written
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from meshtf.checkpoints.arguments import check_settings
from meshtf.checkpoints.step_folders import all_steps, delete_incomplete
from meshtf.checkpoints.write import chunks_of, write
from meshtf.errors import CheckpointWarning, WriteError
from meshtf.names.arguments import as_path, check_bools
from meshtf.runtime.devices.processes import processes
from meshtf.runtime.variable import Variable


class Saver:
    """Writes checkpoints into one folder, one at a time. Only one run may have a saver for a
    folder; if several processes run it, each has one.

    If a checkpoint cannot be written, there is a warning, and older checkpoints remain. With
    `asynchronous` the warning comes at the next save or at the end.

    Args:
      directory: the folder of all checkpoints of a run.
      keep: the count of newest checkpoints to keep.
      keep_every: checkpoints whose step is a multiple of it are kept as well; 0: none.
      asynchronous: whether `save` returns at once, while a thread writes the values that
        the variables have at the call. Values that change before they are written are
        copied, which may take as much memory as the variables.
    """

    def __init__(
        self,
        directory: str,
        keep: int = 2,
        keep_every: int = 0,
        asynchronous: bool = False,
    ) -> None:
        directory = as_path("directory", directory)
        check_settings(step=0, keep=keep, keep_every=keep_every, extra=None)
        check_bools(asynchronous=asynchronous)
        self.directory = directory
        self.keep = keep
        self.keep_every = keep_every
        self.asynchronous = asynchronous
        self._thread: threading.Thread | None = None
        # The exception of the thread, which sets it; `wait` takes it after the thread ends.
        self._thread_error: BaseException | None = None
        # Why the last checkpoint could not be written; "": it was written.
        self._failure_message = ""
        if processes().is_first:
            delete_incomplete(directory)

    def __repr__(self) -> str:
        return f"<Saver to {self.directory!r}: keeps {self.keep}>"

    @property
    def empty(self) -> bool:
        """Whether there is no checkpoint in the folder."""
        return not all_steps(self.directory)

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self,
        step: int,
        variables: Mapping[str, Variable],
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Saves a checkpoint, or starts to if `asynchronous`. First waits until the previous
        checkpoint is written.

        Args:
          step: the step of the checkpoint, which determines its name and order.
          variables: the variables to save, by the names that they get in the checkpoint.
          extra: data that JSON can represent, to be saved as well.
        """
        check_settings(
            step=step, keep=self.keep, keep_every=self.keep_every, extra=extra
        )
        self.wait()
        self._failure_message = ""
        # The values to write, as slices. The thread reads values only from these chunks;
        # from `variables` it reads names and shapes.
        chunks = chunks_of(variables, snapshot=self.asynchronous)

        def write_checkpoint() -> None:
            """Writes the checkpoint, in the thread; stores an exception."""
            try:
                write(
                    self.directory,
                    step,
                    variables=variables,
                    chunks=chunks,
                    extra=extra,
                    keep=self.keep,
                    keep_every=self.keep_every,
                )
                chunks.clear()  # frees copies that were not needed
            except BaseException as error:  # `wait` warns or raises
                self._thread_error = error

        # Without `asynchronous` it is a thread, too, so that `wait` handles all errors.
        self._thread = threading.Thread(
            target=write_checkpoint, name=f"save step {step}"
        )
        self._thread.start()
        if not self.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Waits until the current checkpoint is written; warns if it could not be written.

        An exception other than WriteError is raised.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        error = self._thread_error
        self._thread_error = None
        if isinstance(error, WriteError):
            self._failure_message = str(error)
            warnings.warn(
                f"{error}\n  The checkpoints before it are there, and the work goes "
                "on.",
                CheckpointWarning,
                stacklevel=2,
            )
        elif error is not None:
            raise error

    def finish(self) -> None:
        """Waits until the current checkpoint is written.

        Raises:
          WriteError: the last checkpoint could not be written.
        """
        self.wait()
        if self._failure_message:
            raise WriteError(self._failure_message)

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wait()
