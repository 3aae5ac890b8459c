"""Verifies the files of a checkpoint: reads all of them and compares checksums.

check("runs/lm/step_00000600", manifest)      # raises DamageError, which names the file
"""

from __future__ import annotations

import os

import tensorflow as tf

from meshtf.checkpoints.manifest import INDEX, PREFIX, Manifest, SavedTensor
from meshtf.checkpoints.tensor_slices import Box, slice_spec
from meshtf.errors import DamageError
from meshtf.runtime.devices.names import LOCAL_CPU


def data_file(index: int, num_files: int) -> str:
    """Returns the name that TensorFlow gives to a file of slices."""
    return f"{PREFIX}.data-{index:05d}-of-{num_files:05d}"


def check(folder: str, manifest: Manifest) -> None:
    """Reads all files of a checkpoint and compares checksums.

    Args:
      folder: the folder of the checkpoint.
      manifest: the manifest of the checkpoint.

    Raises:
      DamageError: a file is missing or was changed.
    """
    manifest.check_sizes(folder)
    for name in manifest.files:
        check_file(folder, manifest, name)


def check_file(folder: str, manifest: Manifest, file: str) -> None:
    """Reads one file and compares its checksum, or those of its slices.

    Args:
      folder: the folder of the checkpoint.
      manifest: the manifest of the checkpoint.
      file: the name of the file.

    Raises:
      DamageError: the file is damaged; or the index is, which has the checksums of
        slices.
    """
    manifest.check_sizes(folder, [file])
    manifest.check_index(folder)
    if file == INDEX:
        return
    # A tensor's entry in the manifest has the index of the file of each slice.
    data_files = [name for name in manifest.files if name != INDEX]
    file_index = data_files.index(file)
    for tensor, saved in manifest.tensors.items():
        for box in saved.boxes_in(file_index):
            _check_slice(folder, file, tensor, saved, box)


def _check_slice(
    folder: str, file: str, tensor: str, saved: SavedTensor, box: Box
) -> None:
    """Reads a slice, whose checksum TensorFlow compares.

    Args:
      folder: the folder of the checkpoint.
      file: the name of the file with the slice, for the error.
      tensor: the name of the tensor.
      saved: the manifest's entry of the tensor.
      box: the box of the slice.

    Raises:
      DamageError: the checksum differs.
    """
    try:
        with tf.device(LOCAL_CPU):
            tf.raw_ops.RestoreV2(
                prefix=os.path.join(folder, PREFIX),
                tensor_names=[tensor],
                shape_and_slices=[slice_spec(saved.sizes, box)],
                dtypes=[tf.as_dtype(saved.dtype)],
            )
    except (tf.errors.DataLossError, tf.errors.OutOfRangeError):
        raise DamageError(
            folder,
            file,
            f"its slice of {tensor} has another sum than when it was written",
        ) from None
