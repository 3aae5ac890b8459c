"""Compares a model's predictions on a mesh with those on one device, and what several processes
have with each other.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from meshtf.errors import ClusterError, NumericsError, explain_error
from meshtf.mesh import Mesh
from meshtf.runtime.devices.processes import processes
from meshtf.runtime.spmd.live.jax_host import live_devices
from meshtf.runtime.spmd.live.join_processes import same_in_all_processes
from meshtf.tensorflow_import.check import difference_of, labelled


def check_predictions(model: Any, batch: Any) -> None:
    """Compares predictions for a batch, `x` or `(x, y)`.

    Raises:
        NumericsError: A prediction differs; the first one is named.
    """
    x = keras.utils.unpack_x_y_sample_weight(batch)[0]
    results = tf.nest.flatten(model.predict_on_batch(x))
    references = labelled(model(x, training=False), "")
    for result, (label, tensor) in zip(results, references):
        reference = np.asarray(tensor)
        difference = difference_of(tensor.dtype.name, np.asarray(result), reference)
        if difference:
            raise NumericsError(
                explain_error(
                    f"the prediction{label} of {model.name} on the mesh differs from that on "
                    "one device.",
                    difference=difference,
                    way_out="Models that draw random numbers differ always, those with a "
                    "choice of the largest by rounding. Otherwise please report it: the "
                    "import of an operation is wrong.",
                )
            )


def has_processes(mesh: Mesh) -> bool:
    """Whether several processes run a live mesh."""
    if not mesh.live:
        return False
    live_devices(mesh)  # the first use of a live mesh, where processes may meet
    return processes().count > 1


def check_processes(mesh: Mesh, arrays: Mapping[str, Any], way_out: str) -> None:
    """Checks that all processes of a live mesh have the same arrays. All of them call it.

    Args:
        mesh: The mesh.
        arrays: What each process has, by what errors call it.
        way_out: What to do about a difference.

    Raises:
        ClusterError: An array differs; the first one is named.
    """
    if not has_processes(mesh):
        return
    sums = {name: _checksum(x) for name, x in arrays.items()}
    if same_in_all_processes(_checksum(list(sums.values()))):
        return
    for name, total in sums.items():
        if not same_in_all_processes(total):
            raise ClusterError(
                explain_error(
                    f"{name} differs between the {processes().count} processes of this run.",
                    way_out=way_out,
                )
            )


def _checksum(x: Any) -> int:
    """Returns a checksum that is less than 2**31."""
    return zlib.crc32(np.ascontiguousarray(x).tobytes()) >> 1
