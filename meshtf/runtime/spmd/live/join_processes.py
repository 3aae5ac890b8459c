"""Several processes with one live mesh (a mesh of jax's devices): each runs the same program,
and has some of the devices. They connect by `jax.distributed`.

    python -m meshtf launch --spmd --workers=2 -- python -m transformer.train ...

`launch` and `supervise` say by environment variables where the processes meet:

    MESHTF_COORDINATOR=10.99.0.1:4000  MESHTF_PROCESS=1/4     # the second of four

Under SLURM, Open MPI and Kubernetes jax finds this out: `mtf.connect("auto")`. The hosts of a
TensorFlow cluster are in the variable TF_CONFIG, which is read here: see `tf_config`.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import inspect
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from meshtf.errors import ClusterError, explain_error
from meshtf.runtime.devices.processes import Processes, processes, set_processes
from meshtf.runtime.devices.tf_config import read_tf_config
from meshtf.runtime.spmd.live.jax_module import load_jax

COORDINATOR = "MESHTF_COORDINATOR"
PROCESS = "MESHTF_PROCESS"
TIMEOUT = "MESHTF_PROCESS_TIMEOUT"  # seconds without a sign of life of a process
WAIT = "MESHTF_PROCESS_WAIT"  # seconds in which all processes must have started
# Called once this process has met the others.
after_joining: list[Callable[[], None]] = []
_HEARTBEAT_TIMEOUT = "heartbeat_timeout_seconds"
_STDOUT = 1  # file descriptors of C
_STDERR = 2
_DEFAULT_TIMEOUT = 60
_DEFAULT_WAIT = 300


def join_by_environment() -> None:
    """Connects to the other processes that the environment names, at the first call.

    Raises:
      ClusterError: they do not connect in time, or the variables are malformed.
    """
    if processes().count > 1 or COORDINATOR not in os.environ:
        return
    index, count = _index_and_count(os.environ)
    timeout = int(float(os.environ.get(TIMEOUT, _DEFAULT_TIMEOUT)))
    wait = int(float(os.environ.get(WAIT, _DEFAULT_WAIT)))
    _join(
        coordinator_address=os.environ[COORDINATOR],
        # By default process 0 listens at all addresses of its machine.
        coordinator_bind_address=os.environ[COORDINATOR],
        num_processes=count,
        process_id=index,
        initialization_timeout=max(wait, 1),
        **{_HEARTBEAT_TIMEOUT: max(timeout, 2)},
    )
    _joined(Processes(index, count))


def join_detected() -> None:
    """Connects to the other processes that TF_CONFIG names, or that jax detects: those of
    SLURM, Open MPI, Kubernetes or a TPU pod.

    Raises:
      ClusterError: no processes are detected, they do not connect, or TF_CONFIG is malformed.
    """
    if processes().count > 1:
        return
    cluster = read_tf_config(os.environ)
    if cluster is None:
        _join()
    elif len(cluster.addresses) > 1:
        _join(
            coordinator_address=cluster.addresses[0],
            num_processes=len(cluster.addresses),
            process_id=cluster.process,
            initialization_timeout=_DEFAULT_WAIT,
        )
    # This starts jax's devices, so their count cannot change any more.
    jax = load_jax()
    _joined(Processes(jax.process_index(), jax.process_count()))


def _joined(group: Processes) -> None:
    """Notes the processes that have met, and calls the functions of `after_joining`."""
    set_processes(group)
    if group.count > 1:
        for function in after_joining:
            function()


def any_process(flag: bool) -> bool:
    """Returns whether a flag is true in any process. All processes call it, and wait for
    each other.
    """
    if processes().count == 1:
        return flag
    return _sum_over_processes(int(flag)) > 0


def same_in_all_processes(value: int) -> bool:
    """Returns whether a number, which is at least 0 and less than 2**31, is the same in all
    processes. All of them call it, and wait for each other.
    """
    group = processes()
    if group.count == 1:
        return True
    of_first = _sum_over_processes(value if group.is_first else 0)
    return _sum_over_processes(int(value != of_first)) == 0


@contextlib.contextmanager
def native_output_to_stderr() -> Iterator[None]:
    """A context in which what libraries in C++ print goes to stderr, if there are several
    processes: gloo prints a line for each new group of CPU devices, which is nothing that
    a program like `python -m transformer.decode > texts` should write.
    """
    if processes().count == 1:
        yield
        return
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    libc = ctypes.CDLL(None)
    libc.fflush(None)
    stdout = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        libc.fflush(None)
        os.dup2(stdout, _STDOUT)
        os.close(stdout)


def _index_and_count(environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns (index of this process, number of processes), as "1/4" says.

    Raises:
      ClusterError: the environment variable is missing or malformed.
    """
    index, _, count = environment.get(PROCESS, "").partition("/")
    if index.isdecimal() and count.isdecimal() and int(index) < int(count):
        return int(index), int(count)
    raise ClusterError(
        explain_error(
            f"{COORDINATOR} is set, but {PROCESS} does not say which process this is.",
            **{PROCESS: environment.get(PROCESS, "(not set)")},
            way_out=f"Set {PROCESS}=0/4 for the first of four processes, "
            f"or start them by python -m meshtf launch --spmd.",
        )
    )


def _join(**arguments: Any) -> None:
    """Connects to the other processes.

    Args:
      **arguments: the arguments of `jax.distributed.initialize`.

    Raises:
      ClusterError: the processes do not connect.
    """
    jax = load_jax()
    # Without it CPU devices of several processes have no collectives.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    parameters = inspect.signature(jax.distributed.initialize).parameters
    if _HEARTBEAT_TIMEOUT not in parameters:
        # jax before 0.7 has 100 seconds; `supervise` and `launch` monitor processes as well.
        arguments.pop(_HEARTBEAT_TIMEOUT, None)
    try:
        jax.distributed.initialize(**arguments)
    except (RuntimeError, ValueError) as error:
        if not arguments:
            raise _none_detected(error) from None
        where = arguments["coordinator_address"]
        raise ClusterError(
            explain_error(
                "the processes of the run have not met.",
                coordinator=where,
                jax=str(error).splitlines()[0],
                way_out="Start all of them; the first one listens at the coordinator's "
                "address, which the others must reach. It must be the first use of jax.",
            )
        ) from None


def _none_detected(error: Exception) -> ClusterError:
    """Returns the error for a program in which jax finds no processes."""
    return ClusterError(
        explain_error(
            "jax has not found the other processes of this run.",
            jax=str(error).splitlines()[0],
            way_out="It knows SLURM (srun), Open MPI (mpirun), Kubernetes and TPU pods; "
            "TF_CONFIG is read as well. Elsewhere: python -m meshtf supervise "
            "--coordinator=HOST:PORT --process=0/4.",
        )
    )


def share_token() -> None:
    """Gives all processes the same random token, which the first one draws. It is sent by a
    collective of jax's devices, so these must exist already.
    """
    group = processes()
    if group.count == 1 or group.token:
        return
    drawn = secrets.randbelow(10**9) + 1 if group.is_first else 0
    token = _sum_over_processes(drawn)
    set_processes(dataclasses.replace(group, token=token))


def _sum_over_processes(value: int) -> int:
    """Returns the sum of the values of all processes, which all call this.

    Unlike the functions of `jax.experimental.multihost_utils`, it waits for all devices: gloo
    prints its lines before it returns.
    """
    jax = load_jax()
    mesh = jax.sharding.Mesh(np.array(jax.devices(), dtype=object), ("device",))
    by_device = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("device"))
    replicated = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    local_devices = jax.local_devices()
    shards = [
        jax.device_put(np.array([value if device == local_devices[0] else 0]), device)
        for device in local_devices
    ]
    values = jax.make_array_from_single_device_arrays((mesh.size,), by_device, shards)
    with native_output_to_stderr():
        total = jax.jit(_sum, out_shardings=replicated)(values).block_until_ready()
    return int(np.asarray(total.addressable_data(0)))


def _sum(values: Any) -> Any:
    """Returns the sum. It is a named function, so that jax compiles it only once."""
    return values.sum()
