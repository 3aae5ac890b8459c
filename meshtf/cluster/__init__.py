"""Several processes and hosts: workers, the driver's way to them, and who watches over
both.

    python -m meshtf worker --port=4000                            # on each host
    python -m meshtf supervise --cluster=host1:4000,host2:4000 -- COMMAND

A worker is a `tf.distribute.Server`; one driver, a usual meshtf program, runs one mesh
over the devices of all of them. Beside TensorFlow's port, a worker has a door (`control_address`),
where it says that it lives, and takes one driver at a time.
"""

from meshtf.cluster.connect import connect, connected, lost_workers

__all__ = ["connect", "connected", "lost_workers"]
