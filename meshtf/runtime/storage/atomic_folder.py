"""Folders that are there as a whole or not at all.

Example:

    with written_whole("served", "manifest.json", {"values.npz"}) as folder:
      ...                            # it has another name until all is written
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Set

from meshtf.names.arguments import as_path


@contextlib.contextmanager
def written_whole(folder: str, mark: str, others: Set[str]) -> Iterator[str]:
    """Yields a new folder, which becomes `folder` at the end of the `with` block.

    Args:
      folder: what is to be there; it takes the place of an earlier one of this kind.
      mark: the file by which a folder of this kind is known.
      others: what it may have besides.

    Raises:
      FileExistsError: `folder` is there, and holds other things.
    """
    folder = as_path("folder", folder)
    folder = os.path.abspath(folder)
    if os.path.lexists(folder) and not _is_earlier(folder, mark, others):
        raise FileExistsError(
            errno.EEXIST, "it is there, and is no earlier export", folder
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


def _is_earlier(folder: str, mark: str, others: Set[str]) -> bool:
    if not os.path.isdir(folder):
        return False
    files = set(os.listdir(folder))
    if not files:
        return True
    return mark in files and files <= {mark, *others}
