"""Processes with one live mesh: the same command several times, once for each process, which
meet by `jax.distributed` (`meshtf.runtime.spmd.live.join_processes`).

    group = ProcessGroup(command, count=4, local=range(4))
    exit_code = supervise_processes(group, Limits(restarts=3))

A live mesh is one whose programs jax runs. Each process drives some of its devices, and no
process can go on without the others. So after a fault all of them are killed, and started
again; they continue from their last checkpoint.
"""

from __future__ import annotations

import dataclasses
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from meshtf.cluster.addresses import LOOPBACK, free_ports
from meshtf.cluster.child_process import Child
from meshtf.cluster.connect import LOST
from meshtf.cluster.monitor import HeartbeatMonitor
from meshtf.cluster.supervisor import (
    STALLED,
    Limits,
    RunResult,
    StopSignals,
    is_restarted,
    print_message,
)
from meshtf.runtime.heartbeat import VARIABLE
from meshtf.runtime.spmd.live.join_processes import (
    COORDINATOR,
    PROCESS,
    TIMEOUT,
    WAIT,
)

_POLL_INTERVAL = 0.2  # seconds between checks of the processes
# When one process has ended with an error, the seconds that the others have to end by
# themselves: the first to end is often not the one that failed.
_GRACE_PERIOD = 2.0


@dataclasses.dataclass(frozen=True)
class ProcessGroup:
    """The processes of a run that this machine starts.

    Attributes:
      command: the program and its arguments.
      count: the count of processes of the run, on all machines.
      local: the indices of those that are started here.
      coordinator: the address at which process 0 listens; "": a free port of this machine,
        a new one for each start.
    """

    command: Sequence[str]
    count: int
    local: Sequence[int]
    coordinator: str = ""


@dataclasses.dataclass(frozen=True)
class _Process:
    """A process that was started.

    Attributes:
      index: its index in the run.
      child: the process.
      heartbeat: the monitor of its heartbeats.
    """

    index: int
    child: Child
    heartbeat: HeartbeatMonitor

    @property
    def name(self) -> str:
        """The process in words."""
        return f"process {self.index} (id {self.child.pid})"

    @property
    def exit_code(self) -> int:
        """The exit code, -N after signal N; 0 while the process runs."""
        return self.child.code or 0


def supervise_processes(group: ProcessGroup, limits: Limits) -> int:
    """Runs the processes until they end without a fault, or no restart is left.

    Returns:
      The exit code of the first process that failed; 0, STALLED, or 128 + N for signal N.
    """
    stop_signals = StopSignals()
    num_faults = 0
    while True:
        result = _run(group, limits, stop_signals)
        if not result.fault or stop_signals.signal_number:
            return result.code
        num_faults += 1
        plan = "all processes start again and go on from the last checkpoint"
        if not is_restarted(result, num_faults, limits.restarts, plan):
            return result.code


def _run(group: ProcessGroup, limits: Limits, stop_signals: StopSignals) -> RunResult:
    """Starts the processes, and waits until they end or have to be killed."""
    with tempfile.TemporaryDirectory(prefix="meshtf_") as folder:
        coordinator = group.coordinator
        if not coordinator:
            (port,) = free_ports(1)
            coordinator = f"{LOOPBACK}:{port}"
        processes: list[_Process] = []
        stop_signals.drivers = []
        try:
            for index in group.local:
                process = _start(group, index, coordinator, limits, Path(folder))
                processes.append(process)
                stop_signals.drivers.append(process.child)
            return _monitor(processes, limits, stop_signals)
        finally:
            stop_signals.drivers = []
            for process in processes:
                process.child.kill()


def _start(
    group: ProcessGroup, index: int, coordinator: str, limits: Limits, folder: Path
) -> _Process:
    """Starts one process.

    Args:
      group: the processes of the run.
      index: the index of the process.
      coordinator: the address at which process 0 listens.
      limits: timeouts.
      folder: the folder of heartbeat files.
    """
    heartbeat_file = folder / f"beats-{index}"
    # Seconds after which jax ends the processes that wait for one that stands still.
    timeout = limits.timeout
    if len(group.local) == group.count:
        # All processes are here, so the supervisor can name the one that stands still. It
        # must come before jax.
        timeout *= 2
    child = Child(
        group.command,
        # The first process prints for all, as a run of one process does.
        label=None if index == group.local[0] else f"process {index}",
        environment={
            VARIABLE: str(heartbeat_file),
            COORDINATOR: coordinator,
            PROCESS: f"{index}/{group.count}",
            TIMEOUT: str(timeout),
            WAIT: str(limits.wait),
        },
    )
    heartbeat = HeartbeatMonitor(
        heartbeat_file, start_timeout=limits.start, timeout=limits.timeout
    )
    print_message(f"process {index} of {group.count}: id {child.pid}")
    return _Process(index, child, heartbeat)


def _monitor(
    processes: Sequence[_Process], limits: Limits, stop_signals: StopSignals
) -> RunResult:
    """Waits until all processes have ended, or one is stuck or was lost."""
    while True:
        time.sleep(_POLL_INTERVAL)
        codes = [process.child.code for process in processes]  # None: it still runs
        if all(code == 0 for code in codes):
            return RunResult(0)
        if any(code not in (0, None) for code in codes):
            _wait_for_all(processes, _GRACE_PERIOD)
            return _exit_result(processes, stopped=bool(stop_signals.signal_number))
        if stop_signals.is_overdue(limits.timeout):
            return RunResult(128 + stop_signals.signal_number)
        troubles = []
        for process in processes:
            # A process that has ended well gives no sign of life, while the others end.
            trouble = process.heartbeat.trouble
            if trouble and process.child.code is None:
                troubles.append(f"{process.name} is stuck: {trouble}")
                process.child.send_signal(signal.SIGUSR1)  # it prints its stacks
        if troubles:
            time.sleep(_POLL_INTERVAL)  # until the stacks are printed
            return RunResult(STALLED, fault="; ".join(troubles))


def _wait_for_all(processes: Sequence[_Process], seconds: float) -> None:
    """Waits until all processes have ended, for at most `seconds`."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.child.wait(max(deadline - time.monotonic(), 0.0))


def _exit_result(processes: Sequence[_Process], stopped: bool) -> RunResult:
    """Returns the result of processes, one of which has ended with an error: a signal is a
    fault, unless they were asked to stop.

    Args:
      processes: the processes.
      stopped: whether they were asked to stop.
    """
    failed_processes = [process for process in processes if process.exit_code != 0]
    killed_processes = [
        process for process in failed_processes if process.exit_code < 0
    ]
    if killed_processes:
        # jax ends a process by SIGABRT when it has lost another one. So a process that
        # another signal has killed is named first: it is the cause.
        killed_processes.sort(key=lambda process: process.exit_code == -signal.SIGABRT)
        cause = killed_processes[0]
        fault = f"{cause.name} was ended by {_signal_name(cause.exit_code)}"
        return RunResult(128 - cause.exit_code, fault="" if stopped else fault)
    for process in failed_processes:
        if process.exit_code == LOST and not stopped:
            return RunResult(LOST, fault=f"{process.name} has lost another process")
    return RunResult(failed_processes[0].exit_code)


def _signal_name(code: int) -> str:
    """Returns the signal that ended a process, in words, such as "SIGKILL"."""
    if code == -signal.SIGABRT:
        return "SIGABRT, as jax does when another process is lost"
    return signal.Signals(-code).name
