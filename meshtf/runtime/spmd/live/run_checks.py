"""Checks that indices were in range in the runs of a live mesh. Since a call does not wait for
the devices, the host reads the records of failed checks later.

    run = RunChecks([(checks, array)], writes=True)      # of one call of a program
    add_run(mesh, run)
    raise_ready(mesh)                    # before the next call: without waiting
    check = result_check(mesh, run)
    check()                              # before a result of the call is read: waits
    raise_all(mesh)                      # before a variable is read: waits

A failure is raised once, whatever number of modules noticed it; afterwards only results of its
call raise it.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from meshtf.errors import IndexRangeError
from meshtf.mesh import Mesh
from meshtf.runtime.spmd.live.host_copy import numpy_array
from meshtf.runtime.spmd.module.index_checks import IndexChecks

# What is said of the variables that a call has written.
_WRITTEN = (
    "The devices went on: variables that the call wrote may be NaN now. Restore a checkpoint "
    "before the next call (mtf.checkpoints.restore), or assign them."
)
_NOT_WRITTEN = "The call wrote no variables: the next call may follow at once."


class RunChecks:
    """The checks of one call of a program.

    Args:
      records: for each module of the call, its checks, and the `jax.Array` with the record of
        failed ones (see `IndexChecks`), which the devices may still compute.
      writes: whether the call writes variables.
    """

    def __init__(
        self, records: Sequence[tuple[IndexChecks, Any]], writes: bool
    ) -> None:
        self._records = records
        self._writes = writes
        self._error: tf.errors.OpError | None = None
        # Whether the error was raised once; afterwards only results of the call raise it.
        self._was_raised = False

    @property
    def is_ready(self) -> bool:
        """Whether the devices have computed all records."""
        return all(record.is_ready() for _checks, record in self._records)

    def raise_failure(self) -> None:
        """Raises the error of the first check that failed, if one did. Waits.

        Raises:
          IndexRangeError: an index is out of range.
          DeviceMemoryError: the memory of a device did not suffice for the run.
        """
        records, self._records = self._records, ()
        for checks, record in records:
            if self._error is None:
                # All devices have the same record.
                local = numpy_array(record.addressable_shards[0].data)
                consequence = _WRITTEN if self._writes else _NOT_WRITTEN
                self._error = checks.failure(local, consequence)
        if self._error is not None:
            self._was_raised = True
            raise self._error

    def raise_new_failure(self) -> None:
        """Raises the error as `raise_failure` does, unless it was raised before."""
        if not self._was_raised:
            self.raise_failure()

    def leave_to_results(self) -> None:
        """Has only results of the call raise its error."""
        self._was_raised = True


# For each mesh, the runs whose records the host has not read yet, in the order of the calls.
_runs: weakref.WeakKeyDictionary[Mesh, collections.deque[RunChecks]] = (
    weakref.WeakKeyDictionary()
)


def add_run(mesh: Mesh, run: RunChecks) -> None:
    """Adds the latest run of a mesh."""
    _runs.setdefault(mesh, collections.deque()).append(run)


def result_check(mesh: Mesh, run: RunChecks | None) -> Callable[[], None] | None:
    """Returns a function that raises the error of a call, or else that of an earlier call which
    nobody knows of yet: its variables, and so the results of this call, may be NaN. None: there
    is nothing to check.

    Args:
      mesh: the mesh of the call.
      run: the call, the latest one; None: it checks no indices.
    """
    earlier = [other for other in _runs.get(mesh, ()) if other is not run]
    if run is None and not earlier:
        return None

    def check() -> None:
        for other in earlier:
            other.raise_new_failure()
        if run is not None:
            run.raise_failure()

    return check


def raise_ready(mesh: Mesh) -> None:
    """Raises the error of the first run that failed, among the runs that have ended.

    Raises:
      IndexRangeError: an index was out of range.
    """
    runs = _runs.get(mesh)
    while runs and runs[0].is_ready:
        _raise_first(runs)


def raise_all(mesh: Mesh) -> None:
    """Waits for all runs, and raises the error of the first that failed.

    Raises:
      IndexRangeError: an index was out of range.
    """
    runs = _runs.get(mesh)
    while runs:
        _raise_first(runs)


def _raise_first(runs: collections.deque[RunChecks]) -> None:
    """Removes the first run, and raises its error. The later runs began before anyone could
    know of it: only their results raise errors.
    """
    try:
        runs.popleft().raise_new_failure()
    except IndexRangeError:
        for run in runs:
            run.leave_to_results()
        runs.clear()
        raise
