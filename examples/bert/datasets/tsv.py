"""Texts and their classes in tab-separated files, as in GLUE (Wang et al., 2018).

    columns = Columns("label", "text_a", "text_b")
    train = read("data/train.tsv", columns, on_bad="refuse")      # {"label": ..., "text_a": ...}
    read("data/dev.tsv", columns, on_bad="skip", classes=labels_of(train, columns))
    read_unlabelled("data/test.tsv", columns)       # every line, with its id

A column is identified by its name in the first line, or by its index, from 0, in files
without names. A malformed line is an error with file and line, or is skipped; but a line to
predict is never left out, since predictions are told apart by their lines.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from examples.bert.datasets.task_columns import Columns
from transformer import data
from transformer.data.sources import Example, Examples
from transformer.data.sources.files import FileExamples
from transformer.data.sources.formats import RecordError, Tsv


@dataclasses.dataclass(frozen=True)
class Labelled(Tsv):
    """A format of lines whose label must be one of `classes`, or a number.

    Attributes:
      label: the name of the column with the label.
      classes: the allowed labels; (): all labels.
      is_score: whether the label is a number.
    """

    label: str = ""
    classes: tuple[str, ...] = ()
    is_score: bool = False

    def parse(self, record: bytes) -> Example:
        """Returns the example of a line. Raises RecordError for another label."""
        example = super().parse(record)
        if self.classes and example[self.label] not in self.classes:
            raise RecordError(
                f"has label {example[self.label]!r}; there are "
                f"{', '.join(self.classes)}"
            )
        if self.is_score:
            _check_number(example[self.label])
        return example


class Unlabelled(NamedTuple):
    """The lines of a file for prediction.

    Attributes:
      ids: the id of each line.
      examples: the texts of each line, by column; "" where a line has none.
      num_bad: how many lines are blank, or lack columns or have more.
    """

    ids: list[str]
    examples: list[Example]
    num_bad: int


def read(
    path: str | Path,
    columns: Columns,
    on_bad: str,
    classes: tuple[str, ...] = (),
) -> Examples:
    """Returns the lines of a file, each a dict by the names of its columns.

    Args:
      path: the path of the file.
      columns: the columns to read.
      on_bad: "refuse" to read malformed lines, or "skip" them.
      classes: the allowed labels; (): all labels.

    Raises:
      DataError: the file cannot be read, lacks a column or has no examples, or a line is
        refused.
    """
    first_line = _read_text(Path(path), first_line=True).removesuffix("\n")
    names = _names(first_line, columns)
    _check_columns(Path(path), names, [*_text_columns(columns), columns.label])
    line_format = Labelled(
        columns=names,
        header=columns.header,
        label=columns.label,
        classes=classes,
        is_score=columns.is_score,
    )
    return FileExamples(
        [Path(path)], line_format, skip=on_bad == "skip", pattern=str(path)
    )


def read_unlabelled(path: str | Path, columns: Columns) -> Unlabelled:
    """Returns the lines of a file for prediction: all of them, blank and malformed ones too.

    Args:
      path: the path of the file.
      columns: the columns to read; that of the label may be absent.

    Raises:
      DataError: the file cannot be read, lacks a column or has no lines.
    """
    # What follows the last line break is no line.
    lines = _read_text(Path(path)).removesuffix("\n").split("\n")
    columns = _columns_of_test(lines, columns)
    typical_line = lines[0] if columns.header else _typical_line(lines)
    names = _names(typical_line, columns)
    _check_columns(Path(path), names, _text_columns(columns))
    if columns.header:
        del lines[0]
    if not lines:
        raise data.DataError(f"{path} has no lines to predict.")
    ids = []
    examples = []
    num_bad = 0
    for index, line in enumerate(lines):
        fields = line.rstrip("\r").split("\t")
        num_bad += len(fields) != len(names)
        values = dict(zip(names, fields))
        ids.append(values.get(columns.id, "").strip() or str(index))
        texts = {name: values.get(name, "") for name in _text_columns(columns)}
        examples.append(texts)
    return Unlabelled(ids, examples, num_bad)


def _columns_of_test(lines: Sequence[str], columns: Columns) -> Columns:
    """Returns the columns of a file for prediction, which may have names where files for
    training have none.
    """
    named_text = columns.test_text
    if named_text and named_text in lines[0].rstrip("\r").split("\t"):
        return dataclasses.replace(columns, text_a=named_text, header=True)
    return columns


def _typical_line(lines: Sequence[str]) -> str:
    """Returns a line with the most frequent count of columns among those that are not blank."""
    counts = collections.Counter(line.count("\t") for line in lines if line.strip())
    ((count, _),) = counts.most_common(1) or [(0, 0)]
    return next((line for line in lines if line.count("\t") == count), "")


def _text_columns(columns: Columns) -> list[str]:
    """Returns the columns of the texts."""
    return [columns.text_a, columns.text_b] if columns.text_b else [columns.text_a]


def _check_columns(path: Path, names: Sequence[str], required: Sequence[str]) -> None:
    """Raises DataError if a file lacks a column."""
    missing = [name for name in required if name not in names]
    if missing:
        raise data.DataError(
            f"{path}:1: there is no column {missing[0]!r}, but {', '.join(names)}.\n"
            "  Name those of this file: --label_column, --text_a_column, "
            "--text_b_column, --[no]header."
        )


def _names(first_line: str, columns: Columns) -> tuple[str, ...]:
    """Returns the names of a file's columns: those in its first line, or their indices "0",
    "1", ... if it has no names.
    """
    fields = first_line.rstrip("\r").split("\t")
    if columns.header:
        return tuple(fields)
    return tuple(str(i) for i in range(len(fields)))


def _read_text(path: Path, first_line: bool = False) -> str:
    """Returns the text of a file, or of its first line; bytes that are no UTF-8 become U+FFFD.

    Raises:
      DataError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            contents = file.readline() if first_line else file.read()
    except OSError as error:
        raise data.DataError(f"{path} cannot be read: {error}.") from error
    return contents.decode("utf-8-sig", "replace")


def _check_number(text: str) -> None:
    """Raises RecordError if a text is no finite number."""
    try:
        is_number = math.isfinite(float(text))
    except ValueError:
        is_number = False
    if not is_number:
        raise RecordError(f"has the label {text!r:.40}, which is no number")


def labels_of(examples: Examples, columns: Columns) -> tuple[str, ...]:
    """Returns all labels of the examples, sorted.

    Args:
      examples: the examples of a file, at least one.
      columns: the columns of the file.

    Raises:
      DataError: all examples have the same label.
    """
    labels = tuple(sorted({example[columns.label] for example in examples}))
    if len(labels) < 2:
        raise data.DataError(
            f"the column {columns.label!r} has only the label {labels[0]!r}: there is "
            "nothing to classify."
        )
    return labels
