"""Batches of a task or a mixture, readable from any example of an endless shuffled order
without a shuffle buffer.

    data = TaskData("span_corruption_stdlib", seed=1)
    data.batches(16, start=4800)             # starts after 4800 examples, in any epoch
    data.batches(16, worker=(1, 4))          # examples 4 to 7 of each batch
    TaskData("span_corruption_stdlib", folder="runs/tokenized")   # tokenized ahead of time

Of a task with N examples, number n of the endless order is example p(n mod N) of epoch
n // N, where p is a permutation keyed by (seed, epoch). Random numbers of preprocessors
depend on (seed, epoch, index of the example) only. In a mixture each task has such an
order, and n decides the task.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence

import gin
import numpy as np
import tensorflow as tf

from transformer.data.batching.features import Arrays, specs
from transformer.data.batching.prefetch import ENDLESS, prefetch_steps
from transformer.data.batching.shuffling import deal, permute
from transformer.data.datasets import tfrecord_examples
from transformer.data.datasets.tasks import Mixture, Task, find, tasks_of
from transformer.data.errors import DataError
from transformer.data.protocol import Worker
from transformer.data.sources import Examples
from transformer.data.vocabularies import Vocabulary

_HELD_OUT = 2**64 - 1  # used as the epoch of held-out examples


@gin.configurable
class TaskData:
    """A task or a mixture as `Data`. Examples are tokenized or read at first use.

    Args:
      task: a task or a mixture, or its name.
      seed: of the order and of the preprocessors. Held-out examples do not depend on
        it.
      folder: the folder that `transformer.tokenize` wrote; None: tokenize now, and keep
        the examples in memory.
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
        # The examples of each task, by split: "train" or "held_out".
        self._examples_by_task = functools.cache(self._read_split)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the tokens."""
        return self._tasks[0].vocabulary

    def features(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes and dtypes of a batch, by feature; reads no examples."""
        return specs(self._tasks[0].features, batch_size)

    def batches(
        self, batch_size: int, start: int = 0, worker: Worker = (0, 1)
    ) -> tf.data.Dataset:
        """Returns an endless dataset of batches, after `start` examples; see
        `Data`.
        """
        local = worker_slice(batch_size, worker)
        self._training_batch(np.array([start]))  # so that errors are raised at once

        def local_batch(step: int) -> Arrays:
            offset = start + step * batch_size
            indices = np.arange(offset + local.start, offset + local.stop)
            return self._training_batch(indices)

        return prefetch_steps(local_batch, ENDLESS, self.features(len(local)))

    def held_out(
        self, batch_size: int, num_examples: int | None = None
    ) -> tf.data.Dataset:
        """Returns the held-out examples, once and in a fixed order, with `counts`; see
        `Data`.
        """
        examples_by_task = self._examples_by_task("held_out")
        # (task, index of the example in the task)
        indices = [
            (k, i)
            for k, examples in enumerate(examples_by_task)
            for i in range(len(examples))
        ]
        total = len(indices)
        if num_examples is not None and num_examples < total:
            indices = [
                indices[(i * total + total // 2) // num_examples]
                for i in range(num_examples)
            ]

        def batch(step: int) -> Arrays:
            batch_indices = indices[step * batch_size : (step + 1) * batch_size]
            arrays = [
                self._tasks[k].arrays(
                    examples_by_task[k][i], (self._key(k), _HELD_OUT, i)
                )
                for k, i in batch_indices
            ]
            stacked = _stacked(arrays, batch_size)
            is_example = np.arange(batch_size) < len(batch_indices)
            return {**stacked, "counts": is_example.astype(np.float32)}

        with_counts = {
            **self.features(batch_size),
            "counts": tf.TensorSpec([batch_size], tf.float32, "counts"),
        }
        num_batches = -(-len(indices) // batch_size)
        return prefetch_steps(batch, num_batches, with_counts)

    def __str__(self) -> str:
        texts = [
            f"{task.name}: {len(train):,} training examples, {len(held_out):,} held out"
            for task, train, held_out in zip(
                self._tasks,
                self._examples_by_task("train"),
                self._examples_by_task("held_out"),
            )
        ]
        shares = [share / sum(self._shares) for share in self._shares]
        if isinstance(self.task, Mixture):
            texts = [f"{share:.1%} {text}" for share, text in zip(shares, texts)]
        source = f"; from {self.folder}" if self.folder else ""
        return f"{'; '.join(texts)}; {self.vocabulary}{source}"

    def _training_batch(self, indices: np.ndarray) -> Arrays:
        """Returns the training examples at indices of the endless order, stacked."""
        # For each example: its task, and its index in the order of that task.
        dealt = [deal(int(index), self._shares) for index in indices]
        batch: list[Arrays] = [{}] * len(dealt)
        for k, examples in enumerate(self._examples_by_task("train")):
            slots = [slot for slot, (task, _) in enumerate(dealt) if task == k]
            task_indices = np.array([dealt[slot][1] for slot in slots], np.int64)
            order = self._shuffled(k, task_indices, len(examples))
            for slot, (epoch, i) in zip(slots, order):
                seed = (self._key(k), self.seed, epoch, i)
                batch[slot] = self._tasks[k].arrays(examples[i], seed)
        return _stacked(batch, len(indices))

    def _shuffled(
        self, k: int, indices: np.ndarray, num_examples: int
    ) -> list[tuple[int, int]]:
        """Returns (epoch, example) at indices of the endless order of task k."""
        epochs = indices // num_examples
        shuffled = indices % num_examples
        for epoch in set(epochs.tolist()):
            of_epoch = epochs == epoch
            key = (self._key(k), self.seed, epoch)
            shuffled[of_epoch] = permute(shuffled[of_epoch], num_examples, key)
        return list(zip(epochs.tolist(), shuffled.tolist()))

    def _key(self, k: int) -> int:
        """Returns the key of task k in seeds, from its name."""
        return zlib.crc32(self._tasks[k].name.encode())

    def _read_split(self, split: str) -> Sequence[Examples]:
        return [self._read_task(task, split) for task in self._tasks]

    def _read_task(self, task: Task, split: str) -> Examples:
        """Returns the examples of a split of a task. Raises DataError: there are none."""
        if self.folder is not None and task.packing is not None:
            return tfrecord_examples.stored_examples(task, self.folder, split)
        examples = tfrecord_examples.make_examples(task, split, seed=0)
        if not isinstance(examples, Sequence):
            examples = list(examples)
        if not examples:
            raise DataError(
                f"task {task.name!r} has no example for {split}: its texts are too few "
                "or too short."
            )
        return examples


def worker_slice(batch_size: int, worker: Worker) -> range:
    """Returns the indices in a batch that a worker, (index, count of workers), reads.

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


def _stacked(examples: Sequence[Arrays], batch_size: int) -> Arrays:
    """Returns the arrays of examples as a batch, padded with zeros."""
    num_padding = batch_size - len(examples)
    batch = {}
    for name, array in examples[0].items():
        stacked = np.stack([example[name] for example in examples])
        padding = np.zeros((num_padding, *array.shape), array.dtype)
        batch[name] = np.concatenate([stacked, padding])
    return batch
