"""The processes that run one program together.

    processes().index, processes().count         # 0, 1 in a usual program

A *live* mesh, on whose devices jax runs programs, may have devices of several processes.
Then each process runs the same Python program (`spmd.live.join_processes`). The first
process writes all files, except that each process writes the shards of its devices to
checkpoints.
"""

from __future__ import annotations

import dataclasses

_PREFIX = "/process:"  # of names of processes


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among those that run the program.

    Attributes:
      index: the index of this process.
      count: the number of processes.
      token: a random integer that is equal in all processes, and differs between runs.
    """

    index: int = 0
    count: int = 1
    token: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process is the first one, which writes the files that all share."""
        return self.index == 0


_processes = Processes()


def processes() -> Processes:
    """Returns this process among those that run the program."""
    return _processes


def set_processes(value: Processes) -> None:
    """Sets the result of `processes`; called once, when several processes have connected."""
    global _processes
    _processes = value


def process_host(index: int) -> str:
    """Returns the name of the host of a process's devices, as in `Slot.host`."""
    return f"{_PREFIX}{index}"


def is_of_other_process(host: str) -> bool:
    """Returns whether a host is a process of the program, but not this process."""
    return host.startswith(_PREFIX) and host != process_host(_processes.index)


def is_process(host: str) -> bool:
    """Returns whether the name of a host is that of a process, not of a TensorFlow device."""
    return host.startswith(_PREFIX)
