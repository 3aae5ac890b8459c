"""A `tf.data.Dataset` of the arrays that a Python function returns for each step,
prefetched.

    dataset = prefetch_steps(make_arrays, steps=10, specs={"x": tf.TensorSpec([4], tf.int32)})

`make_arrays(step)` is a pure function. It runs in Python threads, so that the next steps are
prepared while the device works, and tf.data only fetches the results. A prefetch thread of
tf.data that waits for Python at exit would keep the program from ending.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import meshtf as mtf

ENDLESS = np.iinfo(np.int64).max
_NUM_PREFETCHED = 4  # steps
_NUM_THREADS = 2

Arrays = dict[str, np.ndarray]


def prefetch_steps(
    make_arrays: Callable[[int], Arrays], steps: int, specs: dict[str, tf.TensorSpec]
) -> tf.data.Dataset:
    """Returns a dataset of make_arrays(0), make_arrays(1), ...

    Args:
      make_arrays: returns the arrays of a step.
      steps: the count of steps.
      specs: shapes and dtypes of the arrays, by name.
    """
    prefetcher = _Prefetcher(make_arrays, steps)

    def flat(step: np.ndarray) -> list[np.ndarray]:
        arrays = prefetcher(int(step))
        return [arrays[name] for name in specs]

    def fetch(step: tf.Tensor) -> dict[str, tf.Tensor]:
        dtypes = [spec.dtype for spec in specs.values()]
        tensors = tf.numpy_function(flat, [step], dtypes, stateful=False)
        return {
            name: tf.ensure_shape(values, spec.shape)
            for values, (name, spec) in zip(tensors, specs.items())
        }

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return mtf.cluster.without_autotuning(
        tf.data.Dataset.range(steps).map(fetch).with_options(options)
    )


class _Prefetcher:
    """Calls a pure function of a step, and starts the calls of the next steps.

    Several iterators may share it: steps that an earlier one has consumed are computed
    again.
    """

    def __init__(self, make_arrays: Callable[[int], Arrays], steps: int) -> None:
        self._make_arrays = make_arrays
        self._steps = steps
        self._lock = threading.Lock()
        self._pending: dict[int, concurrent.futures.Future[Arrays]] = {}
        self._threads = concurrent.futures.ThreadPoolExecutor(_NUM_THREADS, "batches")

    def __call__(self, step: int) -> Arrays:
        with self._lock:
            window = range(step, min(step + 1 + _NUM_PREFETCHED, self._steps))
            for stale in [k for k in self._pending if k not in window]:
                self._pending.pop(stale).cancel()
            for k in window:
                if k not in self._pending:
                    self._pending[k] = self._threads.submit(self._make_arrays, k)
            future = self._pending.pop(step)
        return future.result()
