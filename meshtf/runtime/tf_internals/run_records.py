"""The graphs that TensorFlow has run, for benchmarks and tests; the library itself does
not use this module.

Example:

    with recorded_graphs() as graphs:
        step(batch)                      # the first call
    graphs[0][0].node                    # nodes of the first function, on its first device
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tensorflow.python.eager import context
from tensorflow.python.framework.function_def_to_graph import function_def_to_graph


@contextlib.contextmanager
def recorded_graphs() -> Iterator[list[list[Any]]]:
    """Collects the functions that run for the first time in the block.

    Yields:
      A list that is filled when the block ends: for each function its GraphDefs, one
      for each device, as TensorFlow optimised and partitioned them.
    """
    graphs: list[list[Any]] = []
    eager = context.context()
    eager.enable_run_metadata()
    try:
        eager.export_run_metadata()  # discards the records of functions that ran before
        yield graphs
        for function in eager.export_run_metadata().function_graphs:
            graphs.append(list(function.partition_graphs))
    finally:
        eager.disable_run_metadata()


def graph_of(definition: Any) -> Any:
    """Returns a tf.Graph with the ops of a FunctionDef."""
    return function_def_to_graph(definition)
