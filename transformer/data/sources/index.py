"""Where the examples of a file lie, so that each can be gone to: made once, kept beside
the file.

The index of `a.tsv` is `a.tsv.idx`, an int64 array in NumPy's format: a row that says
of what file and format it is, one with the number of pieces that were left out, then
for each example where it begins, how long it is, and the number of its line or record.
It is mapped, not read. Where nothing can be written, it is made anew and held.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from transformer.data.atomic_files import whole_file
from transformer.data.sources.formats import BadPiece, Format, bad

_VERSION = 1


def index(path: Path, form: Format, skip: bool) -> tuple[np.ndarray, int]:
    """Returns [examples, 3] int64, and how many pieces were left out because they are
    bad.

    Raises:
      DataError: a piece is bad, and `skip` is false; it names file, line and cause.
    """
    beside, name = path.with_name(path.name + ".idx"), _name(path, form)
    rows = _load(beside, name)
    if rows is None or rows[1, 0] and not skip:
        rows = _make(path, form, skip, name)
        with (
            contextlib.suppress(OSError),
            whole_file(beside) as partial,
            open(partial, "wb") as file,
        ):
            np.save(file, rows)
    return rows[2:], int(rows[1, 0])


def _name(path: Path, form: Format) -> np.ndarray:
    """Returns three numbers that are others for other formats, and if the file was
    changed.
    """
    found = path.stat()
    digest = hashlib.blake2b(f"{_VERSION} {form!r}".encode(), digest_size=8).digest()
    return np.array(
        [
            int.from_bytes(digest, "little", signed=True),
            found.st_size,
            found.st_mtime_ns,
        ],
        np.int64,
    )


def _load(beside: Path, name: np.ndarray) -> np.ndarray | None:
    with contextlib.suppress(OSError, ValueError):
        rows = np.load(beside, mmap_mode="r")
        if (
            rows.ndim == 2
            and rows.shape[1] == 3
            and len(rows) >= 2
            and (rows[0] == name).all()
        ):
            return rows
    return None


def _make(path: Path, form: Format, skip: bool, name: np.ndarray) -> np.ndarray:
    """Returns the index, from the file itself."""
    rows, skipped, number = array.array("q", [*name.tolist(), 0, 0, 0]), 0, 0
    with open(path, "rb") as file:
        try:
            for begin, length, number in form.pieces(path):
                if error := _fault(form, file, begin, length):
                    if not skip:
                        raise bad(path, form.unit, number, error) from error
                    skipped += 1
                else:
                    rows.extend((begin, length, number))
        except BadPiece as error:  # and so all that is behind it
            if not skip:
                raise bad(path, form.unit, number + 1, error) from error
            skipped += 1
    rows[3] = skipped
    return np.frombuffer(rows, np.int64).reshape(-1, 3)


def _fault(form: Format, file: BinaryIO, begin: int, length: int) -> BadPiece | None:
    if form.checked:
        file.seek(begin)
        try:
            form.parse(file.read(length))
        except BadPiece as error:
            return error
    return None


def read(path: Path, begin: int, length: int) -> bytes:
    """Returns a part of a file."""
    handle = os.open(path, os.O_RDONLY)
    try:
        return os.pread(handle, length, begin)
    finally:
        os.close(handle)
