"""The processes that run one program together.

    processes().index, processes().count         # 0, 1 in a usual program

On a live mesh of several processes each runs the same Python program, and has some of the
devices (`spmd.live.join_processes`). Files are written by the first process, but for
checkpoints, of which each process writes the shards of its devices.
"""

from __future__ import annotations

import dataclasses

_PREFIX = "/process:"


@dataclasses.dataclass(frozen=True)
class Processes:
    """This process among those that run the program.

    Attributes:
      index: the index of this process.
      count: the count of processes.
      token: a random integer that is equal in all processes, and differs between runs.
    """

    index: int = 0
    count: int = 1
    token: int = 0

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files of which there is one for all."""
        return self.index == 0


_processes = Processes()


def processes() -> Processes:
    """Returns this process among those that run the program."""
    return _processes


def set_processes(value: Processes) -> None:
    """Says that several processes run the program; called once, when they have met."""
    global _processes
    _processes = value


def process_host(index: int) -> str:
    """Returns the name of a process where its devices' host is asked for: see `Slot.host`."""
    return f"{_PREFIX}{index}"


def is_of_other_process(host: str) -> bool:
    """Returns whether a host is another process than this one."""
    return host.startswith(_PREFIX) and host != process_host(_processes.index)


def is_process(host: str) -> bool:
    """Returns whether a host is a process, and no device of TensorFlow."""
    return host.startswith(_PREFIX)
