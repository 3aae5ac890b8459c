"""The checkpoints of a run: in the background by choice, and a run goes on when one
fails.

Example:

    with Saver("runs/lm", keep=2, keep_every=1000, asynchronous=True) as saver:
      for step in ...:
        if step % 200 == 0:
          saver.save(step, variables)
      saver.save(step, variables)
      saver.finish()                      # raises if the last one could not be written
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from meshtf.checkpoints.arguments import check_numbers
from meshtf.checkpoints.step_folders import all_steps, sweep
from meshtf.checkpoints.write import pieces, write
from meshtf.errors import CheckpointWarning, WriteError
from meshtf.names.arguments import as_bool, as_path
from meshtf.runtime.variable import Variable


class Saver:
    """Writes checkpoints into one folder, one at a time. Only one process may have one
    there.

    A checkpoint that cannot be written is told in a warning; what there was before
    stays. If it was written in the background, that is told at the next save or at the
    end.

    Args:
      directory: where the folders of checkpoints are.
      keep: how many of the newest stay.
      keep_every: those of steps that are multiples of it stay as well; 0: no others.
      asynchronous: whether `save` returns at once, and a thread writes what the values
        were then. Values that change before they are written are copied, so this may
        take as much memory as they have.
    """

    def __init__(
        self,
        directory: str,
        keep: int = 2,
        keep_every: int = 0,
        asynchronous: bool = False,
    ) -> None:
        directory = as_path("directory", directory)
        check_numbers(0, keep, keep_every, None)
        as_bool("asynchronous", asynchronous)
        self.directory, self.keep, self.keep_every = directory, keep, keep_every
        self.asynchronous = asynchronous
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._lost = ""  # why the last checkpoint is not there
        sweep(directory)

    @property
    def empty(self) -> bool:
        """Whether there is no checkpoint in its folder."""
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
        """Saves, or begins to; waits for the checkpoint before this one.

        Args:
          step: by which the checkpoint goes.
          variables: what is saved, under which names.
          extra: what JSON can hold, to be saved with them.
        """
        check_numbers(step, self.keep, self.keep_every, extra)
        self.wait()
        self._lost = ""
        parts = pieces(variables, snapshot=self.asynchronous)

        def work() -> None:
            write(
                self.directory,
                step,
                variables,
                parts,
                extra,
                self.keep,
                self.keep_every,
            )
            parts.clear()

        self._thread = threading.Thread(
            target=self._guarded, args=(work,), name=f"save step {step}"
        )
        self._thread.start()
        if not self.asynchronous:
            self.wait()

    def wait(self) -> None:
        """Waits until what was begun is written; warns if it could not be."""
        if self._thread is None:
            return
        self._thread.join()
        self._thread, failure, self._failure = None, self._failure, None
        if isinstance(failure, WriteError):
            self._lost = str(failure)
            warnings.warn(
                f"{failure}\n  The checkpoints before it are there, and the work goes "
                "on.",
                CheckpointWarning,
                stacklevel=2,
            )
        elif failure is not None:
            raise failure

    def finish(self) -> None:
        """Waits until all is written. Raises WriteError if the last checkpoint could
        not be.
        """
        self.wait()
        if self._lost:
            raise WriteError(self._lost)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # told by the thread that waits
            self._failure = error

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.wait()
