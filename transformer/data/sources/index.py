"""The index of a file: the location of each example, for random access. It is made once, and
saved next to the file.

The index of `a.tsv` is `a.tsv.idx`, an int64 array `[2 + examples, 3]` in NumPy's format:

    row 0         the key of file and format: a hash, the size and the modification time
    row 1         the count of skipped records, 0, 0
    rows 2, ...   the `RecordSpan` of each example: start, length, record number

It is memory-mapped. If it cannot be written, it is in memory only.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import os
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from transformer.data.atomic_files import atomic_file
from transformer.data.sources.formats import (
    Format,
    RecordError,
    RecordSpan,
    record_error,
)

_VERSION = 2  # of the file format of indices


class FileIndex(NamedTuple):
    """The index of a file.

    Attributes:
      records: start, length and record number of each example, int64 [examples, 3].
      num_skipped: the count of skipped records.
    """

    records: np.ndarray
    num_skipped: int


def load_index(path: Path, file_format: Format, skip: bool) -> FileIndex:
    """Returns the index of a file, which is made and saved if there is none yet.

    Args:
      path: the file.
      file_format: the format of the file.
      skip: whether bad records are skipped; if not, they raise an error.

    Raises:
      DataError: a record is bad, and `skip` is False; the message has file, line and
        cause.
    """
    index_path = path.with_name(path.name + ".idx")
    key = _key(path, file_format)
    table = _load_table(index_path, key)
    # The saved index may be one that skips bad records: without `skip`, it is made again, to
    # raise the error of the first bad record.
    if table is None or (_num_skipped(table) and not skip):
        table = _make_table(path, file_format, skip=skip, key=key)
        with (
            contextlib.suppress(OSError),
            atomic_file(index_path) as temporary_path,
            open(temporary_path, "wb") as file,
        ):
            np.save(file, table)
    return FileIndex(records=table[2:], num_skipped=_num_skipped(table))


def _num_skipped(table: np.ndarray) -> int:
    """Returns the count of skipped records in the table of an index."""
    return int(table[1, 0])


def _key(path: Path, file_format: Format) -> np.ndarray:
    """Returns the key of an index, int64 [3]: a hash of the format, and the size and
    modification time of the file.
    """
    status = path.stat()
    format_text = f"{_VERSION} {file_format!r}"
    digest = hashlib.blake2b(format_text.encode(), digest_size=8).digest()
    format_hash = int.from_bytes(digest, "little", signed=True)
    return np.array([format_hash, status.st_size, status.st_mtime_ns], np.int64)


def _load_table(index_path: Path, key: np.ndarray) -> np.ndarray | None:
    """Returns the table of a saved index; None if there is none with this key."""
    with contextlib.suppress(OSError, ValueError):
        table = np.load(index_path, mmap_mode="r")
        is_index = table.ndim == 2 and table.shape[1] == 3 and len(table) >= 2
        if is_index and (table[0] == key).all():
            return table
    return None


def _make_table(
    path: Path, file_format: Format, skip: bool, key: np.ndarray
) -> np.ndarray:
    """Returns the table of the index of a file, made by reading the file.

    Raises:
      DataError: a record is bad, and `skip` is False.
    """
    # The table, row by row, as an array of int64 ("q") that grows. Row 1 is set at the end.
    elements = array.array("q", [*key.tolist(), 0, 0, 0])
    num_skipped = 0
    record_number = 0
    with open(path, "rb") as file:
        try:
            for span in file_format.spans(path):
                record_number = span.record_number
                error = _parse_error(file_format, file, span)
                if error is None:
                    elements.extend(span)
                elif skip:
                    num_skipped += 1
                else:
                    unit = file_format.unit
                    raise record_error(
                        path, unit=unit, record_number=record_number, error=error
                    ) from error
        except RecordError as error:  # the rest of the file cannot be read
            if not skip:
                unit = file_format.unit
                raise record_error(
                    path, unit=unit, record_number=record_number + 1, error=error
                ) from error
            num_skipped += 1
    table = np.frombuffer(elements, np.int64).reshape(-1, 3)
    table[1, 0] = num_skipped
    return table


def _parse_error(
    file_format: Format, file: BinaryIO, span: RecordSpan
) -> RecordError | None:
    """Returns the error of a record that cannot be parsed; None: it can be parsed, or the
    format does not check records.
    """
    if file_format.checked:
        file.seek(span.start)
        try:
            file_format.parse(file.read(span.length))
        except RecordError as error:
            return error
    return None


def read_bytes(path: Path, start: int, length: int) -> bytes:
    """Returns `length` bytes of a file, from `start` on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.pread(handle, length, start)
    finally:
        os.close(handle)
