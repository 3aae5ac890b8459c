"""The index of a file: the offsets of its examples, for random access. Made once, and saved
next to the file.

The index of `a.tsv` is `a.tsv.idx`, an int64 array `[2 + examples, 3]` in NumPy's format. Row
0 identifies file and format, row 1 has the count of skipped records, and each further row
has start and length in bytes of an example, and the number of its line or record. The file is
memory-mapped. If it cannot be written, the index is kept in memory.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from transformer.data.atomic_files import atomic_file
from transformer.data.sources.formats import Format, RecordError, record_error

_VERSION = 1


def index(path: Path, form: Format, skip: bool) -> tuple[np.ndarray, int]:
    """Returns the index, int64 [examples, 3], and the count of skipped records.

    Raises:
      DataError: a record is bad, and `skip` is false; it names file, line and cause.
    """
    index_path = path.with_name(path.name + ".idx")
    key = _key(path, form)
    rows = _load(index_path, key)
    if rows is None or rows[1, 0] and not skip:
        rows = _make(path, form, skip, key)
        with (
            contextlib.suppress(OSError),
            atomic_file(index_path) as partial,
            open(partial, "wb") as file,
        ):
            np.save(file, rows)
    return rows[2:], int(rows[1, 0])


def _key(path: Path, form: Format) -> np.ndarray:
    """Returns the key of an index, int64 [3]: a hash of the format, and size and
    modification time of the file.
    """
    status = path.stat()
    digest = hashlib.blake2b(f"{_VERSION} {form!r}".encode(), digest_size=8).digest()
    return np.array(
        [
            int.from_bytes(digest, "little", signed=True),
            status.st_size,
            status.st_mtime_ns,
        ],
        np.int64,
    )


def _load(index_path: Path, key: np.ndarray) -> np.ndarray | None:
    """Returns a saved index; None if there is none with this key."""
    with contextlib.suppress(OSError, ValueError):
        rows = np.load(index_path, mmap_mode="r")
        is_index = rows.ndim == 2 and rows.shape[1] == 3 and len(rows) >= 2
        if is_index and (rows[0] == key).all():
            return rows
    return None


def _make(path: Path, form: Format, skip: bool, key: np.ndarray) -> np.ndarray:
    """Returns the index of a file, by reading the file. Raises DataError."""
    rows = array.array("q", [*key.tolist(), 0, 0, 0])
    skipped = 0
    record_number = 0
    with open(path, "rb") as file:
        try:
            for start, length, record_number in form.spans(path):
                if error := _parse_error(form, file, start, length):
                    if not skip:
                        raise record_error(
                            path, form.unit, record_number, error
                        ) from error
                    skipped += 1
                else:
                    rows.extend((start, length, record_number))
        except RecordError as error:  # the rest of the file cannot be read
            if not skip:
                raise record_error(path, form.unit, record_number + 1, error) from error
            skipped += 1
    rows[3] = skipped  # element 0 of row 1
    return np.frombuffer(rows, np.int64).reshape(-1, 3)


def _parse_error(
    form: Format, file: BinaryIO, start: int, length: int
) -> RecordError | None:
    """Returns the error of a record, if its format is checked and it cannot be parsed."""
    if form.checked:
        file.seek(start)
        try:
            form.parse(file.read(length))
        except RecordError as error:
            return error
    return None


def read(path: Path, start: int, length: int) -> bytes:
    """Returns `length` bytes of a file, from `start` on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.pread(handle, length, start)
    finally:
        os.close(handle)
