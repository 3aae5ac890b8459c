"""Sources in files: text lines, JSON lines, tab-separated values, TFRecords, documents.

    source = tsv("data/*.tsv", columns=("question", "answer"), on_bad="skip")
    source.train()[17]                       # {"question": ..., "answer": ...}

A glob names the files. Held-out examples have a second glob, or are the last share of all
examples.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import overload

import gin
import numpy as np

from transformer.data.datasets.corpus import END, Corpus, python_library
from transformer.data.errors import DataError
from transformer.data.sources.base import Example, Examples, Source, Subset
from transformer.data.sources.formats import (
    Format,
    JsonLines,
    RecordError,
    TextLines,
    TFRecords,
    Tsv,
    record_error,
)
from transformer.data.sources.index import index, read


@gin.configurable(module="data")
def text_lines(
    pattern: str = gin.REQUIRED,
    held_out: str | None = None,
    share: float = 0.05,
    on_bad: str = "refuse",
) -> Source:
    """Returns a source in which each line that is not empty is an example, {"text":
    ...}.

    Args:
      pattern: a glob of the files; `**` matches any number of folders.
      held_out: a glob of the files that are held out.
      share: without such a glob, the fraction of all examples, at their end, that is held
        out.
      on_bad: "refuse", or "skip", which skips bad records and warns of their count.
    """
    return Files(TextLines(), pattern, held_out, share, on_bad)


@gin.configurable(module="data")
def json_lines(
    pattern: str = gin.REQUIRED,
    fields: Sequence[str] = (),
    held_out: str | None = None,
    share: float = 0.05,
    on_bad: str = "refuse",
) -> Source:
    """Returns a source in which each line is a JSON object.

    Args:
      pattern: a glob of the files; `**` matches any number of folders.
      fields: names that each object must have.
      held_out: a glob of the files that are held out.
      share: without such a glob, the fraction of all examples, at their end, that is held
        out.
      on_bad: "refuse", or "skip", which skips bad records and warns of their number.
    """
    return Files(JsonLines(tuple(fields)), pattern, held_out, share, on_bad)


@gin.configurable(module="data")
def tsv(
    pattern: str = gin.REQUIRED,
    columns: Sequence[str] = gin.REQUIRED,
    header: bool = False,
    held_out: str | None = None,
    share: float = 0.05,
    on_bad: str = "refuse",
) -> Source:
    """Returns a source in which each line has these columns, with tabs between.

    Args:
      pattern: a glob of the files; `**` matches any number of folders.
      columns: the names of the columns, which are the fields of examples.
      header: whether the first line of a file only names the columns.
      held_out: a glob of the files that are held out.
      share: without such a glob, the fraction of all examples, at their end, that is held
        out.
      on_bad: "refuse", or "skip", which skips bad records and warns of their number.
    """
    return Files(Tsv(tuple(columns), header), pattern, held_out, share, on_bad)


@gin.configurable(module="data")
def tfrecords(
    pattern: str = gin.REQUIRED,
    held_out: str | None = None,
    share: float = 0.05,
    on_bad: str = "refuse",
) -> Source:
    """Returns a source of records that are `tf.train.Example`.

    Args:
      pattern: a glob of the files; `**` matches any number of folders.
      held_out: a glob of the files that are held out.
      share: without such a glob, the fraction of all examples, at their end, that is held
        out.
      on_bad: "refuse", or "skip": a file is read up to its first damaged record, with a
        warning.
    """
    return Files(TFRecords(), pattern, held_out, share, on_bad)


@gin.configurable(module="data")
def documents(corpus: Callable[[], Corpus] = python_library) -> Source:
    """Returns a source in which each file of a corpus is an example, {"text": ...}.

    Args:
      corpus: makes the corpus, as `python_library` does.
    """
    return Documents(corpus)


class Documents:
    """The files of a corpus as examples."""

    def __init__(self, corpus: Callable[[], Corpus]) -> None:
        self._corpus = functools.cache(corpus)

    def train(self) -> Examples:
        """Returns the training files."""
        return _texts(self._corpus().train)

    def held_out(self) -> Examples:
        """Returns the held-out files."""
        return _texts(self._corpus().held_out)


def _texts(joined: np.ndarray) -> Examples:
    texts = joined.tobytes().split(bytes([END]))
    return [{"text": text.decode("utf-8", "replace")} for text in texts if text]


@dataclasses.dataclass(frozen=True)
class Files:
    """A source in files of one format; the arguments are those of `text_lines`."""

    form: Format
    pattern: str
    held_out_pattern: str | None = None
    share: float = 0.05
    on_bad: str = "refuse"

    def __post_init__(self) -> None:
        if self.on_bad not in ("refuse", "skip"):
            raise DataError(f'on_bad must be "refuse" or "skip", not {self.on_bad!r}.')
        if not 0.0 <= self.share < 1.0:
            raise DataError(
                "the share that is held out must lie between 0 and 1, not be "
                f"{self.share}."
            )

    def train(self) -> Examples:
        """Returns the training examples."""
        if self.held_out_pattern:
            return self._all(self.pattern)
        return self._split(held_out=False)

    def held_out(self) -> Examples:
        """Returns the held-out examples."""
        if self.held_out_pattern:
            return self._all(self.held_out_pattern)
        return self._split(held_out=True)

    def _split(self, held_out: bool) -> Examples:
        """Returns the training or the held-out examples of one glob."""
        examples = self._all(self.pattern)
        train_size = len(examples) - round(len(examples) * self.share)
        if held_out:
            return Subset(examples, range(train_size, len(examples)))
        return Subset(examples, range(train_size))

    def _all(self, pattern: str) -> FileExamples:
        paths = [Path(name) for name in glob.glob(pattern, recursive=True)]
        paths = [path for path in paths if path.suffix != ".idx" and path.is_file()]
        return FileExamples(sorted(paths), self.form, self.on_bad == "skip", pattern)


class FileExamples(Sequence[Example]):
    """The examples of files, in the order of the file names; each is read at access."""

    def __init__(
        self, paths: Sequence[Path], form: Format, skip: bool, pattern: str
    ) -> None:
        if not paths:
            raise DataError(f"no file matches {pattern!r}.")
        self._paths = paths
        self._form = form
        indices = [index(path, form, skip) for path in paths]
        self._records = [records for records, _ in indices]
        self._ends = np.cumsum([len(records) for records in self._records])
        skipped = [
            f"{path}: {count:,}" for path, (_, count) in zip(paths, indices) if count
        ]
        if skipped:
            total = sum(count for _, count in indices)
            warnings.warn(
                f"{total:,} bad {form.unit}s were skipped ({'; '.join(skipped[:5])}"
                f"{'; ...' if len(skipped) > 5 else ''}); {len(self):,} are good.",
                stacklevel=2,
            )
        if not len(self):
            raise DataError(f"the files that match {pattern!r} have no example.")

    def __len__(self) -> int:
        return int(self._ends[-1])

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> Examples: ...

    def __getitem__(self, index: int | slice) -> Example | Examples:
        if isinstance(index, slice):
            return Subset(self, range(len(self))[index])
        index = range(len(self))[index]  # counts negative indices from the end
        file = int(np.searchsorted(self._ends, index, side="right"))
        record = self._records[file][index - self._ends[file]]
        start, length, record_number = record.tolist()
        path = self._paths[file]
        try:
            return self._form.parse(read(path, start, length))
        except RecordError as error:
            raise record_error(path, self._form.unit, record_number, error) from error
