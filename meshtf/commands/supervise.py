"""Runs a command on workers, monitors both, and restarts the command when one fails.

    python -m meshtf supervise --cluster=host1:4000,host2:4000 --restarts=3 -- \\
        python -m transformer.train --gin_file=lm_stdlib.gin --model_dir=runs/two_hosts

The command is the driver: it runs its program on the devices that workers, processes on
other hosts, offer. A worker that dies is detected within a second or two; a worker that hangs
or has lost its network, after --timeout. The report names the worker. A driver that hangs in
a call is detected after --timeout as well, and killed. With --restarts=N the command is
restarted up to N times, once all workers are available; it continues from its last checkpoint.

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
flags.adopt_module_key_flags(timeouts)  # so that --help shows them


def usage_error(argv: Sequence[str]) -> str:
    """Returns what is wrong with the arguments, or ""."""
    if _CLUSTER.value and len(argv) >= 2:
        return ""
    return (
        "supervise needs workers and a command:\n"
        "  python -m meshtf supervise --cluster=host1:4000,host2:4000 -- COMMAND"
    )


def main(argv: Sequence[str]) -> int:
    """Reads the flags, runs the command, and returns the exit code."""
    from meshtf.cluster.addresses import parse_cluster
    from meshtf.cluster.supervisor import RemoteWorkers, supervise

    try:
        message = usage_error(argv)
        if message:
            raise ParseError(message)
        workers = RemoteWorkers(parse_cluster(_CLUSTER.value))
    except ParseError as error:
        print(error, file=sys.stderr)
        return 2
    return supervise(argv[1:], workers, timeouts.limits())
