"""A worker: a process that offers the devices of this machine to a driver on any machine.

    serve(port=4000, address="127.0.0.1", devices=1)          # as `python -m meshtf worker` does

A worker uses two ports: the port of TensorFlow's server, and the next one as its control
port, which answers health checks. It serves one driver after another. When a driver ends,
the worker re-executes itself (`os.execv`), and keeps its process id.
"""

from __future__ import annotations

import os
import socket
import sys
import time

import tensorflow as tf

from meshtf.cluster.addresses import ANY, is_loopback
from meshtf.cluster.control_port import ControlPort, Message
from meshtf.cluster.ip_filter import accept_only
from meshtf.errors import ClusterError
from meshtf.runtime.devices.threads import threads_of

WARNING = (
    "TensorFlow's protocol has no authentication: whoever reaches this port can read "
    "and run what you can."
)


def serve(port: int, address: str, devices: int) -> None:
    """Starts TensorFlow's server and the control port, and waits without end.

    Args:
      port: the port of TensorFlow's server; the control port is the next one.
      address: the IPv4 address of this machine to listen on; "0.0.0.0": all addresses.
      devices: the count of logical devices into which the CPU is split.

    Raises:
      OSError: the control port is in use, or `address` is no address of this machine.
      ClusterError: the server's port is in use, or cannot be closed to other addresses.
    """
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": devices}, intra_op_parallelism_threads=threads_of(devices)
    )
    try:
        server = tf.distribute.Server(
            {"worker": [f"{address}:{port}"]},
            job_name="worker",
            task_index=0,
            config=config,
        )
    except tf.errors.OpError as error:
        # If the port is in use, this raises OSError, which says so.
        with socket.create_server((ANY, port)):
            raise ClusterError(
                f"TensorFlow's server does not start: {error.message}"
            ) from None
    accept_only(port, address)
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    about = {"devices": devices, "gpus": num_gpus, "tensorflow": tf.__version__}
    ControlPort(
        (address, port + 1), about, prepare=_apply_settings, on_driver_end=restart
    )
    devices_text = f"{devices} CPU device{'s' * (devices > 1)}"
    if num_gpus > 0:
        devices_text += f" and {num_gpus} GPUs"
    _print_now(f"worker at {address}:{port} with {devices_text}, process {os.getpid()}")
    warning = WARNING
    if is_loopback(address):
        warning += " Only this machine reaches it; --bind=ADDRESS opens it to others."
    _print_now(warning)
    del server  # TensorFlow keeps it until the process ends
    while True:  # the server and the control port have separate threads
        time.sleep(3600.0)


def restart() -> None:
    """Re-executes this program in the same process, to drop the state that a driver left."""
    _print_now("the driver has gone: starting afresh")
    sys.stdout.flush()
    os.execv(sys.executable, sys.orig_argv)


def _apply_settings(request: Message) -> None:
    """Applies the settings in the request of a driver, before any op has run."""
    if request.get("deterministic"):
        tf.config.experimental.enable_op_determinism()
    _print_now(f"serving the driver {request['driver']}")


def _print_now(text: str) -> None:
    """Prints a line at once."""
    print(text, flush=True)
