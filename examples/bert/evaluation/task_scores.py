"""The scores of a model on the held-out examples of a task, and those of baselines.

scores = TaskScores(files, task, rows, logits)
scores.metrics()           # {"accuracy": 0.86, "loss": 0.41, "f1": 0.9}
scores.table()             # with baselines, by titles
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from examples.bert.datasets.task_files import Files
from examples.bert.evaluation import glue_metrics
from examples.bert.evaluation.bag_of_words import BagOfWords
from transformer.data import Task
from transformer.data.sources import Example

Row = tuple[str, str]  # of a table: the model's score and that of a baseline


class TaskScores:
    """The scores of a model on the rows of a file.

    Args:
      files: the files of the task.
      task: makes arrays of examples.
      rows: the held-out examples, with their labels.
      logits: the logits of each example, or its predicted score: [texts, classes].
      naive_bayes: the baseline of classifiers; None: numbers are predicted.
    """

    def __init__(
        self,
        files: Files,
        task: Task,
        rows: Sequence[Example],
        logits: np.ndarray,
        naive_bayes: BagOfWords | None,
    ) -> None:
        self._files = files
        self._task = task
        self._rows = rows
        self._logits = logits.astype(np.float64)
        self._naive_bayes = naive_bayes
        labels = [row[files.columns.label] for row in rows]
        if files.columns.is_score:
            self._labels = np.array([float(text) for text in labels])
            self._predictions = self._logits[:, 0]
        else:
            self._labels = np.array([files.classes.index(text) for text in labels])
            self._predictions = self._logits.argmax(1)

    def metrics(self) -> dict[str, float]:
        """Returns the scores of the model by name."""
        scores = self._scores(self._predictions)
        if self._files.columns.is_score:
            return scores
        highest = self._logits.max(1, keepdims=True)
        log_sum = np.log(np.exp(self._logits - highest).sum(1)) + highest[:, 0]
        of_labels = self._logits[np.arange(len(self._labels)), self._labels]
        return {**scores, "loss": float((log_sum - of_labels).mean())}

    def table(self) -> dict[str, Row]:
        """Returns the printed scores of the model and of baselines, by title."""
        metrics = self.metrics()
        if self._naive_bayes is None:
            return self._table_of_numbers(metrics)
        frequent, bayes = self._baselines(self._naive_bayes)
        name = self._files.classes[int(frequent[0])]
        frequent_scores = self._scores(frequent)
        bayes_scores = self._scores(bayes)
        titles = {"accuracy": "accuracy", **dict.fromkeys(self._files.columns.metrics)}
        table = {}
        for metric in titles:
            table[metric] = (
                f"{metrics[metric]:.1%}",
                f"{frequent_scores[metric]:.1%} with {name!r} for all, "
                f"{bayes_scores[metric]:.1%} by naive Bayes",
            )
        at_random = np.log(len(self._files.classes))
        table["loss in nats"] = (f"{metrics['loss']:.3f}", f"{at_random:.3f} at random")
        return table

    def _table_of_numbers(self, metrics: dict[str, float]) -> dict[str, Row]:
        """Returns the table of a model that predicts numbers.

        Args:
          metrics: its scores by name.
        """
        column = self._files.columns.label
        mean = np.mean([float(row[column]) for row in self._files.train])
        error_of_mean = float(((mean - self._labels) ** 2).mean())
        table = {
            name: (f"{metrics[name]:.1%}", "0.0% with the same for all")
            for name in self._files.columns.metrics
        }
        table["mean squared error"] = (
            f"{metrics['mean_squared_error']:.3f}",
            f"{error_of_mean:.3f} with {mean:.2f} for all",
        )
        return table

    def _scores(self, predictions: np.ndarray) -> dict[str, float]:
        """Returns the scores of predictions [texts], by name, without the loss."""
        if self._files.columns.is_score:
            error = float(((predictions - self._labels) ** 2).mean())
            scores = {"mean_squared_error": error}
        else:
            scores = {"accuracy": glue_metrics.accuracy(predictions, self._labels)}
        for name in self._files.columns.metrics:
            scores[name] = self._metric(name)(predictions, self._labels)
        return scores

    def _metric(self, name: str) -> functools.partial[float]:
        """Returns the function of a metric of GLUE."""
        function = getattr(glue_metrics, name)
        if name != "f1":
            return functools.partial(function)
        classes = self._files.classes
        # GLUE's class "1"; with other names, the last one.
        positive = classes.index("1") if "1" in classes else len(classes) - 1
        return functools.partial(function, positive=positive)

    def _baselines(self, naive_bayes: BagOfWords) -> tuple[np.ndarray, np.ndarray]:
        """Returns the classes [texts] that two baselines predict: the most frequent class of
        the training examples, and naive Bayes.
        """
        most_frequent = int(naive_bayes.class_counts.argmax())
        bayes = [naive_bayes(_arrays(self._task, row)) for row in self._rows]
        return np.full(len(self._rows), most_frequent), np.array(bayes)


def learned_naive_bayes(files: Files, task: Task) -> BagOfWords | None:
    """Returns naive Bayes, learned from the training examples; None if numbers are predicted.

    Args:
      files: the files of the task.
      task: makes arrays of examples.
    """
    if files.columns.is_score:
        return None
    return BagOfWords(
        (_arrays(task, row) for row in files.train),
        classes=len(files.classes),
        vocab=task.vocabulary.size,
    )


def _arrays(task: Task, row: Example) -> dict[str, np.ndarray]:
    """Returns the arrays of an example. The preprocessors draw nothing at random, so any seed
    will do.
    """
    return task.arrays(row, seed=(0,))
