"""Connects a driver to its workers.

    devices = connect("host1:4000,host2:4000")      # at the top of a program
    mesh = mtf.Mesh("data:4;model:2", layout)       # uses all their devices

After `connect`, a mesh for which no devices are named uses those of the workers. Each
worker serves only this driver until the process ends. `connect` changes the process:

- TensorFlow sends ops one after another (TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE);
- SIGUSR1 prints the stack of each thread;
- an error after the loss of a worker ends the process with exit code `LOST`
  (`sys.excepthook`);
- a supervisor sees a heartbeat and a pulse: what this process runs, and that it is not
  stopped (`meshtf.runtime.heartbeat`).

A worker draws a random id when it starts, its "life": another life means that it has
restarted, and that its variables are lost.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import NoReturn

import tensorflow as tf
from absl import logging

from meshtf.cluster.addresses import Address, driver_address, free_ports, parse_cluster
from meshtf.cluster.control_port import DriverConnection, ask
from meshtf.cluster.ip_filter import accept_only
from meshtf.errors import ClusterError, explain_error
from meshtf.names.arguments import check_bools, check_floats
from meshtf.runtime.devices.resolve import worker_devices
from meshtf.runtime.heartbeat import VARIABLE as HEARTBEAT_VARIABLE
from meshtf.runtime.heartbeat import beat

LOST = 69  # the exit code of a program that lost a worker (EX_UNAVAILABLE)
ANSWER_TIMEOUT = 5.0  # seconds within which a worker must answer after a failure
_SEND_IN_ORDER = {"TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": "False"}
# The connection to each worker that serves this process, from `connect` on.
_connections: dict[Address, DriverConnection] = {}


def connect(
    cluster: str, wait: float = 60.0, timeout: float = 60.0, deterministic: bool = False
) -> tuple[str, ...]:
    """Connects to workers, and returns the names of their devices in TensorFlow.

    Args:
      cluster: the addresses of the workers, such as "host1:4000,host2:4000".
      wait: seconds for which workers are asked again that do not answer or have another
        driver.
      timeout: seconds without an answer of this driver after which a worker restarts.
      deterministic: whether the workers use TensorFlow's deterministic ops.

    Raises:
      ParseError: the text names no workers.
      ClusterError: a worker does not answer, has another driver, or another version of
        TensorFlow.
    """
    check_floats(wait=wait, timeout=timeout)
    check_bools(deterministic=deterministic)
    if _connections:
        raise ClusterError(
            f"this process drives {', '.join(map(str, _connections))} already.\n"
            "  Connect once, at the top of the program."
        )
    workers = parse_cluster(cluster)
    beat("connects to workers")  # a sign of life for a supervisor
    try:
        host = driver_address(workers)
        _acquire_workers(
            workers, host, wait=wait, timeout=timeout, deterministic=deterministic
        )
    except OSError as error:
        raise ClusterError(
            f"the workers {cluster} cannot be reached: {error}"
        ) from None
    # Otherwise an op of a worker is only enqueued, and the next function may run before
    # it: it would read the old value of a variable, or an iterator that does not exist.
    os.environ.update(_SEND_IN_ORDER)
    (port,) = free_ports(1)
    jobs = {
        "worker": [str(worker) for worker in workers],
        "client": [f"{host}:{port}"],
    }
    with _fewer_logs():
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(jobs), job_name="client", task_index=0, protocol="grpc"
        )
    devices = worker_devices()  # starts TensorFlow, and this process's server
    accept_only(port, host)
    faulthandler.register(signal.SIGUSR1)  # a supervisor sends it to a stuck driver
    sys.excepthook = functools.partial(_exit_if_lost, sys.excepthook)
    return devices


def connected() -> bool:
    """Returns whether this process is connected to workers."""
    return bool(_connections)


def lost_workers() -> list[str]:
    """Returns a message for each worker that does not serve this driver any more, with the
    reason.
    """
    messages = []
    for i, (address, connection) in enumerate(_connections.items()):
        reason = _loss_reason(address, connection)
        if reason:
            messages.append(f"worker {i} at {address}: {reason}")
    return messages


def _exit_if_lost(
    previous_hook: Callable[..., None],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Handles an uncaught exception, as `sys.excepthook`: ends the process with exit code
    `LOST` if the error is due to a lost worker.

    Args:
      previous_hook: the hook for all other exceptions.
      kind: the class of the exception.
      error: the exception.
      trace: the traceback of the exception.
    """
    lost: list[str] = []
    if issubclass(kind, tf.errors.OpError):
        lost = lost_workers()
    if not lost:
        previous_hook(kind, error, trace)
        return
    exit_lost(
        "a worker was lost.",
        way_out="The same command goes on from its last checkpoint, once all workers are "
        "there; python -m meshtf supervise --restarts=N sees to it.",
        workers="\n".join(lost),
    )


def exit_lost(problem: str, way_out: str, **facts: str) -> NoReturn:
    """Prints which worker or process was lost, and ends this process with exit code `LOST`.

    Args:
      problem: a sentence that says what was lost.
      way_out: what the user can do; left out under a supervisor, which prints what it does.
      **facts: further lines of the message, by title.
    """
    if HEARTBEAT_VARIABLE in os.environ:
        way_out = ""
    message = explain_error(problem, **facts, way_out=way_out)
    print(message, file=sys.stderr, flush=True)
    sys.stdout.flush()
    # Not `sys.exit`: the shutdown of TensorFlow or jax would wait for those that are lost.
    os._exit(LOST)


@contextlib.contextmanager
def _fewer_logs() -> Iterator[None]:
    """Within the context, absl logs only warnings and errors."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _loss_reason(address: Address, connection: DriverConnection) -> str:
    """Returns why a worker does not serve this driver any more, or ""."""
    try:
        state = ask(address.control_address, timeout=ANSWER_TIMEOUT)
    except OSError as error:
        return f"it does not answer ({error})"
    if state["life"] != connection.state["life"]:
        return "it has started afresh"
    return ""


def _acquire_workers(
    workers: Sequence[Address],
    host: str,
    wait: float,
    timeout: float,
    deterministic: bool,
) -> None:
    """Asks each worker to serve this driver, until all do so.

    Args:
      workers: the addresses of the workers.
      host: the address of this machine, for messages of the workers.
      wait: seconds for which workers are asked again.
      timeout: seconds without an answer of this driver after which a worker restarts.
      deterministic: whether the workers use TensorFlow's deterministic ops.

    Raises:
      ClusterError: a worker does not serve this driver after `wait` seconds, or has
        another version of TensorFlow.
    """
    request = {
        "driver": f"{host}, process {os.getpid()} on {socket.gethostname()}",
        "timeout": timeout,
        "deterministic": deterministic,
    }
    deadline = time.monotonic() + wait
    connect_timeout = max(0.1, min(timeout, wait))
    while True:
        reasons: dict[Address, str] = {}  # why a worker does not serve this driver
        for worker in workers:
            if worker in _connections:
                continue
            try:
                _connections[worker] = DriverConnection(
                    worker.control_address, request, connect_timeout
                )
            except (OSError, ClusterError) as error:
                reasons[worker] = str(error)
        if not reasons:
            break
        if time.monotonic() > deadline:
            _disconnect()
            raise _unavailable_error(reasons, wait)
        time.sleep(min(0.5, wait))
    _check_versions()


def _check_versions() -> None:
    """Checks that all workers have the driver's version of TensorFlow.

    Raises:
      ClusterError: a worker has another version.
    """
    lines = []
    for worker, connection in _connections.items():
        version = connection.state["tensorflow"]
        if version != tf.__version__:
            lines.append(f"{worker}: {version}")
    if lines:
        _disconnect()
        raise ClusterError(
            explain_error(
                "workers have another TensorFlow than the driver.",
                driver=tf.__version__,
                workers="\n".join(lines),
                way_out="Install the same version everywhere.",
            )
        )


def _disconnect() -> None:
    """Releases all workers."""
    while _connections:
        _, connection = _connections.popitem()
        connection.close()


def _unavailable_error(reasons: Mapping[Address, str], wait: float) -> ClusterError:
    """Returns an error about workers that do not serve this driver.

    Args:
      reasons: why each of these workers does not serve this driver.
      wait: the seconds for which they were asked.
    """
    way_out = (
        "Start each of them: python -m meshtf worker --port=PORT. One that other hosts are "
        "to reach needs --bind=ADDRESS, too."
    )
    if all("taken" in reason for reason in reasons.values()):
        way_out = "Wait until that driver has ended, or take other workers."
    lines = [f"{worker}: {reason}" for worker, reason in reasons.items()]
    return ClusterError(
        explain_error(
            f"{len(reasons)} of the workers did not come within {wait:g} seconds.",
            workers="\n".join(lines),
            way_out=way_out,
        )
    )
