"""Meets the other processes of a program with a live mesh, and ends when one is lost.

    group = join_processes()             # of `python -m meshtf launch --spmd`
    group = join_processes(detect=True)  # of SLURM, Open MPI, Kubernetes, a TPU pod, TF_CONFIG
    print(group.index, group.count)

All processes run the same program, in which each call of a function, and each reading of a
value that is spread over several processes, has to come in all of them, in the same order.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import sys
from collections.abc import Callable
from types import TracebackType

from meshtf.cluster.connect import exit_lost
from meshtf.names.arguments import as_bool
from meshtf.runtime.devices.processes import Processes, processes
from meshtf.runtime.heartbeat import beat
from meshtf.runtime.spmd.live import join_processes as live_processes

# What errors of jax say whose cause is another process, in lower case.
_LOST_PEER = ("gloo", "connection", "coordination service", "heartbeat", "nccl")


def join_processes(detect: bool = False) -> Processes:
    """Meets the other processes of this program, if there are any. To be called at the top
    of a program, before jax is used.

    Args:
      detect: whether the environment tells which processes there are, as under SLURM, Open
        MPI and Kubernetes, or by TF_CONFIG; otherwise `launch` and `supervise` say so by
        environment variables, and without them the program is the only process.

    Returns:
      This process among them.

    Raises:
      ClusterError: the processes do not meet in time, or none were detected.
    """
    as_bool("detect", detect)
    if processes().count > 1:
        return processes()
    beat("meets the other processes")
    if detect:
        live_processes.join_detected()
    else:
        live_processes.join_by_environment()
    return processes()


def any_process(flag: bool) -> bool:
    """Returns whether a flag is true in any process. All processes have to call it, and
    wait for each other.
    """
    return live_processes.any_process(as_bool("flag", flag))


def _prepare_for_faults() -> None:
    """Ends the process with exit code `LOST` at an uncaught error due to a lost process, and
    prints the stack of each thread at SIGUSR1, which a supervisor sends.
    """
    with contextlib.suppress(AttributeError, ValueError):  # not on all systems
        faulthandler.register(signal.SIGUSR1)
    sys.excepthook = functools.partial(_exit_if_lost, sys.excepthook)


# A program may leave out `join_processes`: then its first live mesh meets the others.
live_processes.after_joining.append(_prepare_for_faults)


def _exit_if_lost(
    previous_hook: Callable[..., None],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Handles an uncaught exception, as `sys.excepthook`: ends the process with exit code
    `LOST` if the error is due to a lost process.

    Args:
      previous_hook: the hook for all other exceptions.
      kind: the class of the exception.
      error: the exception.
      trace: the traceback of the exception.
    """
    text = str(error)
    is_of_jax = "JaxRuntimeError" in kind.__name__ or "XlaRuntimeError" in kind.__name__
    is_lost = is_of_jax and any(word in text.lower() for word in _LOST_PEER)
    if not is_lost:
        previous_hook(kind, error, trace)
        sys.stdout.flush()
        os._exit(1)  # jax's shutdown would wait for the others, which wait for this one
    exit_lost(
        "another process of the run was lost.",
        way_out="The same command goes on from its last checkpoint, in all processes; "
        "python -m meshtf launch or supervise --restarts=N sees to it.",
        process=f"{processes().index} of {processes().count}",
        jax=text.splitlines()[0],
    )
