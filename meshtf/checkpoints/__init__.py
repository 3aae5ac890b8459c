"""Checkpoints: shards on disk, under one name for each variable, whatever the layout.

Contents:

    write           each host writes the shards of its devices, in TensorFlow's V2 format
    read            on any mesh and layout; errors name the damaged file
    saver           the checkpoints of a run, asynchronous if wanted
    manifest        the tensors of a checkpoint, and the files they are in
    step_folders    the folders of checkpoints: names, deletion, the newest complete one
    tensor_slices   boxes: start and size along each dimension of a tensor
    matching        names and shapes of variables against those of a checkpoint
    shared_folder   checks that all hosts see the same folder
    lock            only one run in a folder
    inspection/     python -m meshtf checkpoint: reports and verification
"""

from meshtf.checkpoints.lock import only_run
from meshtf.checkpoints.manifest import Manifest
from meshtf.checkpoints.read import Restored, newest_complete, restore, restore_latest
from meshtf.checkpoints.saver import Saver
from meshtf.checkpoints.shared_folder import check_shared
from meshtf.checkpoints.step_folders import latest
from meshtf.checkpoints.write import save
from meshtf.errors import CheckpointWarning, DamageError, WriteError

__all__ = [
    "CheckpointWarning",
    "DamageError",
    "Manifest",
    "Restored",
    "Saver",
    "WriteError",
    "check_shared",
    "latest",
    "newest_complete",
    "only_run",
    "restore",
    "restore_latest",
    "save",
]
