"""The driver's way to its workers.

    devices = connect("host1:4000,host2:4000")      # at the top of a program
    mesh = mtf.Mesh("data:4;model:2", layout)       # lies on all of them, without more ado

After `connect`, a mesh without devices of its own lies on those of the workers. Each
worker serves this driver alone, until the process ends. The process is a driver's from
then on: TensorFlow sends ops one after another (TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE),
SIGUSR1 prints where each thread is, an error after the loss of a worker ends the process
with a code of its own (`sys.excepthook`), and a supervisor sees a pulse
(`meshtf.runtime.heartbeat`).
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
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

import tensorflow as tf
from absl import logging

from meshtf.cluster.addresses import Address, driver_address, free_ports, parse_cluster
from meshtf.cluster.control_port import Drive, ask
from meshtf.cluster.ip_filter import accept_only
from meshtf.errors import ClusterError, explain_error
from meshtf.names.arguments import check_bools, check_floats
from meshtf.runtime.devices.resolve import worker_devices
from meshtf.runtime.heartbeat import VARIABLE, beat

LOST = 69  # the exit code of a program that lost a worker (EX_UNAVAILABLE)
PATIENCE = (
    5.0  # seconds in which a worker must say that it lives, after something failed
)
_IN_TURN = {"TF_ENABLE_EAGER_CLIENT_STREAMING_ENQUEUE": "False"}
_held: dict[Address, Drive] = {}


def connect(
    cluster: str, wait: float = 60.0, timeout: float = 60.0, deterministic: bool = False
) -> tuple[str, ...]:
    """Makes the devices of some workers known to TensorFlow, and returns their names.

    Args:
      cluster: the workers, such as "host1:4000,host2:4000".
      wait: for how many seconds workers that do not answer, or are taken, are asked
        again.
      timeout: after how many seconds without this driver a worker starts afresh.
      deterministic: whether the workers take TensorFlow's deterministic ops.

    Raises:
      ParseError: the text names no workers.
      ClusterError: a worker does not answer, is taken, or has another TensorFlow.
    """
    check_floats(wait=wait, timeout=timeout)
    check_bools(deterministic=deterministic)
    if _held:
        raise ClusterError(
            f"this process drives {', '.join(map(str, _held))} already.\n"
            "  Connect once, at the top of the program."
        )
    workers = parse_cluster(cluster)
    beat("connects to workers")
    try:
        own = driver_address(workers)
        _take(workers, own, wait, timeout, deterministic)
    except OSError as error:
        raise ClusterError(
            f"the workers {cluster} cannot be reached: {error}"
        ) from None
    # Else an op of a worker is only sent, and a function that is called next may run
    # before it: it reads what a variable was before, or an iterator that is not made
    # yet.
    os.environ.update(_IN_TURN)
    port = free_ports(1)[0]
    spec = {"worker": [str(w) for w in workers], "client": [f"{own}:{port}"]}
    with _quiet():
        tf.config.experimental_connect_to_cluster(
            tf.train.ClusterSpec(spec), job_name="client", task_index=0, protocol="grpc"
        )
    devices = worker_devices()  # which starts TensorFlow, and its own server with it
    accept_only(port, own)
    faulthandler.register(signal.SIGUSR1)  # whoever watches may ask where it is stuck
    sys.excepthook = functools.partial(_leave, sys.excepthook)
    return devices


def connected() -> bool:
    """Whether this process drives workers."""
    return bool(_held)


def lost_workers() -> list[str]:
    """Returns which workers do not serve this driver any more, each with the reason."""
    return [
        f"worker {i} at {address}: {why}"
        for i, (address, drive) in enumerate(_held.items())
        if (why := _why_lost(address, drive))
    ]


def _leave(
    before: Callable[..., None],
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
) -> None:
    """Ends a program whose error is that a worker was lost, with a code of its own."""
    lost = lost_workers() if issubclass(kind, tf.errors.OpError) else []
    if not lost:
        before(kind, error, trace)
        return
    watched = VARIABLE in os.environ  # by a supervisor, which tells what comes now
    print(
        explain_error(
            "a worker was lost.",
            workers="\n".join(lost),
            way_out=(
                ""
                if watched
                else "The same command goes on from its last checkpoint, once all "
                "workers are there; python -m meshtf supervise --restarts=N sees to it."
            ),
        ),
        file=sys.stderr,
        flush=True,
    )
    sys.stdout.flush()
    os._exit(LOST)  # TensorFlow's own end would wait for the lost ones


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _why_lost(address: Address, drive: Drive) -> str:
    try:
        state = ask(address.control_address, PATIENCE)
    except OSError as error:
        return f"it does not answer ({error})"
    return "" if state["life"] == drive.state["life"] else "it has started afresh"


def _take(
    workers: Sequence[Address],
    own: str,
    wait: float,
    timeout: float,
    deterministic: bool,
) -> None:
    """Asks each worker to serve this driver, until all do or time is over."""
    question = {
        "driver": f"{own}, process {os.getpid()} on {socket.gethostname()}",
        "timeout": timeout,
        "deterministic": deterministic,
    }
    last = time.monotonic() + wait
    why: dict[Address, str] = {}
    while left := [w for w in workers if w not in _held]:
        for worker in left:
            try:
                _held[worker] = Drive(
                    worker.control_address, question, max(0.1, min(timeout, wait))
                )
            except (OSError, ClusterError) as error:
                why[worker] = str(error)
        if all(w in _held for w in workers):
            break
        if time.monotonic() > last:
            _let_go()
            raise _not_there(left, why, wait)
        time.sleep(min(0.5, wait))
    _same_tensorflow()


def _same_tensorflow() -> None:
    other = {
        w: v
        for w, drive in _held.items()
        if (v := drive.state["tensorflow"]) != tf.__version__
    }
    if other:
        _let_go()
        raise ClusterError(
            explain_error(
                "workers have another TensorFlow than the driver.",
                driver=tf.__version__,
                workers="\n".join(
                    f"{worker}: {version}" for worker, version in other.items()
                ),
                way_out="Install the same version everywhere.",
            )
        )


def _let_go() -> None:
    while _held:
        _held.popitem()[1].close()


def _not_there(
    left: Sequence[Address], why: dict[Address, str], wait: float
) -> ClusterError:
    taken = all("taken" in why[worker] for worker in left)
    return ClusterError(
        explain_error(
            f"{len(left)} of the workers did not come within {wait:g} seconds.",
            workers="\n".join(f"{worker}: {why[worker]}" for worker in left),
            way_out="Wait until that driver has ended, or take other workers."
            if taken
            else "Start each of them: python -m meshtf worker --port=PORT. One that "
            "other hosts are to reach needs --bind=ADDRESS, too.",
        )
    )
