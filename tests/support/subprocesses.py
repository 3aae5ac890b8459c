"""Processes of their own for what leaves much behind: TensorFlow keeps every program it
compiled.

Example:

    with Apart(tasks=4) as apart:                # a new process after four tasks
      report = apart(check_export, op, seed)
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

DEVICES = 8


def start_tensorflow() -> None:
    """Starts TensorFlow with logical devices, which are fixed from then on."""
    # TensorFlow imports jax if it is there, which takes a fifth of its import.
    without_jax = "jax" not in sys.modules
    if without_jax:
        sys.modules["jax"] = None
    import tensorflow as tf

    if without_jax:
        del sys.modules["jax"]

    import meshtf as mtf

    cpu = tf.config.list_physical_devices("CPU")[0]
    logical = [tf.config.LogicalDeviceConfiguration()] * DEVICES
    tf.config.set_logical_device_configuration(cpu, logical)
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"
    # As many as the largest mesh has; jax cannot add devices later.
    flag = "--xla_force_host_platform_device_count=16"
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    mtf.configure_process()


class Apart:
    """Runs functions in another process, which makes room for a new one after some
    tasks.
    """

    def __init__(self, tasks: int) -> None:
        # Python 3.10 cannot do that.
        anew = {"max_tasks_per_child": tasks} if sys.version_info >= (3, 11) else {}
        self._pool = ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), start_tensorflow, **anew
        )

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def __call__(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Returns fn(*args); all of it must be picklable."""
        return self._pool.submit(fn, *args).result()
