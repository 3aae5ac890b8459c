"""Errors of jax that say that a device has too little memory, as errors of meshtf.

with memory_errors("train_step"):
    outputs = compiled(*arrays)          # DeviceMemoryError, without jax's traceback
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from meshtf.errors import DeviceMemoryError, MeshtfError

# What the messages of jax's errors say; older versions have no code for it.
_OUT_OF_MEMORY = re.compile("RESOURCE_EXHAUSTED|Out of memory")


@contextlib.contextmanager
def memory_errors(program: str) -> Iterator[None]:
    """A context in which jax compiles or runs a program, or copies arrays from or to a device.

    Args:
      program: the name of the program, for errors.

    Raises:
      DeviceMemoryError: in place of jax's error, if the memory of a device does not suffice.
    """
    try:
        yield
    except MeshtfError:
        raise
    except Exception as error:  # the class of jax's errors depends on its version
        if not _OUT_OF_MEMORY.search(str(error)):
            raise
        raise DeviceMemoryError(program, str(error).splitlines()[0]) from None
