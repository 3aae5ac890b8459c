"""Checks that indices were in range in the runs of a live mesh. Since a call does not wait for
the devices, the host reads the record of failed checks later.

    run = RunChecks(checks, array)       # of one call of a program
    add_run(mesh, run)
    raise_ready(mesh)                    # before the next call: without waiting
    run.raise_failure()                  # before a result of the call is read: waits
    raise_all(mesh)                      # before a variable is read: waits
"""

from __future__ import annotations

import collections
import weakref
from typing import Any

import tensorflow as tf

from meshtf.mesh import Mesh
from meshtf.runtime.spmd.live.host_copy import numpy_array
from meshtf.runtime.spmd.module.index_checks import IndexChecks


class RunChecks:
    """The checks of one call of a program.

    Args:
      checks: the checks of the program.
      record: the `jax.Array` with the record of failed checks (see `IndexChecks`), which the
        devices may still compute.
    """

    def __init__(self, checks: IndexChecks, record: Any) -> None:
        self._checks = checks
        self._record: Any | None = record
        self._error: tf.errors.OpError | None = None
        # Whether the error was raised once; afterwards only results of the call raise it.
        self._was_raised = False

    @property
    def is_ready(self) -> bool:
        """Whether the devices have computed the record."""
        return self._record is None or bool(self._record.is_ready())

    def raise_failure(self) -> None:
        """Raises the error of the first check that failed, if one did. Waits.

        Raises:
          InvalidArgumentError: an index is out of range.
          DeviceMemoryError: the memory of a device did not suffice for the run.
        """
        if self._record is not None:
            # All devices have the same record.
            local = self._record.addressable_shards[0].data
            self._error = self._checks.failure(numpy_array(local))
            self._record = None
        if self._error is not None:
            self._was_raised = True
            raise self._error

    def raise_new_failure(self) -> None:
        """Raises the error as `raise_failure` does, unless it was raised before."""
        if not self._was_raised:
            self.raise_failure()


# For each mesh, the runs whose records the host has not read yet, in the order of the calls.
_runs: weakref.WeakKeyDictionary[Mesh, collections.deque[RunChecks]] = (
    weakref.WeakKeyDictionary()
)


def add_run(mesh: Mesh, run: RunChecks) -> None:
    """Adds the latest run of a mesh."""
    _runs.setdefault(mesh, collections.deque()).append(run)


def raise_ready(mesh: Mesh) -> None:
    """Raises the error of the first run that failed, among the runs that have ended.

    Raises:
      InvalidArgumentError: an index was out of range.
    """
    runs = _runs.get(mesh)
    while runs and runs[0].is_ready:
        runs.popleft().raise_new_failure()


def raise_all(mesh: Mesh) -> None:
    """Waits for all runs, and raises the error of the first that failed.

    Raises:
      InvalidArgumentError: an index was out of range.
    """
    runs = _runs.get(mesh)
    while runs:
        runs.popleft().raise_new_failure()
