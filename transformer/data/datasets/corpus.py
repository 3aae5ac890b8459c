"""A corpus: the bytes of many text files, each file wholly in training or wholly held
out.

The side a file is on depends on a hash of its relative name and on nothing else, so
adding a file moves no other. Every file ends with one zero byte, `END`, which tells a
model where texts end.

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
    """A corpus that cannot be read, is empty, or is too short for what is asked
    of it.
    """


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Bytes to learn from and bytes held out: uint8 [train bytes], uint8 [held-out
    bytes].
    """

    place: str
    train: np.ndarray
    held_out: np.ndarray
    train_files: tuple[str, ...]
    held_out_files: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.place}: {self.train.size:,} bytes of {len(self.train_files)} files "
            f"to learn from, {self.held_out.size:,} bytes of "
            f"{len(self.held_out_files)} files held out"
        )


@gin.configurable(module="data")
def python_library(share: float = 0.05, folder: str | None = None) -> Corpus:
    """Returns the source of the Python standard library that runs this, without its
    tests.

    Args:
      share: the part of the files that is held out.
      folder: where the library lies, if not where Python says.

    Raises:
      CorpusError: there is no source, as on systems that ship compiled files only.
    """
    root = Path(folder or sysconfig.get_paths()["stdlib"])
    return _read(_sources(root), root, share, place=str(root))


@gin.configurable(module="data")
def text_files(pattern: str, share: float = 0.05) -> Corpus:
    """Returns the files that match a glob such as "books/**/*.txt".

    Few files may all fall on one side; then the end of the whole text is held out
    instead.

    Args:
      pattern: a glob; `**` matches any number of folders.
      share: the part that is held out.

    Raises:
      CorpusError: nothing matches, or it is empty or unreadable.
    """
    root = Path(os.path.dirname(re.split(r"[*?\[]", pattern)[0]))
    files = [
        Path(name)
        for name in glob.glob(pattern, recursive=True)
        if Path(name).is_file()
    ]
    return _read(files, root, share, place=pattern)


def held_out_by_name(name: str, share: float) -> bool:
    """Returns whether a file of this relative name is held out."""
    return zlib.crc32(name.encode("utf-8", "surrogateescape")) < share * 2**32


def _sources(root: Path) -> Iterator[Path]:
    for folder, inner, names in os.walk(root):
        inner[:] = [name for name in inner if name not in _SKIPPED]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _read(files: Iterable[Path], root: Path, share: float, place: str) -> Corpus:
    if not 0.0 < share < 1.0:
        raise CorpusError(
            f"the share that is held out must lie between 0 and 1, not be {share}."
        )
    texts = {path.relative_to(root).as_posix(): _bytes(path) for path in files}
    texts = {name: texts[name] for name in sorted(texts) if texts[name]}
    if not texts:
        raise CorpusError(
            f"there is no text to learn from.\n  looked in    {place}\n"
            '  Give other files, in gin: data.text_files.pattern = "books/**/*.txt".'
        )
    held_out = {name for name in texts if held_out_by_name(name, share)}
    train = [name for name in texts if name not in held_out]
    if train and held_out:
        return Corpus(
            place,
            _join(texts, train),
            _join(texts, sorted(held_out)),
            tuple(train),
            tuple(sorted(held_out)),
        )
    whole = _join(texts, texts)
    cut = round(whole.size * (1.0 - share))
    return Corpus(place, whole[:cut], whole[cut:], tuple(texts), tuple(texts))


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
    mark = bytes([END])
    return np.frombuffer(b"".join(texts[name] + mark for name in names), np.uint8)
