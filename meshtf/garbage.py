"""Python's collection of garbage, which traverses all objects again and again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Within this context, Python looks for no garbage: plans and graphs are many objects, and
    no garbage as long as they are needed.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
