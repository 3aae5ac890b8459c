"""Scores of a task: those of GLUE, by the names of its classes, and those of baselines."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from examples.bert.datasets.task_columns import TASKS
from examples.bert.datasets.task_files import Files
from examples.bert.evaluation.task_scores import TaskScores, learned_naive_bayes

LOGITS = np.log([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6], [0.7, 0.3]]).astype("float32")


def files_of(name, labels, classes):
    columns = TASKS[name]
    rows = [{columns.label: label} for label in labels]
    return Files(columns, classes, train=rows, dev={}, test={}), rows


def task_of(files):
    """Returns a stand-in whose examples have one token, that of the class."""

    def arrays(row, seed):
        label = files.classes.index(row[files.columns.label])
        return {
            "tokens": np.array([label + 1]),
            "token_types": np.array([0]),
            "labels": np.int32(label),
        }

    return SimpleNamespace(arrays=arrays, vocabulary=SimpleNamespace(size=4))


@pytest.mark.parametrize("classes", [("0", "1"), ("no", "yes")])
def test_classes(classes):
    files, rows = files_of("mrpc", [classes[k] for k in (0, 1, 0, 1)], classes)
    task = task_of(files)
    scores = TaskScores(files, task, rows, LOGITS, learned_naive_bayes(files, task))
    metrics = scores.metrics()
    assert metrics["accuracy"] == 0.5
    assert metrics["f1"] == 0.5  # one of two predictions, and one of two labels
    expected = -np.log([0.9, 0.8, 0.4, 0.3]).mean()
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    table = scores.table()
    assert list(table) == ["accuracy", "f1", "loss in nats"]
    model, baseline = table["accuracy"]
    assert model == "50.0%" and f"50.0% with {classes[0]!r} for all" in baseline
    assert "100.0% by naive Bayes" in baseline


def test_numbers():
    files, rows = files_of("sts-b", ["0.0", "2.5", "5.0"], ())
    assert learned_naive_bayes(files, None) is None
    predictions = np.array([[0.5], [2.0], [4.0]], np.float32)
    scores = TaskScores(files, None, rows, predictions, None)
    metrics = scores.metrics()
    assert metrics["mean_squared_error"] == pytest.approx(0.5)
    assert metrics["spearman"] == pytest.approx(1.0)
    expected = np.corrcoef(predictions[:, 0], [0.0, 2.5, 5.0])[0, 1]
    assert metrics["pearson"] == pytest.approx(expected)
    assert list(scores.table()) == ["pearson", "spearman", "mean squared error"]
