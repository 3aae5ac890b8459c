"""Sources in files: text lines, JSON lines, tab-separated values, TFRecords, documents.

    source = tsv("data/*.tsv", columns=("question", "answer"), on_bad="skip")
    source.train()[17]                       # {"question": ..., "answer": ...}

A glob names the files. Held-out examples are in the files of a second glob; without one,
they are the last examples, a fraction `share` of all.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import warnings
from collections.abc import Callable, Mapping, Sequence
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
from transformer.data.sources.index import load_index, read_bytes

_MAX_LISTED_FILES = 5  # the most files that a warning of skipped records lists


@gin.configurable(module="data")
def text_lines(
    pattern: str = gin.REQUIRED,
    held_out: str | None = None,
    share: float = 0.05,
    on_bad: str = "refuse",
) -> Source:
    """Returns a source in which each line that is not empty is an example, {"text": ...}.

    Args:
      pattern: a glob of the files; `**` matches any number of folders.
      held_out: a glob of the files that are held out; None: the last examples of the
        files are held out.
      share: the fraction of examples that is held out, if `held_out` is None.
      on_bad: "refuse": a bad record raises an error; "skip": bad records are skipped, and
        a warning has their count.
    """
    return Files(
        TextLines(),
        pattern,
        held_out_pattern=held_out,
        share=share,
        on_bad=on_bad,
    )


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
      fields: the names of fields that each object must have.
      held_out: a glob of the files that are held out; None: the last examples of the
        files are held out.
      share: the fraction of examples that is held out, if `held_out` is None.
      on_bad: "refuse": a bad record raises an error; "skip": bad records are skipped, and
        a warning has their count.
    """
    return Files(
        JsonLines(tuple(fields)),
        pattern,
        held_out_pattern=held_out,
        share=share,
        on_bad=on_bad,
    )


@gin.configurable(module="data")
def tsv(
    pattern: str = gin.REQUIRED,
    columns: Sequence[str] = gin.REQUIRED,
    header: bool = False,
    held_out: str | None = None,
    share: float = 0.05,
    on_bad: str = "refuse",
) -> Source:
    """Returns a source in which each line is an example: columns with tabs between them.

    Args:
      pattern: a glob of the files; `**` matches any number of folders.
      columns: the names of the columns, which are the fields of examples.
      header: whether the first line of each file has the names of the columns.
      held_out: a glob of the files that are held out; None: the last examples of the
        files are held out.
      share: the fraction of examples that is held out, if `held_out` is None.
      on_bad: "refuse": a bad record raises an error; "skip": bad records are skipped, and
        a warning has their count.
    """
    return Files(
        Tsv(tuple(columns), header=header),
        pattern,
        held_out_pattern=held_out,
        share=share,
        on_bad=on_bad,
    )


@gin.configurable(module="data")
def tfrecords(
    pattern: str = gin.REQUIRED,
    held_out: str | None = None,
    share: float = 0.05,
    on_bad: str = "refuse",
) -> Source:
    """Returns a source in which each record of a file is a `tf.train.Example`.

    Args:
      pattern: a glob of the files; `**` matches any number of folders.
      held_out: a glob of the files that are held out; None: the last examples of the
        files are held out.
      share: the fraction of examples that is held out, if `held_out` is None.
      on_bad: "refuse": a damaged record raises an error; "skip": a file is read up to its
        first damaged record, with a warning.
    """
    return Files(
        TFRecords(),
        pattern,
        held_out_pattern=held_out,
        share=share,
        on_bad=on_bad,
    )


@gin.configurable(module="data")
def documents(corpus: Callable[[], Corpus] = python_library) -> Source:
    """Returns a source in which each file of a corpus is an example, {"text": ...}.

    Args:
      corpus: a function that returns the corpus, such as `python_library`.
    """
    return Documents(corpus)


class Documents:
    """A source in which each file of a corpus is an example, {"text": ...}.

    Args:
      corpus: a function that returns the corpus, called at first use.
    """

    def __init__(self, corpus: Callable[[], Corpus]) -> None:
        self._corpus = functools.cache(corpus)

    def train(self) -> Examples:
        """Returns the training files."""
        return _texts(self._corpus().train)

    def held_out(self) -> Examples:
        """Returns the held-out files."""
        return _texts(self._corpus().held_out)


def _texts(concatenated: np.ndarray) -> Examples:
    """Returns an example for each of the concatenated texts, each followed by the byte `END`."""
    texts = concatenated.tobytes().split(bytes([END]))
    return [{"text": text.decode("utf-8", "replace")} for text in texts if text]


@dataclasses.dataclass(frozen=True)
class Files:
    """A source that reads files of one format.

    Args:
      file_format: the format of the files.
      pattern: a glob of the files.
      held_out_pattern: a glob of the files that are held out; None: the last examples of
        the files are held out.
      share: the fraction of examples that is held out, if there is no such glob.
      on_bad: "refuse" or "skip": see `text_lines`.
    """

    file_format: Format
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
            return self._examples(self.pattern)
        return self._split(held_out=False)

    def held_out(self) -> Examples:
        """Returns the held-out examples."""
        if self.held_out_pattern:
            return self._examples(self.held_out_pattern)
        return self._split(held_out=True)

    def _split(self, held_out: bool) -> Examples:
        """Returns the training or the held-out examples of one glob."""
        examples = self._examples(self.pattern)
        num_train = len(examples) - round(len(examples) * self.share)
        if held_out:
            return Subset(examples, range(num_train, len(examples)))
        return Subset(examples, range(num_train))

    def _examples(self, pattern: str) -> FileExamples:
        """Returns all examples of the files that match a glob, without index files."""
        paths = [Path(name) for name in glob.glob(pattern, recursive=True)]
        paths = [path for path in paths if path.suffix != ".idx" and path.is_file()]
        skip = self.on_bad == "skip"
        return FileExamples(sorted(paths), self.file_format, skip=skip, pattern=pattern)


class FileExamples(Sequence[Example]):
    """The examples of files, in the order of the file names; each is read at access.

    Args:
      paths: the files.
      file_format: the format of the files.
      skip: whether bad records are skipped, with a warning; if not, they raise an error.
      pattern: the glob of the files, for messages.

    Raises:
      DataError: there are no files or no examples, or a record is bad.
    """

    def __init__(
        self, paths: Sequence[Path], file_format: Format, skip: bool, pattern: str
    ) -> None:
        if not paths:
            raise DataError(f"no file matches {pattern!r}.")
        self._paths = paths
        self._format = file_format
        indices = [load_index(path, file_format, skip=skip) for path in paths]
        # For each file: start, length and record number of each example, int64 [examples, 3].
        self._records = [index.records for index in indices]
        # For each file: the count of examples in this file and the files before.
        self._ends = np.cumsum([len(records) for records in self._records])
        skip_counts = {
            path: index.num_skipped
            for path, index in zip(paths, indices)
            if index.num_skipped
        }
        if skip_counts:
            self._warn_of_skipped(skip_counts)
        if not len(self):
            raise DataError(f"the files that match {pattern!r} have no example.")

    def _warn_of_skipped(self, skip_counts: Mapping[Path, int]) -> None:
        """Warns of skipped records.

        Args:
          skip_counts: the count of skipped records of each file that has such records.
        """
        total = sum(skip_counts.values())
        texts = [f"{path}: {count:,}" for path, count in skip_counts.items()]
        ellipsis = "; ..." if len(texts) > _MAX_LISTED_FILES else ""
        warnings.warn(
            f"{total:,} bad {self._format.unit}s were skipped "
            f"({'; '.join(texts[:_MAX_LISTED_FILES])}{ellipsis}); {len(self):,} are good.",
            stacklevel=3,  # the caller of `FileExamples(...)`
        )

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
        file_index = int(np.searchsorted(self._ends, index, side="right"))
        records = self._records[file_index]
        # A negative index, which NumPy counts from the end of the records of this file.
        index_from_end = index - self._ends[file_index]
        start, length, record_number = records[index_from_end].tolist()
        path = self._paths[file_index]
        try:
            return self._format.parse(read_bytes(path, start=start, length=length))
        except RecordError as error:
            unit = self._format.unit
            raise record_error(
                path, unit=unit, record_number=record_number, error=error
            ) from error
