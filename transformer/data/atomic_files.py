"""Atomic writes of files and folders: they are written under a temporary name, and renamed
when they are complete.

    with atomic_file("vocab.txt") as temporary_path:       # in the same folder
      temporary_path.write_text(text)

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

_MAX_FILE_NAMES = 5  # the most file names in one error message


def check_writable(
    path: str | os.PathLike[str], name: str, folder: bool = False
) -> None:
    """Raises DataError if a file or a folder cannot be written; changes nothing.

    It cannot be written if a parent is a file, if a folder has the name of the file, or if
    nothing can be created in its folder.

    Args:
      path: the path to write; its parents need not exist.
      name: the setting that names the path, such as "--output".
      folder: whether the path is a folder.
    """
    final_path = Path(path).absolute()
    candidates = (final_path, *final_path.parents)
    # The path itself, or its nearest parent that exists.
    existing_path = next(
        candidate for candidate in candidates if os.path.lexists(candidate)
    )
    if existing_path == final_path and not folder:
        if existing_path.is_dir():
            raise DataError(
                f"{name}={path} is a folder, where a file is to be written.\n"
                "  Name a file in it, or another path."
            )
        existing_path = existing_path.parent
    if not existing_path.is_dir():
        raise DataError(
            f"{name}={path} cannot be written: {existing_path} is no folder.\n"
            "  Name another path, or move that file."
        )
    # Permissions do not tell whether a disk is read-only: so a file is created and deleted.
    probe = existing_path / f".{os.getpid()}.probe"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        os.unlink(probe)
    except OSError as error:
        raise DataError(
            f"{name}={path} cannot be written: {existing_path}: {error.strerror}.\n"
            "  Name a writable path, or change its permissions."
        ) from None


def check_folder(
    path: str | os.PathLike[str], name: str, run_files: Sequence[str]
) -> None:
    """Raises DataError if a folder cannot become or is not the folder of a run: it cannot
    be written, or it has files, but none that a run writes.

    Args:
      path: the folder, which need not exist.
      name: the setting that names the path, such as "--model_dir".
      run_files: glob patterns of the names of files that runs write.
    """
    check_writable(path, name=name, folder=True)
    all_files = sorted(os.listdir(path)) if os.path.isdir(path) else []
    files = [file for file in all_files if not file.startswith(".")]
    has_run = any(
        fnmatch.fnmatch(file, pattern) for file in files for pattern in run_files
    )
    if files and not has_run:
        files_text = ", ".join(files[:_MAX_FILE_NAMES])
        if len(files) > _MAX_FILE_NAMES:
            files_text += f" and {len(files) - _MAX_FILE_NAMES} more"
        raise DataError(
            f"{name}={path} is not the folder of a run; it has {files_text}.\n"
            f"  Name an empty folder, or a new one, such as {Path(path, 'run')}."
        )


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A context with a temporary path to write a file to. At the end, the file is renamed
    to `path`, and replaces an existing file; after an error it is deleted.
    """
    final_path = Path(path)
    final_path.parent.mkdir(parents=True, exist_ok=True)
    temporary_path = final_path.with_name(f".{final_path.name}.{os.getpid()}.partial")
    try:
        yield temporary_path
        os.replace(temporary_path, final_path)
    finally:
        temporary_path.unlink(missing_ok=True)  # absent if it was renamed


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
    temporary_path = final_path.with_name(f".{final_path.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary_path, ignore_errors=True)
    temporary_path.mkdir(parents=True)
    try:
        yield temporary_path
        os.rename(temporary_path, final_path)
    finally:
        shutil.rmtree(temporary_path, ignore_errors=True)  # absent if it was renamed
