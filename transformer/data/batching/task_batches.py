"""Batches of a task or a mixture, readable from any example of an endless shuffled order
without a shuffle buffer.

    data = TaskData("span_corruption_stdlib", seed=1)
    data.batches(16, first=4800)             # starts after 4800 examples, in any epoch
    data.batches(16, worker=(1, 4))          # examples 4 to 7 of each batch
    TaskData("span_corruption_stdlib", folder="runs/rows")      # rows that were tokenized before

Example n is row p(n mod rows) of epoch n // rows, where p is a permutation keyed by
(seed, epoch). Random numbers of preprocessors depend on (seed, epoch, row) only. In a
mixture each task has such an order, and the index of an example decides its task.
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

_HELD_OUT = 2**64 - 1  # used as the epoch of held-out examples


@gin.configurable
class TaskData:
    """A task or a mixture as `Data`. Rows are tokenized or read at first use.

    Args:
      task: a task or a mixture, or its name.
      seed: of the order and of the preprocessors. Held-out examples do not depend on
        it.
      folder: where `transformer.tokenize` wrote rows; None: tokenize now, and keep the
        rows in memory.
    """

    def __init__(
        self,
        task: str | Task | Mixture = gin.REQUIRED,
        seed: int = 0,
        folder: str | None = None,
    ) -> None:
        self.task = find(task) if isinstance(task, str) else task
        self.seed = seed
        self.folder = folder
        self._tasks = tasks_of(self.task)
        self._shares = [1]
        if isinstance(self.task, Mixture):
            self._shares = self.task.integer_shares()
        # Rows of each task, by split: "train" or "held_out".
        self._split_rows = functools.cache(self._read_split)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokens."""
        return self._tasks[0].vocabulary

    def features(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes and dtypes of a batch, by feature; reads no examples."""
        return specs(self._tasks[0].features, batch_size)

    def batches(
        self, batch_size: int, first: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches, after the first `first` examples; see
        `Data`.
        """
        local = worker_slice(batch_size, worker)
        self._examples(np.array([first]))  # so that errors are raised at once

        def local_batch(step: int) -> Arrays:
            start = first + step * batch_size
            return self._examples(np.arange(start + local.start, start + local.stop))

        return steps_ahead(local_batch, ENDLESS, self.features(len(local)))

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Returns the held-out examples, once and in a fixed order, with `counts`; see
        `Data`.
        """
        rows_by_task = self._split_rows("held_out")
        indices = [
            (k, row) for k, rows in enumerate(rows_by_task) for row in range(len(rows))
        ]
        total = len(indices)
        if num_examples is not None and num_examples < total:
            indices = [
                indices[(i * total + total // 2) // num_examples]
                for i in range(num_examples)
            ]

        def batch(step: int) -> Arrays:
            batch_indices = indices[step * batch_size : (step + 1) * batch_size]
            examples = [
                self._tasks[k].arrays(
                    rows_by_task[k][row], (self._key(k), _HELD_OUT, row)
                )
                for k, row in batch_indices
            ]
            arrays = _stacked(examples, batch_size)
            is_example = np.arange(batch_size) < len(batch_indices)
            return {**arrays, "counts": is_example.astype(np.float32)}

        with_counts = {
            **self.features(batch_size),
            "counts": tf.TensorSpec([batch_size], tf.float32, "counts"),
        }
        num_batches = -(-len(indices) // batch_size)
        return steps_ahead(batch, num_batches, with_counts)

    def __str__(self) -> str:
        texts = [
            f"{task.name}: {len(train):,} rows to learn from, {len(held_out):,} held out"
            for task, train, held_out in zip(
                self._tasks, self._split_rows("train"), self._split_rows("held_out")
            )
        ]
        shares = [share / sum(self._shares) for share in self._shares]
        if isinstance(self.task, Mixture):
            texts = [f"{share:.1%} {text}" for share, text in zip(shares, texts)]
        source = f"; from {self.folder}" if self.folder else ""
        return f"{'; '.join(texts)}; {self.vocabulary}{source}"

    def _examples(self, indices: np.ndarray) -> Arrays:
        """Returns the training examples at indices of the endless order, stacked."""
        # For each example: its task, and its index in the order of that task.
        turns = [dealt(int(index), self._shares) for index in indices]
        examples: list[Arrays] = [{}] * len(turns)
        for k, (task, rows) in enumerate(zip(self._tasks, self._split_rows("train"))):
            slots = [
                slot for slot, (task_index, _) in enumerate(turns) if task_index == k
            ]
            task_indices = np.array([turns[slot][1] for slot in slots], np.int64)
            order = self._epochs_and_rows(k, task_indices, len(rows))
            for slot, (epoch, row) in zip(slots, order):
                seed = (self._key(k), self.seed, epoch, row)
                examples[slot] = task.arrays(rows[row], seed)
        return _stacked(examples, len(indices))

    def _epochs_and_rows(
        self, k: int, indices: np.ndarray, num_rows: int
    ) -> list[tuple[int, int]]:
        """Returns (epoch, row) at indices of the endless order of task k."""
        epochs = indices // num_rows
        rows = indices % num_rows
        for epoch in set(epochs.tolist()):
            of_epoch = epochs == epoch
            key = (self._key(k), self.seed, epoch)
            rows[of_epoch] = permuted(rows[of_epoch], num_rows, key)
        return list(zip(epochs.tolist(), rows.tolist()))

    def _key(self, k: int) -> int:
        return zlib.crc32(self._tasks[k].name.encode())

    def _read_split(self, split: str) -> Sequence[Examples]:
        return [self._rows(task, split) for task in self._tasks]

    def _rows(self, task: Task, split: str) -> Examples:
        if self.folder is not None and task.rows is not None:
            return tfrecord_rows.stored_rows(task, self.folder, split)
        rows = tfrecord_rows.make_rows(task, split, seed=0)
        rows = rows if isinstance(rows, Sequence) else list(rows)
        if not rows:
            raise DataError(
                f"task {task.name!r} has no row for {split}: its texts are too few or "
                "too short."
            )
        return rows


def worker_slice(batch_size: int, worker: Worker) -> range:
    """Returns the examples of a batch that a worker, (index, number of workers), reads.

    Raises:
      DataError: the batch does not divide by the number of workers.
    """
    index, num_workers = worker
    if not 0 <= index < num_workers:
        raise DataError(f"worker {index} of {num_workers}: they are counted from 0.")
    if batch_size % num_workers:
        raise DataError(
            f"a batch of {batch_size} cannot be dealt out evenly to {num_workers} "
            "workers."
        )
    start = batch_size * index // num_workers
    stop = batch_size * (index + 1) // num_workers
    return range(start, stop)


def _stacked(examples: Sequence[Arrays], batch_size: int) -> Arrays:
    """Returns the arrays of examples stacked into a batch, padded with zeros."""
    num_padding = batch_size - len(examples)
    batch = {}
    for name, array in examples[0].items():
        stacked = np.stack([example[name] for example in examples])
        padding = np.zeros((num_padding, *array.shape), array.dtype)
        batch[name] = np.concatenate([stacked, padding])
    return batch
