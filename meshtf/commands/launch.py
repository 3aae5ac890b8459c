"""Runs a command on local workers, which are started for it and end with it.

    python -m meshtf launch --workers=4 -- \\
        python -m transformer.train --gin_file=lm_stdlib.gin --model_dir=runs/four

It tries out on one machine what will run on several hosts. The command is the driver: it runs
the program on the devices that workers offer. Each worker is a separate process. The flag
--cluster=..., the addresses of the workers, is appended to the command, or replaces {cluster}
in it. With --spmd there are no workers: the command itself runs --workers times, as the
processes of one live mesh, whose programs jax runs. Output lines of workers and processes are
labelled. They end when the command or this process ends, for whatever reason.

Supervision, flags and exit codes are those of `python -m meshtf supervise`; with
--restarts=N, workers that died or hang are restarted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from meshtf.commands import timeouts

_WORKERS = flags.DEFINE_integer("workers", 2, "The number of workers.", lower_bound=1)
_DEVICES = flags.DEFINE_integer(
    "devices_each",
    1,
    "The number of devices that each worker offers of its CPU.",
    lower_bound=1,
)
_SPMD = flags.DEFINE_bool(
    "spmd",
    False,
    "Runs the command once for each worker, as processes of one live mesh "
    '(Mesh.devices = "spmd"), instead of once for all workers.',
)
flags.adopt_module_key_flags(timeouts)  # so that --help shows them


def usage_error(argv: Sequence[str]) -> str:
    """Returns what is wrong with the arguments, or "".

    `main` calls it, and `python -m meshtf` before `main`, to report the error without
    TensorFlow.
    """
    if len(argv) >= 2:
        return ""
    return "launch needs a command:\n  python -m meshtf launch --workers=4 -- COMMAND"


def main(argv: Sequence[str]) -> int:
    """Reads the flags, starts the workers, runs the command, and returns the exit code."""
    from meshtf.cluster.launch import LocalWorkers
    from meshtf.cluster.supervisor import supervise

    message = usage_error(argv)
    if message:
        print(message, file=sys.stderr)
        return 2
    if _SPMD.value:
        from meshtf.cluster.process_group import ProcessGroup, supervise_processes

        count = _WORKERS.value
        group = ProcessGroup(argv[1:], count=count, local=range(count))
        return supervise_processes(group, timeouts.limits())
    workers = LocalWorkers(_WORKERS.value, devices=_DEVICES.value)
    try:
        return supervise(argv[1:], workers, timeouts.limits())
    finally:
        workers.close()
