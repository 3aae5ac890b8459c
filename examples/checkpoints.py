"""A checkpoint knows no layout: saved from one mesh, it is read on any other, or
without meshtf.

Usage:

    python -m examples.checkpoints
"""

from __future__ import annotations

import tempfile

import numpy as np
import tensorflow as tf

import meshtf as mtf


def table(axes: str, layout: str, seed: int) -> mtf.Variable:
    """Returns a variable on a mesh of its own."""
    mesh = mtf.Mesh(axes, layout, seed=seed)
    return mtf.Variable(
        mesh, "rows:8; d:4", mtf.layers.initializers.normal(), name="table"
    )


if __name__ == "__main__":
    mtf.configure_process()
    with tempfile.TemporaryDirectory() as folder:
        saved = table("data:4; model:2", "rows:data; d:model", seed=1)
        path = mtf.checkpoints.save(folder, 100, {"table": saved}, extra={"epoch": 3})
        print(f"saved in {len(saved.regions())} slices of {saved.slots()[0].shape}")

        restored = table("model:2", "rows:model", seed=2)
        extra = mtf.checkpoints.restore(path, {"table": restored})
        same = np.array_equal(saved.numpy(), restored.numpy())
        print(
            f"restored as {len(restored.regions())} slices of "
            f"{restored.slots()[0].shape}; equal: {same}; {extra}"
        )

        whole = tf.train.load_checkpoint(f"{path}/variables").get_tensor("table")
        print(
            f"by TensorFlow alone: {whole.shape}; equal: "
            f"{np.array_equal(saved.numpy(), whole)}"
        )
