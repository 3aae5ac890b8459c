"""Texts and their classes in tab-separated files, as in GLUE (Wang et al., 2018).

    columns = Columns("label", "text_a", "text_b")
    train = read("data/train.tsv", columns, on_bad="refuse")      # {"label": ..., "text_a": ...}
    read("data/dev.tsv", columns, on_bad="skip", classes=labels_of(train, columns))

A column is identified by its name in the first line, or by its index, from 0, in files
without names. A malformed line is an error with file and line, or is skipped.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from examples.bert.datasets.task_columns import Columns
from transformer import data
from transformer.data.sources import Example, Examples
from transformer.data.sources.files import FileExamples
from transformer.data.sources.formats import RecordError, Tsv


@dataclasses.dataclass(frozen=True)
class Labelled(Tsv):
    """A format of lines whose label must be one of `classes`.

    Attributes:
      label: the name of the column with the label.
      classes: the allowed labels; (): all labels.
    """

    label: str = ""
    classes: tuple[str, ...] = ()

    def parse(self, record: bytes) -> Example:
        """Returns the example of a line. Raises RecordError for another label."""
        example = super().parse(record)
        if self.classes and example[self.label] not in self.classes:
            raise RecordError(
                f"has label {example[self.label]!r}; there are "
                f"{', '.join(self.classes)}"
            )
        return example


def read(
    path: str | Path,
    columns: Columns,
    on_bad: str,
    classes: tuple[str, ...] = (),
    labelled: bool = True,
) -> Examples:
    """Returns the lines of a file, each a dict by the names of its columns.

    Args:
      path: the path of the file.
      columns: the columns to read.
      on_bad: "refuse" to read malformed lines, or "skip" them.
      classes: the allowed labels; (): all labels.
      labelled: whether lines must have a label.

    Raises:
      DataError: the file cannot be read, lacks a column or has no examples, or a line is
        refused.
    """
    names = _names(Path(path), columns)
    required = [columns.text_a]
    if columns.text_b:
        required.append(columns.text_b)
    if labelled:
        required.append(columns.label)
    missing = [name for name in required if name not in names]
    if missing:
        raise data.DataError(
            f"{path}:1: there is no column {missing[0]!r}, but {', '.join(names)}.\n"
            "  Name those of this file: --label_column, --text_a_column, "
            "--text_b_column, --[no]header."
        )
    # Examples without labels may lack the column, so their format checks no label.
    allowed_labels = classes if labelled else ()
    line_format = Labelled(
        columns=names,
        header=columns.header,
        label=columns.label,
        classes=allowed_labels,
    )
    return FileExamples(
        [Path(path)], line_format, skip=on_bad == "skip", pattern=str(path)
    )


def _names(path: Path, columns: Columns) -> tuple[str, ...]:
    """Returns the names of a file's columns: those in its first line, or their indices "0",
    "1", ... if it has no names.
    """
    try:
        with open(path, encoding="utf-8-sig") as file:
            fields = file.readline().rstrip("\r\n").split("\t")
    except (OSError, UnicodeDecodeError) as error:
        raise data.DataError(f"{path} cannot be read: {error}.") from error
    if columns.header:
        return tuple(fields)
    return tuple(str(i) for i in range(len(fields)))


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
