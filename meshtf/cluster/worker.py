"""A worker: it offers the devices of this machine to a driver elsewhere.

    python -m meshtf worker --port=4000                       # only this machine can reach it
    python -m meshtf worker --port=4000 --bind=10.0.0.7       # so can all that reach this address
    python -m meshtf worker --port=4000 --cpu_devices=2       # its CPU as two devices

It takes two ports: TensorFlow's own, and the next one, its door, where it says that it
lives. It serves one driver after another, and starts afresh, as a new process under the
same number, when one has gone.

TensorFlow's protocol has no authentication and no encryption: whoever reaches the port
can read and run what you can. So the worker hears loopback only, unless it is told
otherwise. Open it only in networks in which you trust every machine.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Sequence

import tensorflow as tf
from absl import flags

from meshtf.cluster.addresses import ANY, LOOPBACK, ipv4_address, is_loopback
from meshtf.cluster.control_port import Answer, ControlPort
from meshtf.cluster.ip_filter import accept_only
from meshtf.errors import ClusterError
from meshtf.runtime.devices.threads import threads_of

_PORT = flags.DEFINE_integer(
    "port",
    4000,
    "TensorFlow's port; the door is the next one.",
    lower_bound=1,
    upper_bound=2**16 - 2,
)
_BIND = flags.DEFINE_string(
    "bind",
    LOOPBACK,
    f"The address of this machine on which it is heard; {ANY}: on all of them.",
)
_DEVICES = flags.DEFINE_integer(
    "cpu_devices", 1, "As how many devices its CPU is offered.", lower_bound=1
)

WARNING = (
    "TensorFlow's protocol has no authentication: whoever reaches this port can read "
    "and run what you can."
)


def main(argv: Sequence[str]) -> None:
    """Serves until it is ended; a driver that has gone is followed by a fresh start."""
    try:
        serve(_PORT.value, ipv4_address(_BIND.value), _DEVICES.value)
    except (ClusterError, OSError) as error:
        _say(f"port {_PORT.value}, address {_BIND.value}: {error}")
        sys.exit(1)


def serve(port: int, address: str, devices: int) -> None:
    """Starts TensorFlow's server and the door, and waits.

    Raises:
      OSError: the door's port is taken, or the address is none of this machine.
      ClusterError: the server's port is taken, or cannot be closed to other addresses.
    """
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": devices}, intra_op_parallelism_threads=threads_of(devices)
    )
    try:
        server = tf.distribute.Server(
            {"worker": [f"{address}:{port}"]}, "worker", 0, config=config
        )
    except tf.errors.OpError as error:
        with socket.create_server(
            (ANY, port)
        ):  # raises OSError where the port is taken
            raise ClusterError(
                f"TensorFlow's server does not start: {error.message}"
            ) from None
    accept_only(port, address)
    gpus = len(tf.config.list_physical_devices("GPU"))
    about = {"devices": devices, "gpus": gpus, "tensorflow": tf.__version__}
    ControlPort((address, port + 1), about, _prepare, start_afresh)
    offered = f"{devices} CPU device{'s' * (devices > 1)}" + f" and {gpus} GPUs" * (
        gpus > 0
    )
    _say(f"worker at {address}:{port} with {offered}, process {os.getpid()}")
    _say(
        WARNING
        + (
            " Only this machine reaches it; --bind=ADDRESS opens it to others."
            if is_loopback(address)
            else ""
        )
    )
    del server  # it lives as long as the process, whatever Python does
    while True:
        time.sleep(3600.0)


def start_afresh() -> None:
    """Begins this program anew in the same process, with nothing of what a
    driver left.
    """
    _say("the driver has gone: starting afresh")
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv)


def _prepare(question: Answer) -> None:
    """Makes this process as the driver wants it, before it has run anything."""
    if question.get("deterministic"):
        tf.config.experimental.enable_op_determinism()
    _say(f"serving the driver {question['driver']}")


def _say(text: str) -> None:
    print(text, flush=True)
