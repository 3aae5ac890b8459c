"""Atomic writes of files and folders: they are written under a temporary name, and renamed
when they are complete.

    with atomic_file("vocab.txt") as path:       # a temporary name in the same folder
      path.write_text(text)

`check_writable` checks that a path can be written, before the work is done.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from transformer.data.errors import DataError

_MAX_NAMES = 5  # of files in an error


def check_writable(
    path: str | os.PathLike[str], name: str, folder: bool = False
) -> None:
    """Raises DataError if a file or a folder cannot be written; changes nothing.

    This is so if a parent is a file, if a folder has the name of the file, or if nothing
    can be created in the folder.

    Args:
      path: the path to write; its parents need not exist.
      name: the setting that names the path, such as "--output".
      folder: whether the path is a folder.
    """
    final_path = Path(path).absolute()
    candidates = (final_path, *final_path.parents)
    existing = next(path for path in candidates if os.path.lexists(path))
    if existing == final_path and not folder:
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
    """Raises DataError if a run cannot write to a folder, or if the folder has files, but
    none of a run.

    Args:
      path: the folder, which need not exist.
      name: the setting that names the path, such as "--model_dir".
      known: glob patterns of the names of files of runs.
    """
    check_writable(path, name, folder=True)
    names = sorted(os.listdir(path)) if os.path.isdir(path) else []
    files = [file for file in names if not file.startswith(".")]
    has_run = any(fnmatch.fnmatch(file, pattern) for file in files for pattern in known)
    if files and not has_run:
        files_text = ", ".join(files[:_MAX_NAMES])
        if len(files) > _MAX_NAMES:
            files_text += f" and {len(files) - _MAX_NAMES} more"
        raise DataError(
            f"{name}={path} is not the folder of a run; it has {files_text}.\n"
            f"  Name an empty folder, or a new one, such as {Path(path, 'run')}."
        )


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A context with a temporary name to write a file to. At the end, the file is renamed
    to `path`, and replaces an existing file; after an error it is deleted.
    """
    final_path = Path(path)
    final_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = final_path.with_name(f".{final_path.name}.{os.getpid()}.partial")
    try:
        yield temporary
        os.replace(temporary, final_path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A context with an empty folder to write to. At the end, the folder is renamed to
    `path`; after an error it is deleted.

    Raises:
      DataError: the path exists already.
    """
    final_path = Path(path)
    if final_path.exists():
        raise DataError(
            f"{final_path} exists already, and is not overwritten.\n"
            "  Give another path, or remove it."
        )
    temporary = final_path.with_name(f".{final_path.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        os.rename(temporary, final_path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
