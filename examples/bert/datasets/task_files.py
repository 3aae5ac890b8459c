"""The files of a task for training, evaluation and prediction, in one folder.

files = read("data/MNLI", TASKS["mnli"], needs_dev=True, needs_test=True)
files.classes             # ("contradiction", "entailment", "neutral")
files.dev                 # {"dev_matched": ..., "dev_mismatched": ...}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from examples.bert.datasets import tsv
from examples.bert.datasets.task_columns import Columns
from transformer.data.sources import Examples


@dataclasses.dataclass(frozen=True)
class Files:
    """The examples of a task.

    Attributes:
      columns: the columns of the files.
      classes: the labels, in the order of the model's logits; () if numbers are predicted.
      train: the examples for training.
      dev: the examples for evaluation, by the name of the file; {} if they are not needed.
      test: the lines for prediction, which may have no labels, by the name of the file; {} if
        they are not needed.
    """

    columns: Columns
    classes: tuple[str, ...]
    train: Examples
    dev: Mapping[str, Examples]
    test: Mapping[str, tsv.Unlabelled]


def read(
    folder: str | Path,
    columns: Columns,
    on_bad: str = "refuse",
    classes: tuple[str, ...] = (),
    needs_dev: bool = False,
    needs_test: bool = False,
) -> Files:
    """Reads the files of a task.

    Args:
      folder: the folder of the files.
      columns: the files and their columns.
      on_bad: "refuse" to read malformed lines of training and evaluation, or "skip" them.
      classes: all labels; (): those for training, sorted.
      needs_dev: whether files for evaluation are read.
      needs_test: whether files for prediction are read.

    Raises:
      DataError: a file cannot be read, or a line is refused.
    """
    folder = Path(folder)
    train = tsv.read(_path(folder, "train", columns), columns, on_bad, classes)
    if not classes and not columns.is_score:
        classes = tsv.labels_of(train, columns)
    dev = {}
    for name in columns.dev if needs_dev else ():
        dev[name] = tsv.read(_path(folder, name, columns), columns, on_bad, classes)
    test = {}
    for name in (*columns.test, *columns.optional_test) if needs_test else ():
        path = _path(folder, name, columns)
        if name in columns.test or path.exists():
            test[name] = tsv.read_unlabelled(path, columns)
    return Files(columns, classes, train=train, dev=dev, test=test)


def _path(folder: Path, name: str, columns: Columns) -> Path:
    """Returns the path of a file, given its name without .tsv."""
    path = folder / f"{name}.tsv"
    other_path = folder / dict(columns.other_names).get(name, path.name)
    return other_path if other_path.exists() and not path.exists() else path
