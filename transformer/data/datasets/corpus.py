"""A corpus: the bytes of text files. Most files are for training; the others are held out, for
evaluation.

Whether a file is held out depends only on a hash of its relative name, so adding a file does
not change this for other files. Each file is followed by one zero byte, `END`, which marks
the end of a text.

>>> [held_out_by_name(name, share=0.5) for name in ("ast.py", "bisect.py", "email/utils.py")]
[True, False, True]
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import gin
import numpy as np

from transformer.data.errors import DataError

END = 0  # the byte after each file
# Folders of Python's library that are skipped: tests, and packages of other authors.
_SKIPPED_FOLDERS = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
}


class CorpusError(DataError):
    """Raised for a corpus that cannot be read, is empty, or is shorter than a window."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Training and held-out bytes.

    Attributes:
      origin: the folder or glob of the files.
      train: the training bytes, uint8 [train bytes].
      held_out: the held-out bytes, uint8 [held-out bytes].
      train_files: the relative names of the training files.
      held_out_files: the relative names of the held-out files.
    """

    origin: str
    train: np.ndarray
    held_out: np.ndarray
    train_files: tuple[str, ...]
    held_out_files: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.origin}: {self.train.size:,} bytes of {len(self.train_files)} files "
            f"for training, {self.held_out.size:,} bytes of "
            f"{len(self.held_out_files)} files held out"
        )


@gin.configurable(module="data")
def python_library(share: float = 0.05, folder: str | None = None) -> Corpus:
    """Returns the source of Python's standard library, without its tests.

    Args:
      share: the fraction of the files that is held out.
      folder: the folder of the library; None: that of the running Python.

    Raises:
      CorpusError: there is no source, as on systems that ship compiled files only.
    """
    if folder is None:
        folder = sysconfig.get_paths()["stdlib"]
    root = Path(folder)
    files = _source_files(root)
    return _read_corpus(files, root=root, share=share, origin=str(root))


@gin.configurable(module="data")
def text_files(pattern: str, share: float = 0.05) -> Corpus:
    """Returns the corpus of the files that match a glob, such as "books/**/*.txt".

    If no file is held out, or all are, the end of the concatenated text is held out instead.

    Args:
      pattern: a glob; `**` matches any number of folders.
      share: the fraction of the files that is held out.

    Raises:
      CorpusError: no file matches, or all are empty, or a file cannot be read.
    """
    # The folder before the first wildcard: names of files are relative to it.
    root = Path(os.path.dirname(re.split(r"[*?\[]", pattern)[0]))
    files = [
        Path(name)
        for name in glob.glob(pattern, recursive=True)
        if Path(name).is_file()
    ]
    return _read_corpus(files, root=root, share=share, origin=pattern)


def held_out_by_name(name: str, share: float) -> bool:
    """Returns whether a file is held out, given its relative name and the fraction of files
    that is held out.
    """
    # The checksum is an integer from 0 to 2**32 - 1.
    checksum = zlib.crc32(name.encode("utf-8", "surrogateescape"))
    return checksum < share * 2**32


def _source_files(root: Path) -> Iterator[Path]:
    """Yields the Python files of a folder and its subfolders, except skipped ones."""
    for folder, subfolders, names in os.walk(root):
        # Changed in place: os.walk continues with the remaining subfolders.
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED_FOLDERS]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _read_corpus(
    files: Iterable[Path], root: Path, share: float, origin: str
) -> Corpus:
    """Returns the corpus of files.

    Args:
      files: the files.
      root: the folder that names of files are relative to.
      share: the fraction of the files that is held out.
      origin: the folder or glob of the files, for messages.

    Raises:
      CorpusError: there is no text, or a file cannot be read.
    """
    if not 0.0 < share < 1.0:
        raise CorpusError(f"the held-out share must be between 0 and 1, not {share}.")
    file_contents = {
        path.relative_to(root).as_posix(): _read_file(path) for path in files
    }
    # Without empty files, in the order of the names.
    texts = {name: text for name, text in sorted(file_contents.items()) if text}
    if not texts:
        raise CorpusError(
            f"there is no text.\n  searched       {origin}\n"
            '  Give other files, in gin: data.text_files.pattern = "books/**/*.txt".'
        )
    train_files = tuple(name for name in texts if not held_out_by_name(name, share))
    held_out_files = tuple(name for name in texts if held_out_by_name(name, share))
    if train_files and held_out_files:
        return Corpus(
            origin,
            train=_concatenate(texts, train_files),
            held_out=_concatenate(texts, held_out_files),
            train_files=train_files,
            held_out_files=held_out_files,
        )
    # No file is held out, or all are: the end of the concatenated text is held out.
    all_files = tuple(texts)
    all_bytes = _concatenate(texts, all_files)
    num_train = round(all_bytes.size * (1.0 - share))
    return Corpus(
        origin,
        train=all_bytes[:num_train],
        held_out=all_bytes[num_train:],
        train_files=all_files,
        held_out_files=all_files,
    )


def _read_file(path: Path) -> bytes:
    """Returns the bytes of a file.

    Raises:
      CorpusError: the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(
            f"a file of the corpus cannot be read: {error.strerror}.\n"
            f"  file         {path}\n"
            "  Make it readable, or give a pattern that leaves it out."
        ) from error


def _concatenate(texts: dict[str, bytes], names: Iterable[str]) -> np.ndarray:
    """Returns the texts of these names, each followed by `END`: uint8 [bytes]."""
    end = bytes([END])
    terminated_texts = [texts[name] + end for name in names]
    joined = b"".join(terminated_texts)
    return np.frombuffer(joined, np.uint8)
