"""Atomic writes of files and folders: written under a temporary name, then renamed.

    with whole_file("vocab.txt") as path:        # a temporary name in the same folder
      path.write_text(text)

`check_writable` finds out before the work is done whether a path can be written.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer.data.errors import DataError

_MAX_NAMES = 5  # of files shown in an error


def check_writable(
    path: str | os.PathLike[str], name: str, folder: bool = False
) -> None:
    """Checks that a file or a folder can be written; leaves nothing behind.

    Args:
      path: the path to write; its parents need not exist.
      name: the setting that gives the path, such as "--output".
      folder: whether it is a folder.

    Raises:
      DataError: a parent is a file, a folder has the name of the file, or nothing can
        be created there.
    """
    final = Path(path)
    candidates = (final.absolute(), *final.absolute().parents)
    existing = next(path for path in candidates if os.path.lexists(path))
    if existing == final.absolute() and not folder:
        if existing.is_dir():
            raise DataError(
                f"{name}={path} is a folder, where a file is to be written.\n"
                "  Name a file in it, or another path."
            )
        existing = existing.parent
    if not existing.is_dir():
        raise DataError(
            f"{name}={path} cannot be written: {existing} is no folder.\n"
            "  Name another path, or move that file."
        )
    probe = existing / f".{os.getpid()}.probe"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        raise DataError(
            f"{name}={path} cannot be written: {existing}: {error.strerror}.\n"
            "  Name a writable path, or change its permissions."
        ) from None


def check_folder(path: str | os.PathLike[str], name: str, known: Sequence[str]) -> None:
    """Checks that a run can write to a folder, and that the folder is empty or has files
    of a run. Other files may lie among those of a run.

    Args:
      path: the folder, which need not exist.
      name: the setting that gives the path, such as "--model_dir".
      known: patterns of the names of files of runs.

    Raises:
      DataError: it cannot be written, or has only other files.
    """
    check_writable(path, name, folder=True)
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    visible = [file for file in names if not file.startswith(".")]
    is_of_run = [any(fnmatch.fnmatch(file, p) for p in known) for file in visible]
    if visible and not any(is_of_run):
        listed = ", ".join(visible[:_MAX_NAMES])
        if len(visible) > _MAX_NAMES:
            listed += f" and {len(visible) - _MAX_NAMES} more"
        raise DataError(
            f"{name}={path} is not the folder of a run; it has {listed}.\n"
            f"  Name an empty folder, or a new one, such as {Path(path, 'run')}."
        )


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary name to write a file to; renames it to `path` at the end, and
    replaces an existing file.
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
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives an empty folder to fill, and renames it to `path` at the end.

    Raises:
      DataError: the path exists already.
    """
    final = Path(path)
    if final.exists():
        raise DataError(
            f"{final} exists already, and is not overwritten.\n"
            "  Give another path, or remove it."
        )
    partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        os.rename(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
