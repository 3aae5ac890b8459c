"""Files and folders that are there whole or not at all: written under another name,
then renamed.

    with whole_file("vocab.txt") as path:        # a name beside it, until the block has ended
      path.write_text(text)

What cannot be written is best told before the work is done: `check_writable` asks
beforehand.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer.data.errors import DataError

_SHOWN = 5  # names of files that are shown


def check_writable(
    path: str | os.PathLike[str], name: str, folder: bool = False
) -> None:
    """Sees that a file or a folder can be written; leaves nothing behind.

    Args:
      path: of what will be written; its parents need not be there.
      name: of the setting that says the path, such as "--output".
      folder: whether it is a folder.

    Raises:
      DataError: a file stands in the place of a folder, a folder in that of a file, or
        nothing can be made there.
    """
    final = Path(path)
    there = next(
        one
        for one in (final.absolute(), *final.absolute().parents)
        if os.path.lexists(one)
    )
    if there == final.absolute() and not folder:
        if there.is_dir():
            raise DataError(
                f"{name}={path} is a folder, where a file is to be written.\n"
                "  Name a file in it, or another place."
            )
        there = there.parent
    if not there.is_dir():
        raise DataError(
            f"{name}={path} cannot be written: {there} is no folder.\n"
            "  Name another place, or move what is there."
        )
    probe = there / f".{os.getpid()}.probe"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        raise DataError(
            f"{name}={path} cannot be written: {there}: {error.strerror}.\n"
            "  Name a place that can, or change who may write there."
        ) from None


def check_folder(path: str | os.PathLike[str], name: str, known: Sequence[str]) -> None:
    """Sees that a run can write to a folder, and that it holds nothing but what runs
    leave.

    Files of others may lie beside those of a run that was begun there before.

    Args:
      path: of the folder, which need not be there.
      name: of the setting that says the path, such as "--model_dir".
      known: patterns of names that runs leave.

    Raises:
      DataError: it cannot be written, or is full of something else.
    """
    check_writable(path, name, folder=True)
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    others = [
        one
        for one in names
        if not one.startswith(".")
        and not any(fnmatch.fnmatch(one, pattern) for pattern in known)
    ]
    if others and len(others) == len([one for one in names if not one.startswith(".")]):
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise DataError(
            f"{name}={path} holds no run, but {', '.join(others[:_SHOWN])}{more}.\n"
            f"  Name an empty folder, or a new one, such as {Path(path, 'run')}."
        )


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a name to write a file under; renames it to `path` at the end, over what
    was there.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, final)
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives an empty folder to fill, and renames it to `path` at the end.

    Raises:
      DataError: there is something of that name.
    """
    final = Path(path)
    if final.exists():
        raise DataError(
            f"{final} is there already, and is not written over.\n"
            "  Give another place, or remove it."
        )
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
