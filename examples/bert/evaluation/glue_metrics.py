"""The metrics of GLUE (Wang et al., 2018), of predictions and right answers.

>>> matthews(np.array([1, 0, 1, 1]), np.array([1, 0, 0, 1]))
0.5773502691896258
>>> spearman(np.array([0.1, 0.2, 0.9]), np.array([1.0, 4.0, 5.0]))
1.0
"""

from __future__ import annotations

import numpy as np


def accuracy(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns the fraction of right predictions [texts], given the labels [texts]."""
    return float((predictions == labels).mean())


def f1(predictions: np.ndarray, labels: np.ndarray, positive: int = 1) -> float:
    """Returns the harmonic mean of precision and recall of one class; 0 if no prediction of it
    is right.

    Args:
      predictions: indices of classes [texts].
      labels: indices of the right classes [texts].
      positive: the index of the class.
    """
    predicted = predictions == positive
    actual = labels == positive
    num_right = int((predicted & actual).sum())
    return 2.0 * num_right / max(int(predicted.sum()) + int(actual.sum()), 1)


def matthews(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Returns Matthews' correlation of predicted and right classes, for any count of classes; 0
    if all predictions, or all labels, are of one class.

    Args:
      predictions: indices of classes [texts].
      labels: indices of the right classes [texts].
    """
    classes = np.union1d(predictions, labels)
    # [texts, classes], centered: the correlation of the indicators of classes.
    predicted = _centered((predictions[:, None] == classes).astype(float))
    actual = _centered((labels[:, None] == classes).astype(float))
    return _cosine(predicted, actual)


def pearson(predictions: np.ndarray, scores: np.ndarray) -> float:
    """Returns Pearson's correlation of two arrays [texts]; 0 if one is constant."""
    return _cosine(_centered(predictions), _centered(scores))


def spearman(predictions: np.ndarray, scores: np.ndarray) -> float:
    """Returns Spearman's correlation of two arrays [texts], that of their ranks, where equal
    numbers have the mean of their ranks; 0 if one is constant.
    """
    return pearson(_ranks(predictions), _ranks(scores))


def _centered(x: np.ndarray) -> np.ndarray:
    """Returns an array in float64 without its mean over texts, the first axis."""
    x = np.asarray(x, np.float64)
    return x - x.mean(0)


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    """Returns the cosine of the angle between two arrays; 0 if one is zero."""
    norm = np.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / norm) if norm > 0 else 0.0


def _ranks(x: np.ndarray) -> np.ndarray:
    """Returns the rank of each number, from 0."""
    _, indices, counts = np.unique(x, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts) - 1
    return (last_ranks - (counts - 1) / 2.0)[indices]
