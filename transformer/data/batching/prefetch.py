"""A prefetched `tf.data.Dataset` of the arrays that a Python function returns for each step.

    specs = {"x": ArraySpec((4,), np.dtype("int32"), "x")}
    dataset = prefetch_steps(make_arrays, steps=10, specs=specs)

`make_arrays(step)` is a pure function. It is called in Python threads, so that the arrays of
the next steps are made while the device works; tf.data only fetches the results. (With
prefetching by tf.data, the program might never end: a thread of tf.data would wait for
Python at exit.)
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import meshtf as mtf
from transformer.data.array_spec import ArraySpec

ENDLESS = np.iinfo(np.int64).max  # the count of steps of an endless dataset
_NUM_PREFETCHED = 4  # steps that are made ahead of the requested step
_NUM_THREADS = 2

Arrays = dict[str, np.ndarray]


def prefetch_steps(
    make_arrays: Callable[[int], Arrays], steps: int, specs: dict[str, ArraySpec]
) -> tf.data.Dataset:
    """Returns a dataset of make_arrays(0), make_arrays(1), ...

    Args:
      make_arrays: returns the arrays of a step.
      steps: the count of steps.
      specs: shapes and dtypes of the arrays, by name.
    """
    prefetcher = _Prefetcher(make_arrays, steps)

    def list_arrays(step: np.ndarray) -> list[np.ndarray]:
        """Returns the arrays of a step in the order of `specs`."""
        arrays = prefetcher(int(step))
        return [arrays[name] for name in specs]

    def fetch(step: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the arrays of a step by name, as tensors of static shapes."""
        dtypes = [spec.dtype for spec in specs.values()]
        # A numpy_function returns a list, and does not know shapes.
        tensors = tf.numpy_function(list_arrays, [step], dtypes, stateful=False)
        return {
            name: tf.ensure_shape(tensor, spec.shape)
            for tensor, (name, spec) in zip(tensors, specs.items())
        }

    options = tf.data.Options()
    # Otherwise TensorFlow would add a prefetch at the end.
    options.experimental_optimization.inject_prefetch = False
    return mtf.cluster.without_autotuning(
        tf.data.Dataset.range(steps).map(fetch).with_options(options)
    )


class _Prefetcher:
    """Returns the arrays of a step, and starts to make the arrays of the next steps.

    Several iterators may share it: arrays that another iterator has consumed are made again.

    Args:
      make_arrays: returns the arrays of a step.
      steps: the count of steps.
    """

    def __init__(self, make_arrays: Callable[[int], Arrays], steps: int) -> None:
        self._make_arrays = make_arrays
        self._steps = steps
        self._lock = threading.Lock()
        # Step -> its arrays, which a thread makes or has made.
        self._pending: dict[int, concurrent.futures.Future[Arrays]] = {}
        self._threads = concurrent.futures.ThreadPoolExecutor(
            _NUM_THREADS, thread_name_prefix="batches"
        )

    def __call__(self, step: int) -> Arrays:
        with self._lock:
            next_steps = range(step, min(step + 1 + _NUM_PREFETCHED, self._steps))
            # Steps that were made ahead for another iterator, at another step.
            stale_steps = [
                pending_step
                for pending_step in self._pending
                if pending_step not in next_steps
            ]
            for stale_step in stale_steps:
                self._pending.pop(stale_step).cancel()
            for next_step in next_steps:
                if next_step not in self._pending:
                    self._pending[next_step] = self._threads.submit(
                        self._make_arrays, next_step
                    )
            future = self._pending.pop(step)
        return future.result()
