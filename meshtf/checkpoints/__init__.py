"""Checkpoints: slices on disk, under one name for each variable, whatever the layout.

Contents:

    boxes      parts of tensors
    manifest   what a checkpoint holds, and in which files; checking: are these as they were?
    steps      the folders of checkpoints: names, which stay, the newest whole one
    writing    each host writes what its devices hold, in TensorFlow's V2 format
    reading    on any mesh and layout; what is damaged is named
    fitting    a diff where names or shapes differ
    saver      the checkpoints of a run, in the background by choice
    lock       one run in a folder; sharing: which all hosts see
    command    python -m meshtf checkpoint inspect|diff; report: what they tell
"""

from meshtf.checkpoints.lock import only_run
from meshtf.checkpoints.manifest import Manifest
from meshtf.checkpoints.restore import Restored, newest_whole, restore, restore_latest
from meshtf.checkpoints.save import save
from meshtf.checkpoints.saver import Saver
from meshtf.checkpoints.shared_folder import check_shared
from meshtf.checkpoints.step_folders import latest
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
