"""The folders of a run's checkpoints, one for each step: their names, the newest complete
one, and the deletion of old ones.

    step, path = latest("runs/lm")

A folder of checkpoints contains:

    runs/lm/step_00000400/    manifest.json  variables.index  variables.data-00000-of-00001
    runs/lm/step_00000600/
    runs/lm/step_00000800.tmp-4711/     incomplete: process 4711 is writing it, or died
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

# The names of complete checkpoints, with the step, and of incomplete ones.
_FOLDER = re.compile(r"step_(\d{8,})")
_INCOMPLETE = re.compile(r"step_\d{8,}\.tmp-\d+")


def path_of(directory: str, step: int) -> str:
    """Returns the path of the checkpoint of a step."""
    return os.path.join(directory, f"step_{step:08d}")


def temporary_path(path: str) -> str:
    """Returns the path that a checkpoint has while it is written or deleted.

    Args:
      path: the path of the complete checkpoint.
    """
    return f"{path}.tmp-{os.getpid()}"


def common_temporary_path(path: str, suffix: str) -> str:
    """Returns the path that a checkpoint has while several processes write it.

    Args:
      path: the path of the complete checkpoint.
      suffix: a number that the processes have in common, in digits.
    """
    return f"{path}.tmp-{suffix}"


def all_steps(directory: str) -> list[tuple[int, str]]:
    """Returns the step and the path of each checkpoint in a folder, the newest last."""
    directory = as_path("directory", directory)
    if not os.path.isdir(directory):
        return []
    steps_and_paths = []
    for name in os.listdir(directory):
        match = _FOLDER.fullmatch(name)
        if match:
            step = int(match.group(1))
            steps_and_paths.append((step, os.path.join(directory, name)))
    return sorted(steps_and_paths)


def newest_first(directory: str) -> Iterator[tuple[int, str, Manifest]]:
    """Yields the step, path and manifest of each checkpoint whose files exist and have the
    right size, the newest first; warns of damaged checkpoints.

    Raises:
      DamageError: there are checkpoints, but all are damaged.
    """
    damage = None  # the error of the newest damaged checkpoint
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
    """Returns the step and the path of the newest checkpoint in a folder, or None.

    Damaged checkpoints are skipped with a warning. Only manifests and sizes of files are
    checked.

    Raises:
      DamageError: there are checkpoints, but all are damaged.
    """
    for step, path, _ in newest_first(directory):
        return step, path
    return None


def rename_complete(incomplete: str, path: str) -> None:
    """Renames a complete checkpoint to its final name; deletes an older checkpoint of that
    name.

    Args:
      incomplete: the temporary path of the checkpoint.
      path: the final path.
    """
    # A name that `delete_incomplete` recognizes, and no process has the id 0.
    old = f"{path}.tmp-0"
    if os.path.isdir(path):
        shutil.rmtree(old, ignore_errors=True)
        os.rename(path, old)
    os.rename(incomplete, path)
    shutil.rmtree(old, ignore_errors=True)


def prune(directory: str, step: int, keep: int, keep_every: int) -> None:
    """Deletes old checkpoints after a step was saved.

    Args:
      directory: the folder of the checkpoints.
      step: the step that was saved; checkpoints of later steps are not touched.
      keep: the count of newest checkpoints to keep, including that of `step`.
      keep_every: checkpoints whose step is a multiple of it are kept as well; 0: none.
    """
    checkpoints = [(s, path) for s, path in all_steps(directory) if s <= step]
    for earlier_step, path in checkpoints[:-keep]:
        if keep_every and earlier_step % keep_every == 0:
            continue
        # Renamed first, so that an incomplete folder never has a checkpoint's name.
        deleted_path = temporary_path(path)
        os.rename(path, deleted_path)
        shutil.rmtree(deleted_path, ignore_errors=True)


def delete_incomplete(directory: str) -> None:
    """Deletes the incomplete checkpoints in a folder, which processes that died have left.
    No other process may be saving to the folder.
    """
    if not os.path.isdir(directory):
        return
    for name in os.listdir(directory):
        if _INCOMPLETE.fullmatch(name):
            shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
