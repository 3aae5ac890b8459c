"""A corpus: the bytes of text files, split by file into training and held-out text.

The split of a file depends only on a hash of its relative name, so adding a file does not
change the split of other files. Each file is followed by one zero byte, `END`, which marks the
end of a text.

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

END = 0
_SKIPPED = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "__pycache__",
}


class CorpusError(DataError):
    """A corpus that cannot be read, is empty, or is shorter than a window."""


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Training and held-out bytes: uint8 [train bytes], uint8 [held-out bytes]."""

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
    """Returns the source of the Python standard library that runs this, without its
    tests.

    Args:
      share: the fraction of the files that is held out.
      folder: the folder of the library; None: that of the running Python.

    Raises:
      CorpusError: there is no source, as on systems that ship compiled files only.
    """
    if folder is None:
        folder = sysconfig.get_paths()["stdlib"]
    root = Path(folder)
    sources = _sources(root)
    return _read(sources, root, share, origin=str(root))


@gin.configurable(module="data")
def text_files(pattern: str, share: float = 0.05) -> Corpus:
    """Returns the files that match a glob such as "books/**/*.txt".

    If all files fall into one split, the end of the concatenated text is held out instead.

    Args:
      pattern: a glob; `**` matches any number of folders.
      share: the fraction of the files that is held out.

    Raises:
      CorpusError: no file matches, or all are empty, or one is unreadable.
    """
    root = Path(os.path.dirname(re.split(r"[*?\[]", pattern)[0]))
    files = [
        Path(name)
        for name in glob.glob(pattern, recursive=True)
        if Path(name).is_file()
    ]
    return _read(files, root, share, origin=pattern)


def held_out_by_name(name: str, share: float) -> bool:
    """Returns whether a file of this relative name is held out."""
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) < share * 2**32


def _sources(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIPPED]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _read(files: Iterable[Path], root: Path, share: float, origin: str) -> Corpus:
    if not 0.0 < share < 1.0:
        raise CorpusError(f"the held-out share must be between 0 and 1, not {share}.")
    texts = {path.relative_to(root).as_posix(): _bytes(path) for path in files}
    texts = {name: texts[name] for name in sorted(texts) if texts[name]}
    if not texts:
        raise CorpusError(
            f"there is no text.\n  searched       {origin}\n"
            '  Give other files, in gin: data.text_files.pattern = "books/**/*.txt".'
        )
    held_out = {name for name in texts if held_out_by_name(name, share)}
    train = [name for name in texts if name not in held_out]
    if train and held_out:
        return Corpus(
            origin,
            _join(texts, train),
            _join(texts, sorted(held_out)),
            tuple(train),
            tuple(sorted(held_out)),
        )
    text = _join(texts, texts)
    train_size = round(text.size * (1.0 - share))
    all_files = tuple(texts)
    return Corpus(origin, text[:train_size], text[train_size:], all_files, all_files)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CorpusError(
            f"a file of the corpus cannot be read: {error.strerror}.\n"
            f"  file         {path}\n"
            "  Make it readable, or give a pattern that leaves it out."
        ) from error


def _join(texts: dict[str, bytes], names: Iterable[str]) -> np.ndarray:
    end = bytes([END])
    ended_texts = [texts[name] + end for name in names]
    joined = b"".join(ended_texts)
    return np.frombuffer(joined, np.uint8)
