"""The folders of checkpoints: names, deletion of old ones, and the newest complete one.

Contents:

    runs/lm/step_00000400/    manifest.json  variables.index  variables.data-00000-of-00001
    runs/lm/step_00000600/
    runs/lm/step_00000800.tmp-4711/     incomplete: its process is writing, or died

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
    """Returns the path of the checkpoint of a step."""
    return os.path.join(directory, f"step_{step:08d}")


def temporary(path: str) -> str:
    """Returns the name of a checkpoint while it is written or deleted."""
    return f"{path}.tmp-{os.getpid()}"


def all_steps(directory: str) -> list[tuple[int, str]]:
    """Returns steps and paths of a folder's checkpoints, the newest last."""
    directory = as_path("directory", directory)
    names = os.listdir(directory) if os.path.isdir(directory) else []
    steps = []
    for name in names:
        if match := _FOLDER.fullmatch(name):
            steps.append((int(match[1]), os.path.join(directory, name)))
    return sorted(steps)


def newest_first(directory: str) -> Iterator[tuple[int, str, Manifest]]:
    """Yields step, path and manifest of the checkpoints whose files exist and have the right
    size, and warns of damaged ones.

    Raises:
      DamageError: there are checkpoints, but all are damaged.
    """
    damage = None
    any_complete = False
    for step, path in reversed(all_steps(directory)):
        try:
            manifest = Manifest.read(path)
            manifest.check_sizes(path)
        except DamageError as error:
            damage = damage or error
            warn_of(error)
            continue
        any_complete = True
        yield step, path, manifest
    if damage is not None and not any_complete:
        raise damage


def warn_of(damage: DamageError) -> None:
    """Warns of a damaged checkpoint that is skipped."""
    warnings.warn(
        f"{damage}\n  It is left out; the one before it is taken.",
        CheckpointWarning,
        stacklevel=2,
    )


def latest(directory: str) -> tuple[int, str] | None:
    """Returns step and path of the newest checkpoint, or None.

    Damaged ones are skipped with a warning; only manifests and sizes of files are checked.

    Raises:
      DamageError: there are checkpoints, but all are damaged.
    """
    for step, path, _ in newest_first(directory):
        return step, path
    return None


def replace(unfinished: str, path: str) -> None:
    """Renames a complete checkpoint to its final name; deletes an older one of that name."""
    old = f"{path}.tmp-0"
    if os.path.isdir(path):
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    os.rename(unfinished, path)
    shutil.rmtree(old, ignore_errors=True)


def prune(directory: str, step: int, keep: int, keep_every: int) -> None:
    """Deletes old checkpoints after a step was saved.

    Args:
      directory: of the checkpoints.
      step: that was saved; checkpoints of later steps are not touched.
      keep: how many of the newest to keep, this one included.
      keep_every: those of steps that are multiples of it are kept as well; 0: none.
    """
    old_steps = [(s, path) for s, path in all_steps(directory) if s <= step]
    for s, path in old_steps[:-keep]:
        if not (keep_every and s % keep_every == 0):
            # Renamed at the start: an incomplete folder never has a checkpoint's name.
            os.rename(path, temporary(path))
            shutil.rmtree(temporary(path), ignore_errors=True)


def sweep(directory: str) -> None:
    """Deletes incomplete checkpoints of processes that died; no other process may be saving
    to the folder.
    """
    for name in os.listdir(directory) if os.path.isdir(directory) else []:
        if _UNFINISHED.fullmatch(name):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
