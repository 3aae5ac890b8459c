"""A `tf.data.Dataset` of what a Python function makes of a number, made some steps
ahead.

    dataset = steps_ahead(make, steps=10, wanted={"x": tf.TensorSpec([4], tf.int32)})

`make(step)` is a pure function. It runs in threads of Python, so that the next steps
are made while the device works, and tf.data only fetches: a thread of tf.data that
waits for Python when a program ends, as under `prefetch`, would keep it from ending.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import meshtf as mtf

ENDLESS = np.iinfo(np.int64).max
_AHEAD, _THREADS = 4, 2

Arrays = dict[str, np.ndarray]


def steps_ahead(
    make: Callable[[int], Arrays], steps: int, wanted: dict[str, tf.TensorSpec]
) -> tf.data.Dataset:
    """Returns a dataset of make(0), make(1), ...

    Args:
      make: returns the arrays of a step.
      steps: how many there are.
      wanted: names, shapes and types of the arrays.
    """
    ahead = _Ahead(make, steps)

    def flat(step: np.ndarray) -> list[np.ndarray]:
        made = ahead(int(step))
        return [made[name] for name in wanted]

    def at(step: tf.Tensor) -> dict[str, tf.Tensor]:
        made = tf.numpy_function(
            flat, [step], [spec.dtype for spec in wanted.values()], stateful=False
        )
        return {
            name: tf.ensure_shape(values, spec.shape)
            for values, (name, spec) in zip(made, wanted.items())
        }

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return mtf.untuned(tf.data.Dataset.range(steps).map(at).with_options(options))


class _Ahead:
    """Calls a pure function of a number, and begins with the numbers after it.

    Two iterators may take from it: who comes second has what is gone made once more.
    """

    def __init__(self, make: Callable[[int], Arrays], steps: int) -> None:
        self._make, self._steps, self._lock = make, steps, threading.Lock()
        self._begun: dict[int, concurrent.futures.Future[Arrays]] = {}
        self._threads = concurrent.futures.ThreadPoolExecutor(_THREADS, "batches")

    def __call__(self, step: int) -> Arrays:
        with self._lock:
            near = range(step, min(step + 1 + _AHEAD, self._steps))
            for far in [number for number in self._begun if number not in near]:
                self._begun.pop(far).cancel()
            for number in near:
                if number not in self._begun:
                    self._begun[number] = self._threads.submit(self._make, number)
            found = self._begun.pop(step)
        return found.result()
