"""Runs on several processes and hosts: workers, the driver that connects to them, and the
supervisor of both.

    python -m meshtf worker --port=4000                            # on each host
    python -m meshtf supervise --cluster=host1:4000,host2:4000 -- COMMAND

A worker is a `tf.distribute.Server`. The driver is a usual meshtf program whose mesh uses
the devices of all workers. A live mesh, whose programs jax runs, has no workers: the program
itself runs in several processes (`join_processes`). In addition to TensorFlow's port, a worker
has a control port (`control_port`), which answers health checks and accepts one driver at a
time.
"""

from meshtf.cluster.connect import connect, connected, lost_workers
from meshtf.cluster.join import any_process, join_processes
from meshtf.runtime.dataset_options import without_autotuning
from meshtf.runtime.devices.processes import Processes, processes

__all__ = [
    "Processes",
    "any_process",
    "connect",
    "connected",
    "join_processes",
    "lost_workers",
    "processes",
    "without_autotuning",
]


def __dir__() -> list[str]:
    return sorted(__all__)
