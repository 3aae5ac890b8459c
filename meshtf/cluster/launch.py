"""Workers on this machine, each a separate process, as `python -m meshtf launch` starts
them.

    workers = LocalWorkers(4)
    try:
        exit_code = supervise(command, workers, Limits())
    finally:
        workers.close()
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from meshtf.cluster.addresses import LOOPBACK, Address, free_ports
from meshtf.cluster.child_process import Child
from meshtf.cluster.connect import ANSWER_TIMEOUT
from meshtf.cluster.control_port import ask


def _log_environment() -> dict[str, str]:
    """Returns the environment variable that makes TensorFlow log less while workers start."""
    level = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3")
    return {"TF_CPP_MIN_LOG_LEVEL": level}


class LocalWorkers:
    """Workers on this machine; none runs until `restart_lost` is called.

    Args:
      count: the count of workers.
      devices: the count of logical devices into which each worker splits its CPU.

    Attributes:
      addresses: the address of each worker.
      children: the process of each worker; None: it has not been started.
    """

    def __init__(self, count: int, devices: int = 1) -> None:
        self.addresses: Sequence[Address] = [
            Address(LOOPBACK, port) for port in free_ports(count)
        ]
        self.children: list[Child | None] = [None] * count
        self._devices = devices
        # Whether each worker has answered since it was started.
        self._answered = [False] * count

    def restart_lost(self) -> None:
        """Starts the workers that do not run. A worker that has answered before, but does
        not answer now, is killed and restarted.
        """
        for i, address in enumerate(self.addresses):
            child = self.children[i]
            if child is not None:
                is_running = child.code is None
                if is_running and self._is_alive(i, address):
                    continue
                child.kill()
            self._answered[i] = False
            command = [sys.executable, "-m", "meshtf", "worker"]
            flags = [f"--port={address.port}", f"--cpu_devices={self._devices}"]
            self.children[i] = Child(
                [*command, *flags], label=f"worker {i}", environment=_log_environment()
            )

    def close(self) -> None:
        """Kills all workers."""
        for child in self.children:
            if child is not None:
                child.kill()

    def _is_alive(self, index: int, address: Address) -> bool:
        """Returns whether a worker, whose process runs, answers or may still be starting.

        Args:
          index: the index of the worker.
          address: its address.
        """
        try:
            ask(address.control_address, timeout=ANSWER_TIMEOUT)
        except ConnectionRefusedError:
            return True  # it is still starting, or restarts after a driver
        except OSError:
            return not self._answered[index]
        self._answered[index] = True
        return True
