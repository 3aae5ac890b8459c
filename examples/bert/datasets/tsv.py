"""Texts and their classes in tab-separated files, as in GLUE (Wang et al., 2018).

    columns = Columns("label", "text_a", "text_b")
    rows = read("data/train.tsv", columns, on_bad="refuse")       # {"label": ..., "text_a": ...}
    read("data/dev.tsv", columns, "skip", classes=labels_of(rows, columns))

A column is called by its name in the first line, or by its number, from 0, where there
are no names. A line that is malformed is refused, with file and line, or left out.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from transformer import data
from transformer.data.sources import Example, Examples
from transformer.data.sources.files import FileExamples
from transformer.data.sources.formats import RecordError, Tsv


@dataclasses.dataclass(frozen=True)
class Columns:
    """Where in a line class and texts are.

    Attributes:
      label: the class.
      text_a: the text, or the first one of two.
      text_b: the second one.
      header: whether the first line names the columns.
      dev: the name of the file to measure on, without .tsv.
    """

    label: str
    text_a: str
    text_b: str | None = None
    header: bool = True
    dev: str = "dev"


TASKS = {
    "tsv": Columns("label", "text_a"),
    "pairs": Columns("label", "text_a", "text_b"),
    "cola": Columns("1", "3", header=False),
    "sst-2": Columns("label", "sentence"),
    "mrpc": Columns("Quality", "#1 String", "#2 String"),
    "rte": Columns("label", "sentence1", "sentence2"),
    "mnli": Columns("gold_label", "sentence1", "sentence2", dev="dev_matched"),
}


@dataclasses.dataclass(frozen=True)
class Labelled(Tsv):
    """Lines whose label is one of these."""

    label: str = ""
    classes: tuple[str, ...] = ()

    def parse(self, record: bytes) -> Example:
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
      path: of the file.
      columns: which of them are looked at.
      on_bad: "refuse" lines that are malformed, or "skip" them.
      classes: what a label may be; none are given: anything.
      labelled: whether there must be a label.

    Raises:
      DataError: the file cannot be read or lacks a column, or a line is refused.
    """
    names = _names(Path(path), columns)
    wanted = [
        columns.text_a,
        *([columns.text_b] if columns.text_b else []),
        *([columns.label] if labelled else []),
    ]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise data.DataError(
            f"{path}:1: there is no column {missing[0]!r}, but {', '.join(names)}.\n"
            "  Name those of this file: --label_column, --text_a_column, "
            "--text_b_column, --[no]header."
        )
    form = Labelled(names, columns.header, columns.label, classes if labelled else ())
    return FileExamples([Path(path)], form, on_bad == "skip", str(path))


def _names(path: Path, columns: Columns) -> tuple[str, ...]:
    """Returns the names of a file's columns: those in its first line, or numbers."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            first = file.readline().rstrip("\r\n").split("\t")
    except (OSError, UnicodeDecodeError) as error:
        raise data.DataError(f"{path} cannot be read: {error}.") from error
    return tuple(first) if columns.header else tuple(map(str, range(len(first))))


def labels_of(rows: Examples, columns: Columns) -> tuple[str, ...]:
    """Returns all labels that occur, sorted. Raises DataError: there are fewer than
    two.
    """
    found = tuple(sorted({row[columns.label] for row in rows}))
    if len(found) < 2:
        raise data.DataError(
            f"the column {columns.label!r} holds one label alone, {found[0]!r}: there "
            "is nothing to tell apart."
        )
    return found
