"""How to run functions op by op, to debug them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from meshtf.graph import context


@contextlib.contextmanager
def run_functions_eagerly() -> Iterator[None]:
    """Within this context, each `mtf.function` runs op by op, without a trace, so that a
    debugger stops in it and `print` shows values.

        with mtf.run_functions_eagerly():
            train_step(batch)
    """
    with context(functions_run_eagerly=True):
        yield
