"""Batches of a task or a mixture: any place of an endless order can be gone to, and
held is little.

    data = TaskData("span_corruption_stdlib", seed=1)
    data.batches(16, first=4800)             # goes on after 4800 examples, in any epoch
    data.batches(16, worker=(1, 4))          # rows 4 to 7 of each batch
    TaskData("span_corruption_stdlib", folder="runs/rows")      # rows that were tokenised before

Example n is row p(n mod rows) of epoch n // rows, where p is a permutation keyed by
(seed, epoch). What preprocessors draw depends on (seed, epoch, row) alone. In a mixture
each task has such an order, and the number of the example says whose turn it is.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence

import gin
import numpy as np
import tensorflow as tf

from transformer.data.batching.features import Arrays, specs
from transformer.data.batching.prefetch import ENDLESS, steps_ahead
from transformer.data.batching.shuffling import dealt, permuted
from transformer.data.datasets import tfrecord_rows
from transformer.data.datasets.tasks import Mixture, Task, find, tasks_of
from transformer.data.errors import DataError
from transformer.data.protocol import Worker
from transformer.data.sources import Examples
from transformer.data.vocabularies import Vocabulary

_HELD_OUT = 2**64 - 1  # what stands for the epoch where the order is fixed


@gin.configurable
class TaskData:
    """A task or a mixture as `Data`: rows are made, or found, when they are first asked
    for.

    Args:
      task: its name, or itself.
      seed: of the order, and of what preprocessors draw. The held-out examples do not
        depend on it.
      folder: where `transformer.tokenize` wrote rows; None makes them, and holds them
        in memory.
    """

    def __init__(
        self,
        task: str | Task | Mixture = gin.REQUIRED,
        seed: int = 0,
        folder: str | None = None,
    ) -> None:
        self.task = find(task) if isinstance(task, str) else task
        self.seed, self.folder = seed, folder
        self._tasks = tasks_of(self.task)
        self._shares = (
            self.task.whole_shares() if isinstance(self.task, Mixture) else [1]
        )
        self._sides = functools.cache(self._read)  # the rows of all tasks, by side

    @property
    def vocabulary(self) -> Vocabulary:
        """What tokens stand for."""
        return self._tasks[0].vocabulary

    def features(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns names, shapes and types of a batch; reads no examples."""
        return specs(self._tasks[0].features, batch_size)

    def batches(
        self, batch_size: int, first: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches, after the first `first` examples; see
        `Data`.
        """
        here = worker_slice(batch_size, worker)
        self._made(
            np.arange(first, first + 1), 1
        )  # so that what is wrong is told at once

        def rows(step: int) -> Arrays:
            begin = first + step * batch_size
            return self._made(
                np.arange(begin + here.start, begin + here.stop), len(here)
            )

        return steps_ahead(rows, ENDLESS, self.features(len(here)))

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Returns the held-out examples, once and in a fixed order, with `counts`; see
        `Data`.
        """
        sides = self._sides("held_out")
        places = [(k, at) for k, rows in enumerate(sides) for at in range(len(rows))]
        if num_examples is not None and num_examples < len(places):
            places = [
                places[(k * len(places) + len(places) // 2) // num_examples]
                for k in range(num_examples)
            ]

        def rows(step: int) -> Arrays:
            some = places[step * batch_size : (step + 1) * batch_size]
            made = [
                self._tasks[k].arrays(sides[k][at], (self._key(k), _HELD_OUT, at))
                for k, at in some
            ]
            return {
                **_stacked(made, batch_size),
                "counts": (np.arange(batch_size) < len(some)).astype(np.float32),
            }

        with_counts = {
            **self.features(batch_size),
            "counts": tf.TensorSpec([batch_size], tf.float32, "counts"),
        }
        return steps_ahead(rows, -(-len(places) // batch_size), with_counts)

    def __str__(self) -> str:
        parts = [
            f"{task.name}: {len(rows):,} rows to learn from, {len(held):,} held out"
            for task, rows, held in zip(
                self._tasks, self._sides("train"), self._sides("held_out")
            )
        ]
        shares = [share / sum(self._shares) for share in self._shares]
        if isinstance(self.task, Mixture):
            parts = [f"{share:.1%} {part}" for share, part in zip(shares, parts)]
        return f"{'; '.join(parts)}; {self.vocabulary}" + (
            f"; from {self.folder}" if self.folder else ""
        )

    def _made(self, numbers: np.ndarray, batch_size: int) -> Arrays:
        """Returns the examples of some numbers of the endless order."""
        turns = [dealt(int(number), self._shares) for number in numbers]
        made: list[Arrays] = [{}] * len(turns)
        for k, (task, rows) in enumerate(zip(self._tasks, self._sides("train"))):
            mine = [place for place, (who, _) in enumerate(turns) if who == k]
            order = self._order(
                k, np.array([turns[place][1] for place in mine], np.int64), len(rows)
            )
            for place, (epoch, at) in zip(mine, order):
                made[place] = task.arrays(
                    rows[at], (self._key(k), self.seed, epoch, at)
                )
        return _stacked(made, batch_size)

    def _order(self, k: int, numbers: np.ndarray, size: int) -> list[tuple[int, int]]:
        """Returns epoch and row of some of a task's examples."""
        epochs, rows = numbers // size, numbers % size
        for epoch in set(epochs.tolist()):
            those = epochs == epoch
            rows[those] = permuted(rows[those], size, (self._key(k), self.seed, epoch))
        return list(zip(epochs.tolist(), rows.tolist()))

    def _key(self, k: int) -> int:
        return zlib.crc32(self._tasks[k].name.encode())

    def _read(self, side: str) -> Sequence[Examples]:
        return [self._rows(task, side) for task in self._tasks]

    def _rows(self, task: Task, side: str) -> Examples:
        if self.folder is not None and task.rows is not None:
            return tfrecord_rows.stored_rows(task, self.folder, side)
        rows = tfrecord_rows.make_rows(task, side, seed=0)
        rows = rows if isinstance(rows, Sequence) else list(rows)
        if not rows:
            raise DataError(
                f"task {task.name!r} has no row for {side}: its texts are too few or "
                "too short."
            )
        return rows


def worker_slice(batch_size: int, worker: Worker) -> range:
    """Returns which rows of a batch worker w of n reads. Raises DataError: they cannot
    be dealt out evenly."""
    which, number = worker
    if not 0 <= which < number:
        raise DataError(f"worker {which} of {number}: they are counted from 0.")
    if batch_size % number:
        raise DataError(
            f"a batch of {batch_size} cannot be dealt out evenly to {number} workers."
        )
    return range(batch_size * which // number, batch_size * (which + 1) // number)


def _stacked(made: Sequence[Arrays], batch_size: int) -> Arrays:
    """Returns the arrays of examples one above another, filled up with rows
    of zeros.
    """
    missing = batch_size - len(made)
    return {
        name: np.concatenate(
            [
                np.stack([one[name] for one in made]),
                np.zeros((missing, *first.shape), first.dtype),
            ]
        )
        for name, first in made[0].items()
    }
