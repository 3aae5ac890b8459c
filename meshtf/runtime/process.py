"""What a program may set for its whole process: once, before TensorFlow starts.

    import meshtf as mtf
    mtf.configure_process()                      # at the top of a program
    mesh = mtf.Mesh("data:4;model:2", layout)

Importing meshtf changes nothing about a process, since a process may have other things
to do. Programs that are there for meshtf alone, as its own commands are, run faster with
these settings, and call this.

Memory of CPUs: the system's allocator gives large blocks back, and a training step then
waits for the system to clear them anew, up to a tenth of its time. TensorFlow has an
allocator that keeps them, the one of GPUs and of oneDNN, and asks at its start whether
CPUs are to have it.
"""

from __future__ import annotations

import gc
import os

import tensorflow as tf
from absl import logging

from meshtf.errors import PlanError, explain_error
from meshtf.names.arguments import as_choice, check_bools
from meshtf.runtime.devices import threads as device_threads

ALLOCATOR = "TF_CPU_ALLOCATOR_USE_BFC"
LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def configure_process(
    *,
    keep_freed_memory: bool = True,
    threads: str | None = "shared",
    freeze_imports: bool = True,
    log_level: str | None = None,
) -> str:
    """Sets what makes runs of this process faster or quieter, and logs it in one line.

    What the environment or `tf.config.threading` says already stays as it is. A second
    call with the same arguments changes nothing.

    Args:
      keep_freed_memory: whether CPUs keep the memory that a step frees for the next one,
        by TF_CPU_ALLOCATOR_USE_BFC; False leaves TensorFlow's choice.
      threads: "shared": where positions of a mesh share a processor, an op takes its
        position's share of the cores; None leaves TensorFlow's choice, all of them.
      freeze_imports: whether Python's garbage collector passes over all objects that
        exist by now, a million of TensorFlow's modules (`gc.freeze`): a collection of
        them takes 0.2 s, and the first trace of a program has one.
      log_level: from which level on absl and TensorFlow write in Python, such as
        "ERROR"; None leaves it. Native code is not heard by then: what it writes while
        TensorFlow is imported, TF_CPP_MIN_LOG_LEVEL=3 in the environment takes out.

    Returns:
      The line that is logged (absl, level INFO).

    Raises:
      ArgumentError: a value that is not among these.
      PlanError: TensorFlow has started, and cannot be set any more.
    """
    check_bools(keep_freed_memory=keep_freed_memory, freeze_imports=freeze_imports)
    if threads is not None:
        as_choice("threads", threads, ("shared",))
    if log_level is not None:
        as_choice("log_level", log_level, LEVELS)
    settings = []
    if keep_freed_memory:
        settings.append(_keep_freed_memory())
    if threads:
        settings.append(_share_threads())
    if freeze_imports:
        settings.append(_freeze_imports())
    if log_level:
        logging.set_verbosity(log_level.lower())
        tf.get_logger().setLevel(log_level)
        settings.append(f"log level {log_level}")
    line = f"process: {'; '.join(settings) or 'nothing set'}"
    logging.info(line)
    return line


def _keep_freed_memory() -> str:
    """Has TensorFlow's own allocator used on CPUs, for as much memory as there is."""
    if ALLOCATOR not in os.environ:
        _refuse_if_started("keep_freed_memory", f"{ALLOCATOR}=1")
        os.environ[ALLOCATOR] = "1"
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            os.environ.setdefault(LIMIT, str(size >> 20))
    value = os.environ[ALLOCATOR]
    does = "keep" if value.lower() in ("1", "true") else "do not keep"
    return f"CPUs {does} freed memory ({ALLOCATOR}={value})"


def _share_threads() -> str:
    """Has the first mesh share the cores out among its positions."""
    fixed = device_threads.fixed_by_user()
    if fixed:
        return f"threads of an op as {fixed} says"
    if not device_threads.sharing():
        _refuse_if_started("threads", "TF_NUM_INTRAOP_THREADS=NUMBER")
        device_threads.enable_sharing()
    return "positions of a mesh share the cores"


def _freeze_imports() -> str:
    """Has the garbage collector pass over what exists, once."""
    if not gc.get_freeze_count():
        gc.freeze()
    return "imports are not collected"


def _refuse_if_started(name: str, variable: str) -> None:
    if tensorflow_has_started():
        raise PlanError(
            explain_error(
                f"{name} comes too late: TensorFlow has started already.",
                way_out="Call mtf.configure_process() at the top of the program, before "
                "any other use of TensorFlow than importing it, or set "
                f"{variable} in the environment.",
            )
        )


def tensorflow_has_started() -> bool:
    """Whether TensorFlow has made its devices, after which it cannot be configured."""
    threading = tf.config.threading
    threads = threading.get_inter_op_parallelism_threads()
    try:
        threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:  # it refuses to be changed from then on
        return True
    threading.set_inter_op_parallelism_threads(threads)
    return False
