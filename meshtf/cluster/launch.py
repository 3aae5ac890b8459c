"""Workers of this machine, each a separate process, as `python -m meshtf launch` starts
them.

    workers = LocalWorkers(4)
    try:
        code = supervise(command, workers, Limits())
    finally:
        workers.close()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from meshtf.cluster.addresses import LOOPBACK, Address, free_ports
from meshtf.cluster.child_process import Child
from meshtf.cluster.connect import PATIENCE
from meshtf.cluster.control_port import ask


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
