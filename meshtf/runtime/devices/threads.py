"""The number of threads of an op if several mesh positions (elements of the mesh's grid)
share the CPU.

The positions of a mesh run in parallel and keep all cores busy. If, in addition, each op
used all cores, ops would wait for each other: eight positions on two cores then take 25 %
longer. So after `mtf.configure_process(threads="shared")` the first mesh of the process
gives each op the threads of one position.
"""

from __future__ import annotations

import contextlib
import os

import tensorflow as tf
from absl import logging

_VARIABLE = "TF_NUM_INTRAOP_THREADS"  # the environment variable that TensorFlow reads
_sharing = False  # set by `enable_sharing`


def enable_sharing() -> None:
    """Enables `share_threads` in this process."""
    global _sharing
    _sharing = True


def sharing() -> bool:
    """Returns whether positions of a mesh share the threads of this process."""
    return _sharing


def fixed_by_user() -> str:
    """Returns the user's setting of threads per op, such as
    "TF_NUM_INTRAOP_THREADS=2", or "" if there is none.
    """
    if _VARIABLE in os.environ:
        return f"{_VARIABLE}={os.environ[_VARIABLE]}"
    if not _sharing and tf.config.threading.get_intra_op_parallelism_threads():
        return "tf.config.threading"
    return ""


def share_threads(positions: int) -> None:
    """Limits each op to cores / positions threads, at least one.

    Does nothing without `enable_sharing`, if the user has set the number of threads
    (`tf.config.threading` or TF_NUM_INTRAOP_THREADS), or if TensorFlow has started.
    """
    if not _sharing or tf.config.threading.get_intra_op_parallelism_threads():
        return
    threads = threads_of(positions)
    if threads:
        # TensorFlow raises RuntimeError once it has started.
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            logging.debug("process: each op has %d threads", threads)


def threads_of(positions: int) -> int:
    """Returns the number of threads of an op if `positions` mesh positions share the CPU;
    0: TensorFlow's default.
    """
    if positions == 1 or _VARIABLE in os.environ:
        return 0
    return max(1, _cores() // positions)


def op_threads() -> int:
    """Returns the number of threads that TensorFlow gives an op."""
    configured_threads = tf.config.threading.get_intra_op_parallelism_threads()
    if configured_threads:
        return configured_threads
    environment_threads = os.environ.get(_VARIABLE, "")
    if environment_threads.isdecimal() and int(environment_threads) > 0:
        return int(environment_threads)
    return _cores()


def _cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
