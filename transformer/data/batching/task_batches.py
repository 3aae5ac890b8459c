"""Batches of a task or a mixture, readable from any example of an endless shuffled order
without a shuffle buffer.

    data = TaskData("span_corruption_stdlib", seed=1)
    data.batches(16, start=4800)             # starts after 4800 examples, in any epoch
    data.batches(16, worker=(1, 4))          # examples 4 to 7 of each batch
    TaskData("span_corruption_stdlib", folder="runs/tokenized")   # tokenized ahead of time

For a task with N examples, the n-th element of the endless order is example p(n mod N) in
epoch n // N, where p is a permutation that depends on (seed, epoch). Random numbers of
preprocessors depend only on (seed, epoch, index of the example). In a mixture, each task has
such an order, and the task of the n-th element is a function of n.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import gin
import numpy as np
import tensorflow as tf

from transformer.data.array_spec import ArraySpec
from transformer.data.batching.features import Arrays, specs
from transformer.data.batching.prefetch import ENDLESS, prefetch_steps
from transformer.data.batching.shuffling import deal, permute
from transformer.data.datasets import tfrecord_examples
from transformer.data.datasets.tasks import Mixture, Task, find, tasks_of
from transformer.data.errors import DataError
from transformer.data.protocol import Worker
from transformer.data.sources import Examples
from transformer.data.vocabularies import Vocabulary

# In the seeds of held-out examples, in place of the epoch: no training epoch has this index.
_HELD_OUT_EPOCH = 2**64 - 1


class _ExampleIndex(NamedTuple):
    """The index of an example of a mixture.

    Attributes:
      task: the index of its task.
      example: its index among the examples of the task.
    """

    task: int
    example: int


class _EpochIndex(NamedTuple):
    """An element of the endless order of a task.

    Attributes:
      epoch: the index of the epoch, from 0.
      example: the index of the example among the examples of the task.
    """

    epoch: int
    example: int


@gin.configurable
class TaskData:
    """A task or a mixture as `Data`. Examples are tokenized or read at first use.

    Args:
      task: a task or a mixture, or its name.
      seed: the seed of the order and of the preprocessors. Held-out examples do not depend
        on it.
      folder: the folder that `transformer.tokenize` wrote; None: texts are tokenized at
        first use, and the examples are stored in memory.
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
        # The share of each task in the examples, as integers of any sum.
        self._shares = [1]
        if isinstance(self.task, Mixture):
            self._shares = self.task.integer_shares()
        # From a split, "train" or "held_out", to the examples of each task; read at first use.
        self._examples_by_task = functools.cache(self._read_split)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokens."""
        return self._tasks[0].vocabulary

    def features(self, batch_size: int) -> dict[str, ArraySpec]:
        """Returns the shape and dtype of each feature of a batch, by name; reads no
        examples.
        """
        return specs(self._tasks[0].features, batch_size)

    def batches(
        self, batch_size: int, start: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches, after `start` examples: see
        `Data.batches`.
        """
        # The slice of each batch that this worker reads.
        local_slice = worker_slice(batch_size, worker)
        # A check: errors of the data are raised here, not when the dataset is read.
        self._training_batch(np.array([start]))

        def local_batch(step: int) -> Arrays:
            """Returns the arrays of this worker's slice of a batch."""
            offset = start + step * batch_size
            indices = np.arange(offset + local_slice.start, offset + local_slice.stop)
            return self._training_batch(indices)

        local_specs = self.features(len(local_slice))
        return prefetch_steps(local_batch, steps=ENDLESS, specs=local_specs)

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Returns a dataset of batches that has each held-out example once, in a fixed order,
        with `counts`: see `Data.held_out`.
        """
        indices = self._held_out_indices(num_examples)

        def batch(step: int) -> Arrays:
            """Returns the arrays of a batch, with `counts`."""
            batch_indices = indices[step * batch_size : (step + 1) * batch_size]
            examples = [self._held_out_example(index) for index in batch_indices]
            arrays = _stack(examples, batch_size)
            is_example = np.arange(batch_size) < len(batch_indices)
            return {**arrays, "counts": is_example.astype(np.float32)}

        specs_with_counts = {
            **self.features(batch_size),
            "counts": ArraySpec((batch_size,), np.dtype("float32"), "counts"),
        }
        num_batches = -(-len(indices) // batch_size)  # rounded up
        return prefetch_steps(batch, steps=num_batches, specs=specs_with_counts)

    def _held_out_indices(self, num_examples: int | None) -> list[_ExampleIndex]:
        """Returns the indices of `num_examples` held-out examples, evenly spaced; None: of
        all.
        """
        indices = [
            _ExampleIndex(task=task_index, example=example_index)
            for task_index, examples in enumerate(self._examples_by_task("held_out"))
            for example_index in range(len(examples))
        ]
        total = len(indices)
        if num_examples is None or num_examples >= total:
            return indices
        # Example i is in the middle of the i-th of `num_examples` equal sections:
        # (i * total + total / 2) / num_examples, rounded down.
        return [
            indices[(i * total + total // 2) // num_examples]
            for i in range(num_examples)
        ]

    def _held_out_example(self, index: _ExampleIndex) -> Arrays:
        """Returns the arrays of a held-out example."""
        example = self._examples_by_task("held_out")[index.task][index.example]
        seed = (self._task_key(index.task), _HELD_OUT_EPOCH, index.example)
        return self._tasks[index.task].arrays(example, seed)

    def __str__(self) -> str:
        texts = [
            f"{task.name}: {len(train):,} training examples, {len(held_out):,} held out"
            for task, train, held_out in zip(
                self._tasks,
                self._examples_by_task("train"),
                self._examples_by_task("held_out"),
            )
        ]
        if isinstance(self.task, Mixture):
            total = sum(self._shares)
            texts = [
                f"{share / total:.1%} {text}"
                for share, text in zip(self._shares, texts)
            ]
        source = f"; from {self.folder}" if self.folder else ""
        return f"{'; '.join(texts)}; {self.vocabulary}{source}"

    def _training_batch(self, indices: np.ndarray) -> Arrays:
        """Returns the training examples at indices of the endless order, stacked.

        Args:
          indices: int64 [batch].
        """
        batch: list[Arrays] = [{}] * len(indices)  # the arrays of each example
        # For each task: entries of the batch, and their indices in the order of the task.
        entries_by_task: list[list[int]] = [[] for _ in self._tasks]
        indices_by_task: list[list[int]] = [[] for _ in self._tasks]
        for entry, index in enumerate(indices):
            task_index, index_in_task = deal(int(index), self._shares)
            entries_by_task[task_index].append(entry)
            indices_by_task[task_index].append(index_in_task)
        for task_index, examples in enumerate(self._examples_by_task("train")):
            indices_of_task = np.array(indices_by_task[task_index], np.int64)
            epoch_indices = self._shuffle(
                task_index, indices_of_task, num_examples=len(examples)
            )
            entries = entries_by_task[task_index]
            for entry, (epoch, example_index) in zip(entries, epoch_indices):
                seed = (self._task_key(task_index), self.seed, epoch, example_index)
                task = self._tasks[task_index]
                batch[entry] = task.arrays(examples[example_index], seed)
        return _stack(batch, batch_size=len(indices))

    def _shuffle(
        self, task_index: int, indices: np.ndarray, num_examples: int
    ) -> list[_EpochIndex]:
        """Returns the epochs and examples at indices of the endless order of a task.

        Args:
          task_index: the index of the task.
          indices: int64 [examples].
          num_examples: the count of examples of the task.
        """
        epochs = indices // num_examples
        shuffled = indices % num_examples
        for epoch in set(epochs.tolist()):
            is_in_epoch = epochs == epoch
            key = (self._task_key(task_index), self.seed, epoch)
            shuffled[is_in_epoch] = permute(
                shuffled[is_in_epoch], size=num_examples, key=key
            )
        return [
            _EpochIndex(epoch, example)
            for epoch, example in zip(epochs.tolist(), shuffled.tolist())
        ]

    def _task_key(self, task_index: int) -> int:
        """Returns the integer that stands for a task in seeds: a hash of its name."""
        return zlib.crc32(self._tasks[task_index].name.encode())

    def _read_split(self, split: str) -> Sequence[Examples]:
        """Returns the examples of a split, "train" or "held_out", of each task."""
        return [self._read_task(task, split) for task in self._tasks]

    def _read_task(self, task: Task, split: str) -> Examples:
        """Returns the examples of a split of a task.

        Raises:
          DataError: there are none.
        """
        if self.folder is not None and task.packing is not None:
            return tfrecord_examples.stored_examples(task, self.folder, split)
        examples = tfrecord_examples.make_examples(task, split, seed=0)
        if not isinstance(examples, Sequence):  # a packing returns an iterator
            examples = list(examples)
        if not examples:
            raise DataError(
                f"task {task.name!r} has no example for {split}: its texts are too few "
                "or too short."
            )
        return examples


def worker_slice(batch_size: int, worker: Worker) -> range:
    """Returns the indices of the examples of a batch that a worker reads.

    Args:
      batch_size: the count of examples of a batch, of all workers together.
      worker: the index of the worker, and the count of workers.

    Raises:
      DataError: the batch size is not a multiple of the count of workers.
    """
    index, num_workers = worker
    if not 0 <= index < num_workers:
        raise DataError(f"worker {index} of {num_workers}: they are counted from 0.")
    if batch_size % num_workers:
        raise DataError(
            f"a batch of {batch_size} examples cannot be split evenly over {num_workers} "
            "workers."
        )
    start = batch_size * index // num_workers
    stop = batch_size * (index + 1) // num_workers
    return range(start, stop)


def _stack(examples: Sequence[Arrays], batch_size: int) -> Arrays:
    """Returns the arrays of examples as a batch: stacked, and padded with zeros to
    `batch_size`.
    """
    num_padding = batch_size - len(examples)
    batch = {}
    for name, array in examples[0].items():
        stacked = np.stack([example[name] for example in examples])
        padding = np.zeros((num_padding, *array.shape), array.dtype)
        batch[name] = np.concatenate([stacked, padding])
    return batch
