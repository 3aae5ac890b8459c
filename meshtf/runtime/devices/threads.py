"""How many threads an op may use, where several positions share the processor.

Positions of a mesh run beside each other, and so keep all cores busy. Ops that each
take all cores as well only wait for one another: eight positions on two cores take a
quarter longer for it. So the first mesh of a process shares them out, where
`mtf.configure_process(threads="shared")` asked for it.
"""

from __future__ import annotations

import contextlib
import os

import tensorflow as tf
from absl import logging

_VARIABLE = "TF_NUM_INTRAOP_THREADS"
_sharing = False  # of this process, since it was asked for


def share_from_now_on() -> None:
    """Lets `share_threads` set threads in this process."""
    global _sharing
    _sharing = True


def sharing() -> bool:
    """Whether this process was asked to share its threads."""
    return _sharing


def fixed_by_user() -> str:
    """Returns what says how many threads an op has, by its name, or ""."""
    if _VARIABLE in os.environ:
        return f"{_VARIABLE}={os.environ[_VARIABLE]}"
    if not _sharing and tf.config.threading.get_intra_op_parallelism_threads():
        return "tf.config.threading"
    return ""


def share_threads(positions: int) -> None:
    """Lets an op have its position's share of the cores, at least one.

    Nothing happens where the process was not asked to share, where the user said how
    many (`tf.config.threading`, or TF_NUM_INTRAOP_THREADS), or where TensorFlow has
    started.
    """
    if not _sharing or tf.config.threading.get_intra_op_parallelism_threads():
        return
    threads = threads_of(positions)
    if threads:
        with contextlib.suppress(RuntimeError):  # it has started
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            logging.debug("process: each op has %d threads", threads)


def threads_of(positions: int) -> int:
    """Returns how many threads an op of one of some positions has; 0: TensorFlow's own
    choice.
    """
    if positions == 1 or _VARIABLE in os.environ:
        return 0
    return max(1, _cores() // positions)


def threads_there() -> int:
    """Returns how many threads an op has, as TensorFlow settles it when it starts."""
    told = os.environ.get(_VARIABLE, "")
    return (
        tf.config.threading.get_intra_op_parallelism_threads()
        or (int(told) if told.isdecimal() else 0)
        or _cores()
    )


def _cores() -> int:
    """Returns how many cores this process may use."""
    return (
        len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count() or 1
    )
