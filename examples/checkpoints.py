"""A checkpoint does not depend on the layout: saved on one mesh, it is restored on
another mesh, or read by TensorFlow without meshtf.

Usage:

    python -m examples.checkpoints
"""

from __future__ import annotations

import tempfile

import numpy as np
import tensorflow as tf

import meshtf as mtf


def make_table(axes: str, layout: str, seed: int) -> mtf.Variable:
    """Returns a random variable [vocab:8, d:4] on a new mesh."""
    mesh = mtf.Mesh(axes, layout, seed=seed)
    return mtf.Variable(
        mesh, "vocab:8; d:4", mtf.layers.initializers.normal(), name="table"
    )


if __name__ == "__main__":
    mtf.configure_process()
    with tempfile.TemporaryDirectory() as folder:
        saved = make_table("data:4; model:2", "vocab:data; d:model", seed=1)
        path = mtf.checkpoints.save(
            folder, step=100, variables={"table": saved}, extra={"epoch": 3}
        )
        # `regions` has an entry for each distinct shard; `slots` has the stored shard of
        # each position (virtual device) of the mesh.
        print(f"saved {len(saved.regions())} shards of {saved.slots()[0].shape}")

        restored = make_table("model:2", "vocab:model", seed=2)
        extra = mtf.checkpoints.restore(path, {"table": restored})
        equal = np.array_equal(saved.numpy(), restored.numpy())
        print(
            f"restored {len(restored.regions())} shards of "
            f"{restored.slots()[0].shape}; equal: {equal}; {extra}"
        )

        reader = tf.train.load_checkpoint(f"{path}/variables")
        array = reader.get_tensor("table")
        equal = np.array_equal(saved.numpy(), array)
        print(f"read by TensorFlow: {array.shape}; equal: {equal}")
