"""Checkpoints: shards on disk, under one name for each variable, whatever the layout.

Contents:

    save            each host writes what its devices hold, in TensorFlow's V2 format
    restore         on any mesh and layout; what is damaged is named
    saver           the checkpoints of a run, in the background by choice
    manifest        what a checkpoint holds, and in which files
    step_folders    the folders of checkpoints: names, which stay, the newest complete one
    tensor_slices   parts of tensors
    matching        a diff where names or shapes differ
    shared_folder   a folder that all hosts see
    lock            one run in a folder
    inspection/     python -m meshtf checkpoint: reports and verification
"""

from meshtf.checkpoints.lock import only_run
from meshtf.checkpoints.manifest import Manifest
from meshtf.checkpoints.read import Restored, newest_whole, restore, restore_latest
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
    "newest_whole",
    "only_run",
    "restore",
    "restore_latest",
    "save",
]
