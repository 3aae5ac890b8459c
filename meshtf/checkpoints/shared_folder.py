"""Checks that all hosts of a run see the same folder, since each host writes its shards of
a checkpoint to it.

    check_shared("/shared/runs/lm")           # before a long run that could not be saved
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import tensorflow as tf

from meshtf.errors import CheckpointError, explain_error
from meshtf.names.arguments import as_path
from meshtf.runtime.devices.names import host_cpu, host_of
from meshtf.runtime.devices.processes import processes
from meshtf.runtime.devices.resolve import worker_devices

_TIMEOUT = 60.0  # seconds to wait for the files of other processes
_POLL_INTERVAL = 0.05  # seconds


def check_shared(directory: str) -> None:
    """Checks that a folder is the same on all workers that this process drives, and in all
    processes that run the program.

    Raises:
      CheckpointError: workers or processes do not see a file that this process creates in
        the folder; the message names them.
    """
    directory = as_path("directory", directory)
    if processes().count > 1:
        _check_processes(os.path.abspath(directory))
    # The CPU device of each host, once.
    hosts = dict.fromkeys(map(host_cpu, worker_devices()))
    if not hosts:
        return
    file, path = tempfile.mkstemp(prefix="seen_by_all.", dir=os.path.abspath(directory))
    try:
        os.fchmod(file, 0o644)
        failed_hosts = [host_of(host) for host in hosts if not _can_read(host, path)]
    finally:
        os.close(file)
        os.unlink(path)
    if failed_hosts:
        raise _not_shared(os.path.dirname(path), "workers", failed_hosts)


def _check_processes(folder: str) -> None:
    """Checks that all processes that run the program see a folder. Each process makes a first
    file there, and a second one when it sees the first files of all processes. When all
    second files are there, the first process deletes the files.

    Raises:
      CheckpointError: this process does not see the files of some processes.
    """
    group = processes()
    prefix = os.path.join(folder, f"seen_by_all.{group.token}")
    first_files = [f"{prefix}.file-{k}" for k in range(group.count)]
    second_files = [f"{prefix}.seen-{k}" for k in range(group.count)]
    Path(first_files[group.index]).touch()
    _wait_for(first_files, folder)
    Path(second_files[group.index]).touch()
    if group.is_first:
        _wait_for(second_files, folder)
        for path in (*first_files, *second_files):
            os.unlink(path)


def _wait_for(paths: list[str], folder: str) -> None:
    """Waits until files are there, one of each process.

    Args:
      paths: the paths of the files, by the index of the process.
      folder: the folder of the files, for the error.

    Raises:
      CheckpointError: a file is not there in time.
    """
    deadline = time.monotonic() + _TIMEOUT
    while time.monotonic() < deadline:
        if all(os.path.exists(path) for path in paths):
            return
        time.sleep(_POLL_INTERVAL)
    missing = [k for k, path in enumerate(paths) if not os.path.exists(path)]
    raise _not_shared(folder, "processes", [f"process {k}" for k in missing])


def _not_shared(folder: str, kind: str, names: list[str]) -> CheckpointError:
    """Returns the error for a folder that some hosts do not see.

    Args:
      folder: the folder.
      kind: "workers" or "processes".
      names: the names of those that do not see it.
    """
    return CheckpointError(
        explain_error(
            f"not all {kind} see the folder of the run.",
            folder=folder,
            **{kind: "\n".join(names)},
            way_out="Each host writes its part of a checkpoint: name a folder that all of "
            "them reach by this path, as one of a network file system.",
        )
    )


def _can_read(host: str, path: str) -> bool:
    """Returns whether a host can read a file."""
    try:
        with tf.device(host):
            tf.raw_ops.ReadFile(filename=path).numpy()
    except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError):
        return False
    return True
