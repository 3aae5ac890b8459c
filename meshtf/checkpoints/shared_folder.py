"""Checks that all hosts of a run see the same folder, since each host writes its shards of
a checkpoint to it.

    check_shared("/shared/runs/lm")           # before a long run that could not be saved
"""

from __future__ import annotations

import os
import tempfile

import tensorflow as tf

from meshtf.errors import CheckpointError, explain_error
from meshtf.names.arguments import as_path
from meshtf.runtime.devices.names import host_cpu, host_of
from meshtf.runtime.devices.resolve import worker_devices


def check_shared(directory: str) -> None:
    """Checks that a folder is the same on all workers that this process drives.

    Raises:
      CheckpointError: workers do not see a file that this process creates in the folder;
        the message names the workers.
    """
    directory = as_path("directory", directory)
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
        raise CheckpointError(
            explain_error(
                "not all workers see the folder of the run.",
                folder=os.path.dirname(path),
                workers="\n".join(failed_hosts),
                way_out=(
                    "Each host writes its part of a checkpoint: name a folder that all "
                    "of them reach by this path, as one of a network file system."
                ),
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
