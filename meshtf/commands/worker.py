"""A worker: it offers the devices of this machine to a driver on another one.

    python -m meshtf worker --port=4000                       # only this machine can reach it
    python -m meshtf worker --port=4000 --bind=10.0.0.7       # so can all that reach this address
    python -m meshtf worker --port=4000 --cpu_devices=2       # its CPU as two devices

A driver is a process that runs its program on the devices of workers. The worker uses two
ports: TensorFlow's, and the next one, its control port, which answers health checks. It serves
one driver after another. When a driver ends, the worker re-executes itself (`os.execv`), and
keeps its process id.

TensorFlow's protocol has no authentication and no encryption: whoever reaches the port
can read and run what you can. So the worker listens on loopback only, unless --bind names
another address. Open it only in networks in which you trust every machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from meshtf.errors import ClusterError

_PORT = flags.DEFINE_integer(
    "port",
    4000,
    "TensorFlow's port; the control port is the next one.",
    lower_bound=1,
    upper_bound=2**16 - 2,
)
_BIND = flags.DEFINE_string(
    "bind",
    "127.0.0.1",
    "The address of this machine to listen on; 0.0.0.0: all addresses.",
)
_DEVICES = flags.DEFINE_integer(
    "cpu_devices", 1, "The number of devices that it offers of its CPU.", lower_bound=1
)


def usage_error(argv: Sequence[str]) -> str:
    """Returns what is wrong with the arguments, or "".

    `python -m meshtf` calls it before `main`, to report the error without TensorFlow.
    """
    if len(argv) < 2:
        return ""
    return f"{argv[1]!r} is not a flag."


def main(argv: Sequence[str]) -> None:
    """Serves until the process is killed. Exits with 1 if it cannot listen on the ports."""
    from meshtf.cluster.addresses import ipv4_address
    from meshtf.cluster.worker import serve

    try:
        address = ipv4_address(_BIND.value)
        serve(_PORT.value, address, devices=_DEVICES.value)
    except (ClusterError, OSError) as error:
        print(f"port {_PORT.value}, address {_BIND.value}: {error}", flush=True)
        sys.exit(1)
