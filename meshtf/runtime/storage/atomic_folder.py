"""Folders that are created complete or not at all.

Example:

    with atomic_folder("served", "manifest.json", {"values.npz"}) as unfinished:
      ...                      # write the files to `unfinished`; at the end it is renamed
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Set

from meshtf.names.arguments import as_path


@contextlib.contextmanager
def atomic_folder(folder: str, marker: str, other_files: Set[str]) -> Iterator[str]:
    """Yields a temporary folder, which is renamed to `folder` at the end of the `with`
    block. If the block raises, the temporary folder is removed.

    Args:
      folder: the path of the folder; an earlier folder of this kind is replaced.
      marker: the name of a file that every folder of this kind has.
      other_files: names of the other files that a folder of this kind may have.

    Raises:
      FileExistsError: `folder` exists and is not of this kind.
    """
    folder = as_path("folder", folder)
    folder = os.path.abspath(folder)
    if os.path.lexists(folder) and not _is_replaceable(folder, marker, other_files):
        raise FileExistsError(
            errno.EEXIST, "it exists, and is no earlier export", folder
        )
    unfinished = f"{folder}.tmp-{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    os.makedirs(unfinished)
    try:
        yield unfinished
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _is_replaceable(folder: str, marker: str, other_files: Set[str]) -> bool:
    """Returns whether a path is an empty folder, or an earlier folder of this kind."""
    if not os.path.isdir(folder):
        return False
    names = set(os.listdir(folder))
    return not names or (marker in names and names <= {marker, *other_files})
