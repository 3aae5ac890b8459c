"""Checkpoints: variables on disk, independent of the mesh and the layout.

    saver = mtf.checkpoints.Saver("runs/lm", keep=2)
    saver.save(step, {v.name: v for v in model.variables})
    mtf.checkpoints.restore_latest("runs/lm", {v.name: v for v in model.variables})

Contents:

    write           saves: each host writes the shards of its devices, in TensorFlow's V2 format
    read            restores, on any mesh and layout; errors name the damaged file
    saver           saves the checkpoints of a run, in the background if asynchronous
    manifest        the tensors of a checkpoint, and the files that they are in
    step_folders    the folders of a run's checkpoints: names, deletion, the newest complete one
    tensor_slices   boxes: start and size along each dimension of a tensor
    matching        compares names and shapes of variables with those of a checkpoint
    shared_folder   checks that all hosts see the same folder
    lock            lets only one run use a folder
    inspection/     python -m meshtf checkpoint: reports and verification
"""

from typing import TYPE_CHECKING, Any

from meshtf.checkpoints.foreign_format import foreign_format
from meshtf.checkpoints.lock import only_run
from meshtf.checkpoints.manifest import Manifest
from meshtf.checkpoints.read import Restored, newest_complete, restore, restore_latest
from meshtf.checkpoints.saver import Saver
from meshtf.checkpoints.shared_folder import check_shared
from meshtf.checkpoints.step_folders import latest
from meshtf.checkpoints.write import save
from meshtf.errors import CheckpointWarning, DamageError, WriteError
from meshtf.unknown_name import unknown_name

__all__ = [
    "CheckpointWarning",
    "DamageError",
    "Manifest",
    "Restored",
    "Saver",
    "WriteError",
    "check_shared",
    "foreign_format",
    "latest",
    "newest_complete",
    "only_run",
    "restore",
    "restore_latest",
    "save",
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name

    def __getattr__(name: str) -> Any:
        raise unknown_name(__name__, name, __all__)
