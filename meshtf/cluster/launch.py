"""Runs a command on local workers, which are started for it and end with it.

    python -m meshtf launch --workers=4 -- \\
        python -m transformer.train --gin_file=lm_stdlib.gin --model_dir=runs/four

It tries out on one machine what will run on several hosts: each worker is a separate
process. --cluster=... is appended to the command, or replaces {cluster} in it. Output lines
of workers are labelled. Workers end when the command or this process ends, however it ends.
Supervision, flags and exit codes are those of `python -m meshtf supervise`; with
--restarts=N, workers that died or hang are restarted.
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

_WORKERS = flags.DEFINE_integer("workers", 2, "The number of workers.", lower_bound=1)
_EACH = flags.DEFINE_integer(
    "devices_each",
    1,
    "The number of devices that each worker offers of its CPU.",
    lower_bound=1,
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
    """Returns environment variables that make TensorFlow log less while workers start."""
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")
    return {"TF_CPP_MIN_LOG_LEVEL": level}


class LocalWorkers:
    """Workers of this machine.

    Args:
      count: the number of workers.
      devices: the number of devices that each offers of its CPU.
    """

    def __init__(self, count: int, devices: int = 1) -> None:
        self.addresses: Sequence[Address] = [
            Address(LOOPBACK, port) for port in free_ports(count)
        ]
        self.children: list[Child | None] = [None] * count
        self._devices = devices
        self._answered = [False] * count

    def restart_lost(self) -> None:
        """Starts workers that do not run. A worker that has answered before, but does not
        now, is killed and restarted.
        """
        for i, address in enumerate(self.addresses):
            child = self.children[i]
            if child is not None and child.code is None and self._is_alive(i, address):
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
                environment=_quiet(),
            )

    def close(self) -> None:
        """Kills all workers."""
        for child in self.children:
            if child is not None:
                child.kill()

    def _is_alive(self, i: int, address: Address) -> bool:
        try:
            ask(address.control_address, PATIENCE)
        except ConnectionRefusedError:
            return True  # it is still starting, or restarts after a driver
        except OSError:
            return not self._answered[i]
        self._answered[i] = True
        return True
