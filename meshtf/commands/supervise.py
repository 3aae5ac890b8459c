"""Runs a command on workers, monitors both, and restarts the command when one fails.

    python -m meshtf supervise --cluster=host1:4000,host2:4000 --restarts=3 -- \\
        python -m transformer.train --gin_file=lm_stdlib.gin --model_dir=runs/two_hosts

The command is the driver: it runs its program on the devices that workers, processes on
other hosts, offer. A worker that dies is detected within a second or two; a worker that hangs
or has lost its network, after --timeout. The report names the worker. A driver that hangs in
a call is detected after --timeout as well, and killed. With --restarts=N the command is
restarted up to N times, once all workers are available; it continues from its last checkpoint.

A live mesh (Mesh.devices = "spmd"), whose programs jax runs, has no workers: each host runs and
supervises a process of the command, and all of them restart when one is lost:

    python -m meshtf supervise --coordinator=host1:4000 --process=0/2 --restarts=3 -- COMMAND

Exit code: that of the command; 69 if a worker was lost, 70 if the driver was stuck, 128 + N
if signal N ended the driver, in each case with no restart left; 2 without workers or a
command.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from meshtf.commands import timeouts
from meshtf.errors import ParseError

# `allow_override`, since supervised commands may define a flag of this name as well.
_CLUSTER = flags.DEFINE_string(
    "cluster", None, "The workers: host1:port,host2:port.", allow_override=True
)
_COORDINATOR = flags.DEFINE_string(
    "coordinator",
    None,
    "For a live mesh: host:port, where process 0 listens. Other machines that reach the "
    "port can take part in the run: name an address of a private network.",
)
_PROCESS = flags.DEFINE_string(
    "process", None, "For a live mesh: which process this is, such as 0/4."
)
flags.adopt_module_key_flags(timeouts)  # so that --help shows them


def usage_error(argv: Sequence[str]) -> str:
    """Returns what is wrong with the arguments, or "".

    `main` calls it, and `python -m meshtf` before `main`, to report the error without
    TensorFlow.
    """
    has_run = _CLUSTER.value or (_COORDINATOR.value and _PROCESS.value)
    if has_run and len(argv) >= 2:
        return ""
    return (
        "supervise needs workers and a command, or the processes of a live mesh:\n"
        "  python -m meshtf supervise --cluster=host1:4000,host2:4000 -- COMMAND\n"
        "  python -m meshtf supervise --coordinator=host1:4000 --process=0/2 -- COMMAND"
    )


def main(argv: Sequence[str]) -> int:
    """Reads the flags, runs the command, and returns the exit code."""
    from meshtf.cluster.addresses import parse_cluster
    from meshtf.cluster.supervisor import RemoteWorkers, supervise

    try:
        message = usage_error(argv)
        if message:
            raise ParseError(message)
        if _COORDINATOR.value:
            return _supervise_process(argv[1:])
        workers = RemoteWorkers(parse_cluster(_CLUSTER.value))
    except ParseError as error:
        print(error, file=sys.stderr)
        return 2
    return supervise(argv[1:], workers, timeouts.limits())


def _supervise_process(command: Sequence[str]) -> int:
    """Runs and supervises one process of a live mesh, and returns the exit code.

    Raises:
      ParseError: the flag --process has another form than 0/4.
    """
    from meshtf.cluster.process_group import ProcessGroup, supervise_processes

    index, _slash, count = _PROCESS.value.partition("/")
    are_numbers = index.isdecimal() and count.isdecimal()
    if not are_numbers or int(index) >= int(count):
        raise ParseError(
            f"--process={_PROCESS.value}: write 0/4 for the first of four."
        )
    group = ProcessGroup(
        command,
        count=int(count),
        local=[int(index)],
        coordinator=_COORDINATOR.value,
    )
    return supervise_processes(group, timeouts.limits())
