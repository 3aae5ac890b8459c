"""The folders of checkpoints: their names, which of them stay, and the newest that is
whole.

Contents:

    runs/lm/step_00000400/    manifest.json  variables.index  variables.data-00000-of-00001
    runs/lm/step_00000600/
    runs/lm/step_00000800.tmp-4711/     is being written, or was when its process died

    step, path = latest("runs/lm")
"""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Iterator

from meshtf.checkpoints.manifest import Manifest
from meshtf.errors import CheckpointWarning, DamageError
from meshtf.names.arguments import as_path

_FOLDER = re.compile(r"step_(\d{8,})")
_UNFINISHED = re.compile(r"step_\d{8,}\.tmp-\d+")


def path_of(directory: str, step: int) -> str:
    """Returns where the checkpoint of a step lies."""
    return os.path.join(directory, f"step_{step:08d}")


def temporary(path: str) -> str:
    """Returns the name of a checkpoint that is being written or deleted."""
    return f"{path}.tmp-{os.getpid()}"


def all_steps(directory: str) -> list[tuple[int, str]]:
    """Returns steps and paths of a folder's checkpoints, the newest last."""
    directory = as_path("directory", directory)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    found = ((_FOLDER.fullmatch(name), name) for name in names)
    return sorted((int(m[1]), os.path.join(directory, name)) for m, name in found if m)


def newest_first(directory: str) -> Iterator[tuple[int, str, Manifest]]:
    """Yields the checkpoints whose files are there, and warns of others on the way.

    Raises:
      DamageError: there are checkpoints, but none that is whole.
    """
    damage, some = None, False
    for step, path in reversed(all_steps(directory)):
        try:
            manifest = Manifest.read(path)
            manifest.check_sizes(path)
        except DamageError as error:
            damage = damage or error
            warn_of(error)
            continue
        some = True
        yield step, path, manifest
    if damage is not None and not some:
        raise damage


def warn_of(damage: DamageError) -> None:
    """Warns of a damaged checkpoint that is left out."""
    warnings.warn(
        f"{damage}\n  It is left out; the one before it is taken.",
        CheckpointWarning,
        stacklevel=2,
    )


def latest(directory: str) -> tuple[int, str] | None:
    """Returns step and path of the newest checkpoint, or None.

    Damaged ones are left out with a warning, as far as that shows without reading all
    of them.

    Raises:
      DamageError: there are checkpoints, but none that is whole.
    """
    for step, path, _ in newest_first(directory):
        return step, path
    return None


def replace(unfinished: str, path: str) -> None:
    """Gives a checkpoint its name; one that had it goes."""
    old = f"{path}.tmp-0"
    if os.path.isdir(path):
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    os.rename(unfinished, path)
    shutil.rmtree(old, ignore_errors=True)


def prune(directory: str, step: int, keep: int, keep_every: int) -> None:
    """Deletes what need not stay after a step was saved.

    Args:
      directory: where the checkpoints are.
      step: that was saved; what there is of later steps is not touched.
      keep: how many stay, this one included.
      keep_every: those of multiples of it stay as well; 0: no others.
    """
    there = [(s, path) for s, path in all_steps(directory) if s <= step]
    for s, path in there[:-keep]:
        if not (keep_every and s % keep_every == 0):
            os.rename(
                path, temporary(path)
            )  # half a checkpoint never has the name of one
            shutil.rmtree(temporary(path), ignore_errors=True)


def sweep(directory: str) -> None:
    """Deletes what processes that died left half written; nobody else may be saving
    here.
    """
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        if _UNFINISHED.fullmatch(name):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
