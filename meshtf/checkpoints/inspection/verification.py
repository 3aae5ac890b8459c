"""Whether the files of a checkpoint are as they were written: all of them are read.

Example:

    check("runs/lm/step_00000600", manifest)      # raises DamageError, which names the file
"""

from __future__ import annotations

import os

import tensorflow as tf

from meshtf.checkpoints.manifest import INDEX, PREFIX, Manifest, Saved
from meshtf.checkpoints.tensor_slices import Box, spec
from meshtf.errors import DamageError
from meshtf.runtime.devices.names import LOCAL_CPU


def data_file(number: int, of: int) -> str:
    """Returns what TensorFlow calls one of the files that hold slices."""
    return f"{PREFIX}.data-{number:05d}-of-{of:05d}"


def check(folder: str, manifest: Manifest) -> None:
    """Reads all files of a checkpoint and compares their sums. Raises DamageError."""
    manifest.check_sizes(folder)
    for name in manifest.files:
        check_file(folder, manifest, name)


def check_file(folder: str, manifest: Manifest, file: str) -> None:
    """Reads one of the files and compares its sum, or those of its slices.

    Raises:
      DamageError: of that file; or of the index, which has the sums of slices.
    """
    manifest.check_sizes(folder, [file])
    manifest.check_index(folder)
    if file == INDEX:
        return
    number = [name for name in manifest.files if name != INDEX].index(file)
    for tensor, saved in manifest.tensors.items():
        for box in saved.boxes_in(number):
            _check_slice(folder, file, tensor, saved, box)


def _check_slice(folder: str, file: str, tensor: str, saved: Saved, box: Box) -> None:
    """Reads a slice, whose sum TensorFlow compares."""
    try:
        with tf.device(LOCAL_CPU):
            tf.raw_ops.RestoreV2(
                prefix=os.path.join(folder, PREFIX),
                tensor_names=[tensor],
                shape_and_slices=[spec(saved.sizes, box)],
                dtypes=[tf.as_dtype(saved.dtype)],
            )
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError):
        raise DamageError(
            folder,
            file,
            f"what it holds of {tensor} has another sum than when it was written",
        ) from None
