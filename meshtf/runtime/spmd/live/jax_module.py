"""The module `jax`, imported when the first live mesh needs it.

Compiled programs are kept in the user's folder for caches, unless jax has another one
(JAX_COMPILATION_CACHE_DIR), so that a second start of a program compiles nothing.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshtf.errors import MeshError, explain_error

OLDEST_JAX = (0, 6, 2)
# The extras of setup.py that have jax, with the plugins of accelerators.
EXTRAS = "in a checkout pip install -e '.[spmd]' for CPUs, '.[cuda]' for GPUs, '.[tpu]' for TPUs"
_MIN_COMPILE_S = 0.5  # what takes less to compile is not worth a file


@functools.cache
def load_jax() -> Any:
    """Returns the module `jax`, with 64-bit types.

    Raises:
      MeshError: jax is not installed, too old, or cannot be imported.
    """
    jax = _import_jax()
    if not getattr(jax.config, "jax_compilation_cache_dir", None):
        jax.config.update("jax_compilation_cache_dir", str(_cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_S)
    # Without it jax turns float64 and int64 of variables and arguments into 32 bits.
    jax.config.update("jax_enable_x64", True)
    return jax


def _import_jax() -> Any:
    """Returns the module `jax`. Raises MeshError as `load_jax` does."""
    try:
        import jax

        version = tuple(int(text) for text in re.findall(r"\d+", jax.__version__)[:3])
        if version < OLDEST_JAX:
            raise _too_old(jax.__version__)
        import jax.export
    except MeshError:
        raise
    except (
        Exception
    ) as error:  # jax raises RuntimeError for a jaxlib of another version
        raise _import_failed(error) from None
    return jax


def _import_failed(error: Exception) -> MeshError:
    """Returns the error for a jax that cannot be imported."""
    if isinstance(error, ModuleNotFoundError) and error.name == "jax":
        return MeshError(
            explain_error(
                'devices="spmd" needs jax, which is not installed here.',
                python=sys.executable,
                way_out=f"pip install jax; {EXTRAS}.",
            )
        )
    return MeshError(
        explain_error(
            'devices="spmd" needs jax, and the one that is installed here cannot be '
            "imported.",
            python=sys.executable,
            error=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
            way_out="jax and jaxlib must have one version: "
            f"pip install --upgrade --force-reinstall jax jaxlib; {EXTRAS}.",
        )
    )


def _too_old(version: str) -> MeshError:
    """Returns the error for a version of jax that lacks what live meshes need."""
    oldest = ".".join(map(str, OLDEST_JAX))
    return MeshError(
        explain_error(
            f'devices="spmd" needs jax {oldest} or later.',
            jax=version,
            python=sys.executable,
            way_out=f"pip install --upgrade jax; {EXTRAS}.",
        )
    )


@contextlib.contextmanager
def nothing_cached() -> Iterator[None]:
    """A context in which compiled programs are not kept: those for devices that are not
    here, which jax cannot read back without them.
    """
    config = load_jax().config
    least = config.jax_persistent_cache_min_compile_time_secs
    config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    try:
        yield
    finally:
        config.update("jax_persistent_cache_min_compile_time_secs", least)


def _cache_folder() -> Path:
    """Returns the folder of compiled programs, in the user's folder for caches."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "meshtf" / "xla"
