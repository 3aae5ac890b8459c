"""Whether all hosts of a run see its folder: each of them writes its part of a
checkpoint there.

Example:

    check_shared("/shared/runs/lm")           # before a run spends hours on what it cannot save
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
    """Refuses a folder that is not the same on all workers that this process drives.

    Raises:
      CheckpointError: some do not see in it what this process puts there; says which.
    """
    directory = as_path("directory", directory)
    hosts = dict.fromkeys(map(host_cpu, worker_devices()))
    if not hosts:
        return
    held, path = tempfile.mkstemp(prefix="seen_by_all.", dir=os.path.abspath(directory))
    try:
        os.fchmod(held, 0o644)
        blind = [host_of(host) for host in hosts if not _sees(host, path)]
    finally:
        os.close(held)
        os.unlink(path)
    if blind:
        raise CheckpointError(
            explain_error(
                "not all workers see the folder of the run.",
                folder=os.path.dirname(path),
                workers="\n".join(blind),
                way_out=(
                    "Each host writes its part of a checkpoint: name a folder that all "
                    "of them reach by this path, as one of a network file system."
                ),
            )
        )


def _sees(host: str, path: str) -> bool:
    try:
        with tf.device(host):
            tf.raw_ops.ReadFile(filename=path).numpy()
    except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError):
        return False
    return True
