"""Files and folders that are there whole or not at all: written under another name, then renamed.

    with whole_file("vocab.txt") as path:        # a name beside it, until the block has ended
      path.write_text(text)
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from transformer.data.errors import DataError


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
  """Gives a name to write a file under; renames it to `path` at the end, over what was there."""
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
    raise DataError(f"{final} is there already, and is not written over.\n"
                    "  Give another place, or remove it.")
  partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  try:
    yield partial
    os.rename(partial, final)
  finally:
    shutil.rmtree(partial, ignore_errors=True)
