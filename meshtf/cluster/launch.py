"""Runs a command on workers of this machine, which are started for it and end with it.

    python -m meshtf launch --workers=4 -- \\
        python -m transformer.train --gin_file=lm_stdlib.gin --model_dir=runs/four

To try out what runs on several hosts: each worker is a process with memory of its own.
The command gets --cluster=... at its end, or where it says {cluster}. Lines of workers
have labels. Workers end whatever ends the command or this process. It is watched like
`python -m meshtf supervise`, whose flags and exit codes these are; with --restarts=N
workers that died or hang are started anew.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from absl import flags

from meshtf.cluster import timeouts
from meshtf.cluster.addresses import LOOPBACK, Address, free_ports
from meshtf.cluster.child_process import Child
from meshtf.cluster.connect import PATIENCE
from meshtf.cluster.control_port import ask
from meshtf.cluster.supervisor import supervise

_WORKERS = flags.DEFINE_integer(
    "workers", 2, "How many workers there are.", lower_bound=1
)
_EACH = flags.DEFINE_integer(
    "devices_each", 1, "As how many devices each offers its CPU.", lower_bound=1
)
flags.adopt_module_key_flags(timeouts)  # so that --help shows them


def main(argv: Sequence[str]) -> int:
    """Reads the flags, starts the workers, runs the command, and returns the
    exit code.
    """
    if len(argv) < 2:
        print(
            "launch needs a command:\n  python -m meshtf launch --workers=4 -- COMMAND",
            file=sys.stderr,
        )
        return 2
    workers = LocalWorkers(_WORKERS.value, _EACH.value)
    try:
        return supervise(argv[1:], workers, timeouts.limits())
    finally:
        workers.close()


def _quiet() -> dict[str, str]:
    """Returns what makes TensorFlow write less while workers start."""
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")
    return {"TF_CPP_MIN_LOG_LEVEL": level}


class LocalWorkers:
    """Workers of this machine.

    Args:
      number: how many.
      devices: as how many devices each offers its CPU.
    """

    def __init__(self, number: int, devices: int = 1) -> None:
        self.addresses: Sequence[Address] = [
            Address(LOOPBACK, port) for port in free_ports(number)
        ]
        self.children: list[Child | None] = [None] * number
        self._devices = devices
        self._answered = [False] * number

    def restart_lost(self) -> None:
        """Starts those that are not there; one that answered once, and does not now, is
        killed.
        """
        for i, address in enumerate(self.addresses):
            child = self.children[i]
            if child is not None and child.code is None and self._lives(i, address):
                continue
            if child is not None:
                child.kill()
            self._answered[i] = False
            self.children[i] = Child(
                [
                    sys.executable,
                    "-m",
                    "meshtf",
                    "worker",
                    f"--port={address.port}",
                    f"--cpu_devices={self._devices}",
                ],
                label=f"worker {i}",
                more=_quiet(),
            )

    def close(self) -> None:
        """Ends all of them."""
        for child in self.children:
            if child is not None:
                child.kill()

    def _lives(self, i: int, address: Address) -> bool:
        try:
            ask(address.control_address, PATIENCE)
        except ConnectionRefusedError:
            return True  # it is on its way up, alone or after a driver
        except OSError:
            return not self._answered[i]
        self._answered[i] = True
        return True
