"""Settings of the process that make programs faster, made once, before TensorFlow starts.

    import meshtf as mtf
    mtf.configure_process()                      # at the top of a program
    mesh = mtf.Mesh("data:4;model:2", layout)

Importing meshtf changes no setting of the process, which may run other programs too.
Programs that only train with meshtf, such as its commands, call this function.

About the memory of CPUs: the allocator of the C library returns large blocks to the
operating system, and the next training step waits until the system has cleared new
blocks, up to two fifths of the time of the step. TensorFlow's BFC allocator, which is the
default for GPUs, keeps the blocks. TensorFlow reads when it starts whether to use this
allocator for CPUs. XLA's devices on CPUs (jax) use that of the C library, which keeps all
blocks if it is asked to: `mallopt(3)`.
"""

from __future__ import annotations

import ctypes
import gc
import os

import tensorflow as tf
from absl import logging

from meshtf.errors import PlanError, explain_error
from meshtf.names.arguments import as_choice, check_bools
from meshtf.runtime.devices import threads as device_threads

# Environment variables of TensorFlow: whether CPUs use the BFC allocator, and its limit.
ALLOCATOR = "TF_CPU_ALLOCATOR_USE_BFC"
LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
# Environment variables of glibc's allocator, and the numbers of the parameters in malloc.h.
MALLOC_VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "FATAL")


def configure_process(
    *,
    keep_freed_memory: bool = True,
    threads: str | None = "shared",
    freeze_imports: bool = True,
    log_level: str | None = None,
) -> str:
    """Sets options that make programs of this process faster, and logs them in one line.

    Settings of the environment or of `tf.config.threading` take precedence. A second call
    with the same arguments changes nothing.

    Args:
      keep_freed_memory: whether the CPU memory that a step frees is kept: by TensorFlow
        (the environment variable TF_CPU_ALLOCATOR_USE_BFC), and by the C library, if it
        is glibc; False: their defaults.
      threads: "shared": if n mesh positions share a CPU, an op uses 1/n of the cores;
        None: TensorFlow's default, all cores.
      freeze_imports: whether Python's garbage collector ignores all objects that exist
        now (`gc.freeze`), such as a million objects of TensorFlow's modules. Traversing
        them takes 0.2 s, and happens during the first trace of a program.
      log_level: the lowest level of messages that absl and TensorFlow log in Python, such
        as "ERROR"; None: unchanged. It does not affect native code: set
        TF_CPP_MIN_LOG_LEVEL=3 in the environment to suppress messages of TensorFlow's
        import.

    Returns:
      The line that is logged (absl, level INFO).

    Raises:
      ArgumentError: an argument has another value.
      PlanError: TensorFlow has started, so that its settings cannot be changed.
    """
    # These functions raise ArgumentError for other values.
    check_bools(keep_freed_memory=keep_freed_memory, freeze_imports=freeze_imports)
    if threads is not None:
        as_choice("threads", threads, ("shared",))
    if log_level is not None:
        as_choice("log_level", log_level, LEVELS)
    settings = []
    if keep_freed_memory:
        settings += [_keep_freed_memory(), _keep_freed_memory_of_c_library()]
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
    """Makes TensorFlow use its BFC allocator on CPUs, for all physical memory. Returns the
    setting as text for the log, as the functions below do.
    """
    if ALLOCATOR not in os.environ:
        _refuse_if_started(name="keep_freed_memory", variable=f"{ALLOCATOR}=1")
        os.environ[ALLOCATOR] = "1"
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            memory_mib = memory_bytes // 2**20
            os.environ.setdefault(LIMIT, str(memory_mib))
    value = os.environ[ALLOCATOR]
    verb = "keep" if value.lower() in ("1", "true") else "do not keep"
    return f"CPUs {verb} freed memory ({ALLOCATOR}={value})"


def _keep_freed_memory_of_c_library() -> str:
    """Makes glibc return no memory to the operating system: all blocks are in the heap, which
    does not shrink.
    """
    for variable in MALLOC_VARIABLES:
        if variable in os.environ:
            return f"the C library's memory as {variable} says"
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return "another C library than glibc"
    if not (mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1)):
        return "the C library does not keep freed memory"
    return "the C library keeps freed memory"


def _share_threads() -> str:
    """Makes the first mesh divide the cores among its positions."""
    user_setting = device_threads.fixed_by_user()
    if user_setting:
        return f"threads of an op as {user_setting} says"
    if not device_threads.sharing():
        _refuse_if_started(name="threads", variable="TF_NUM_INTRAOP_THREADS=NUMBER")
        device_threads.enable_sharing()
    return "positions of a mesh share the cores"


def _freeze_imports() -> str:
    """Makes the garbage collector ignore all objects that exist, at the first call."""
    # A second `gc.freeze` would also freeze objects that the program has made since.
    if gc.get_freeze_count() == 0:
        gc.freeze()
    return "imports are not collected"


def _refuse_if_started(name: str, variable: str) -> None:
    """Raises PlanError if TensorFlow has started.

    Args:
      name: the name of the argument that comes too late.
      variable: the environment variable with the same effect.
    """
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
    """Returns whether TensorFlow has created its devices; it cannot be configured then."""
    # No public function answers this, so a setting is changed and changed back:
    # TensorFlow raises RuntimeError once it has started.
    threading = tf.config.threading
    threads = threading.get_inter_op_parallelism_threads()
    try:
        threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:
        return True
    threading.set_inter_op_parallelism_threads(threads)
    return False
